"""What does sampling for the curves of capacity cost? Baseline: the same matches without it, in turn with them.

A match is hot, in process, with hashing and release. What a request waits for is told apart from the folding of its
notes, which a worker does once the answer is sent. Times are of this process's own CPU.
"""

from __future__ import annotations

import gc
import time

from _harness import Report, median

from tiered.core.allocate import allocate
from tiered.core.commit import commit
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.match import match, open_lease
from tiered.core.release import release
from tiered.curve.sampler import Sampler
from tiered.eviction.registry import policy_factory
from tiered.hashing.chain import chain_hashes
from tiered.types import BlockHash, TenantId

TENANT = TenantId("bench")
SCOPE = b"\0" * 32
BLOCK_TOKENS = 16
PROMPTS = 40
"""Of the pool, asked for in turn, so that a sample's order is not the same blocks again and again."""

ROUNDS = 2_000
LENGTHS = (128, 512)


def core_with(prompts: list[list[int]]) -> CacheCore:
    options = CoreOptions(block_bytes=1, block_tokens=BLOCK_TOKENS, policy=policy_factory("hazard"), lower_tier=False)
    core = CacheCore(options, sum(len(prompt) for prompt in prompts) // BLOCK_TOKENS + 1)
    for number, prompt in enumerate(prompts):
        hashes = hashes_of(number, prompt)
        lease = open_lease(core, hashes, connection=1, tenant=TENANT, scope_id=SCOPE)
        while (grant := allocate(core, lease, n_blocks_max=len(hashes))).block_ids:
            commit(core, lease, [None] * len(grant.block_ids))
        release(core, lease, used_tokens=0)
    core.drain_events()
    return core


def hashes_of(number: int, prompt: list[int]) -> list[BlockHash]:
    return chain_hashes(number.to_bytes(32, "little"), prompt, block_tokens=BLOCK_TOKENS)


def once_us(core: CacheCore, number: int, prompt: list[int], *, now: float) -> float:
    began = time.process_time_ns()
    hashes = hashes_of(number, prompt)
    lease = match(core, hashes, connection=1, tenant=TENANT, scope_id=SCOPE, asked_tokens=len(prompt), now=now)
    release(core, lease, used_tokens=len(prompt), now=now)
    took = time.process_time_ns() - began
    assert len(hashes) * BLOCK_TOKENS == len(prompt)
    return took / 1e3


def main() -> None:
    report = Report("sampling")
    for n_blocks in LENGTHS:
        prompts = [[(p * 7_919 + i) % 50_000 for i in range(n_blocks * BLOCK_TOKENS)] for p in range(PROMPTS)]
        core, sampler = core_with(prompts), Sampler(BLOCK_TOKENS)
        without: list[float] = []
        noted: list[float] = []
        folded: list[float] = []
        gc.collect()
        gc.freeze()
        gc.disable()
        for turn in range(1, ROUNDS + 1):
            number = turn * 7 % PROMPTS
            for is_sampled in (True, False) if turn % 2 else (False, True):
                core.sampler = sampler if is_sampled else None
                took = once_us(core, number, prompts[number], now=turn / 100)
                (noted if is_sampled else without).append(took)
            began = time.process_time_ns()
            sampler.fold()
            folded.append((time.process_time_ns() - began) / 1e3)
        gc.enable()
        gc.unfreeze()
        baseline = median(without)
        report.add(f"hot match of {n_blocks} blocks, noted for the curves", median(noted), "us", baseline=baseline)
        report.add(f"its notes folded, {n_blocks} blocks", median(folded), "us", baseline=baseline)
    report.finish()


if __name__ == "__main__":
    main()
