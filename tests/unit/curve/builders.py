"""Hashes for curves: uniform, as real ones are, and made once each."""

from __future__ import annotations

import hashlib
from functools import cache

from tiered.curve.histogram import hits_at
from tiered.curve.sampler import Sampler
from tiered.curve.stack import SampledStack
from tiered.types import BlockHash, TenantCurve, TenantId

ACME = TenantId("acme")


@cache
def name(number: int, salt: str = "") -> BlockHash:
    return BlockHash(hashlib.sha256(f"{salt}{number}".encode()).digest())


def spread(numbers: range) -> list[BlockHash]:
    """Many at once, without SHA-256: multiples of the golden ratio lie evenly."""
    return [BlockHash((number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * 4) for number in numbers]


def whole_stack() -> SampledStack:
    """One that samples every block."""
    stack = SampledStack()
    stack.threshold, stack.per = b"\xff" * 33, 1.0
    return stack


def look(
    sampler: Sampler, blocks: range | list[int], *, now: float = 0.0, tenant: TenantId = ACME, salt: str = ""
) -> None:
    hashes = [name(block, salt) for block in blocks]
    sampler.looked_up(tenant, hashes, prompt_tokens=len(hashes) * sampler.block_tokens, now=now)


def ratio_at(curve: TenantCurve, n_blocks: float) -> float:
    return hits_at(curve.points, n_blocks) / curve.looked_tokens
