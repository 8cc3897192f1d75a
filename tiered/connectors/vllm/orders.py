"""What the connector's two sides tell each other, once a step: records that are pickled between processes.

Refuses to know how either side comes to its orders, and both engines: neither torch nor vLLM is imported here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiered.client.port import Voucher
from tiered.hashing.chain import Extras
from tiered.types import NO_HINTS, BlockId, Hints, TenantId


class Shard(NamedTuple):
    """Which part of the model's KV: ranks that hold the same have the same shard."""

    pp_rank: int
    kv_rank: int


@dataclass(frozen=True, slots=True)
class PinnedBlocks:
    """Blocks of one shard in the worker's pool, held by the pins that ``voucher`` names."""

    voucher: Voucher
    block_ids: tuple[BlockId, ...]
    checksums: tuple[bytes | None, ...]

    def part(self, first: int, last: int) -> PinnedBlocks:
        return PinnedBlocks(self.voucher, self.block_ids[first:last], self.checksums[first:last])


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Copy pinned blocks into the engine's. targets: the engine's block ids, as many as each shard has sources."""

    request_id: str
    targets: tuple[int, ...]
    sources: Mapping[Shard, PinnedBlocks]


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """Store a request's first blocks, all of which are computed.

    number: names the order. tokens: the sequence from ``first_token`` on, little-endian u32; what comes before was
    sent in earlier orders of the request. blocks: the engine's, from the first on.
    """

    number: int
    request_id: str
    tenant: TenantId
    extras: Extras | None
    first_token: int
    tokens: bytes
    blocks: tuple[int, ...]
    hints: Hints = NO_HINTS


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a rank has made of the store order ``number``; of each order it says so once.

    new: runs [first, end) of the request's blocks that it put into the pool. n_here: how many of the request's first
    blocks the pool held then. device: the pool's; '' where nothing was put.
    """

    number: int
    new: tuple[tuple[int, int], ...] = ()
    n_here: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class StepOrders:
    """All of one step, in the order in which it is to be done.

    preempted:      their blocks belong to others from this step on.
    closing:        requests that have ended; their blocks are kept until they are reported as sent.
    generation:     see ``Requests.reset``.
    prefill_tokens: how many tokens the step computes, if all of them are of prompts; else 0.
    """

    preempted: frozenset[str] = frozenset()
    loads: tuple[LoadOrder, ...] = ()
    stores: tuple[StoreOrder, ...] = ()
    closing: tuple[str, ...] = ()
    generation: str = ""
    prefill_tokens: int = 0


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """ValueError for a token outside u32."""
    try:
        return array("I", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"tokens: every id is an integer in [0, 2**32): {error}") from None


def unpack_tokens(packed: bytes) -> array[int]:
    tokens = array("I")
    tokens.frombytes(packed)
    return tokens
