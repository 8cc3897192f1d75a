"""Requests in the shape of real ones: conversations that share their beginning and grow turn by turn.

Owns which blocks a request names and when it comes. The shapes are those of the recorded conversations in
``tests/fixtures``, or of a trace; who asks, where and when is drawn by the seed.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.sim.node import SCOPE
from tiered.hashing.scope import scope_id
from tiered.simulate.trace import read_trace
from tiered.types import BlockHash, TenantId

_FIXTURE: Final = Path(__file__).parents[1] / "fixtures" / "tau_airline" / "conversations.jsonl"

_BLOCK_CHARS: Final = 64
"""About sixteen tokens of text."""


@cache
def conversations() -> tuple[tuple[int, ...], ...]:
    """Of each recorded conversation how many blocks its prompt has, turn by turn; the first is the system
    prompt's."""
    found = []
    for line in _FIXTURE.read_text(encoding="utf-8").splitlines():
        sizes, n_chars = [], 0
        for message in json.loads(line)["messages"]:
            n_chars += len(json.dumps(message))
            sizes.append(max(1, n_chars // _BLOCK_CHARS))
        found.append(tuple(sizes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its tenant, and its blocks, each named for all before it too."""

    at_s: float
    tenant: TenantId
    blocks: Sequence[str]
    home: str = ""
    """Whose requests a router sends to one node, as long as that is there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """shrink: of the recorded lengths, how much shorter. turn_s: between two turns of a conversation."""

    conversations: int
    span_s: float
    shrink: int = 8
    turn_s: float = 4.0


def asks(rng: random.Random, tenants: Sequence[TenantId], shape: Shape) -> list[Ask]:
    """In the order of their time."""
    found = []
    recorded = conversations()
    for number in range(shape.conversations):
        sizes, tenant = rng.choice(recorded), rng.choice(tenants)
        at, n_common = rng.uniform(0, shape.span_s), max(1, sizes[0] // shape.shrink)
        for size in sizes[1::2]:
            n_blocks = max(1, size // shape.shrink)
            found.append(Ask(at, tenant, _names(number, n_common, n_blocks)))
            at += rng.expovariate(1 / shape.turn_s)
            if at > shape.span_s:
                break
    return sorted(found, key=lambda ask: ask.at_s)


def _names(conversation: int, n_common: int, n_blocks: int) -> list[str]:
    return [f"system/{i}" if i < n_common else f"{conversation}/{i}" for i in range(n_blocks)]


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A trace of real requests, so many times beside each other as if of other people, its blocks cut in so many
    parts, and stretched over the span."""

    path: Path
    copies: int
    parts: int
    span_s: float

    def asks(self, tenants: Sequence[TenantId]) -> Iterator[Ask]:
        """In the order of their time."""
        requests = list(read_trace(self.path))
        stretch = self.span_s / requests[-1].arrival_s
        for request in requests:
            for copy in range(self.copies):
                blocks = [f"{copy}/{block}/{part}" for block in request.blocks for part in range(self.parts)]
                home = f"{copy}/{request.fields.get('session_id')}"
                tenant = tenants[zlib.crc32(home.encode()) % len(tenants)]
                yield Ask(request.arrival_s * stretch, tenant, blocks, home)


class Names:
    """The hashes of blocks under a sharing label; equal names and labels are equal contents."""

    def __init__(self) -> None:
        self._scopes: dict[str, bytes] = {}

    def scope(self, label: str) -> bytes:
        found = self._scopes.get(label)
        if found is None:
            found = self._scopes[label] = scope_id(SCOPE, label=label)
        return found

    def hashes(self, label: str, blocks: Sequence[str]) -> list[BlockHash]:
        return [BlockHash(hashlib.sha256(f"{label}|{block}".encode()).digest()) for block in blocks]
