"""vLLM's KV events of what the worker has taken: which blocks, under vLLM's names, so that routers can join them.

Owns what is remembered of a store order until all shards have said what became of it. Refuses to know when a block
leaves the pool again: the worker does not say, so nothing is taken back but all at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, AllBlocksCleared, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    resolve_block_hashes,
    to_event_extra_keys,
)

from tiered.connectors.vllm.orders import Shard, StoreOrder, StoreReport, unpack_tokens

OWNERSHIP: Final = "tiered"
"""Names the tier in events, beside its medium."""

LOCALITY: Final = "LOCAL"
"""Of the node's pool, as seen from the engine."""

ORDERS_MAX: Final = 4_096
"""Orders that are remembered; of the oldest beyond that no event is made."""


@dataclass(slots=True)
class _Ordered:
    """What of an order's request is told: taken when it is ordered, since the request may be gone when it is done.

    first: block that the lists begin with. parent: name of the block before it.
    """

    order: StoreOrder
    first: int
    parent: Any
    names: list[Any]
    extra_keys: list[tuple[Any, ...] | None]
    adapter: tuple[int | None, str | None]
    conversation: str | None
    reports: dict[Shard, StoreReport] = field(default_factory=dict)


class StoreEvents:
    """block_tokens: of a KV block; hash_tokens: of each of vLLM's block hashes, a divisor of it."""

    def __init__(self, *, block_tokens: int, hash_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._hash_tokens = hash_tokens
        self._shards: frozenset[Shard] = frozenset()
        self._orders: dict[int, _Ordered] = {}
        self._events: list[KVCacheEvent] = []

    def expect(self, shards: Iterable[Shard]) -> None:
        """Those that report of each order."""
        self._shards = frozenset(shards)

    def ordered(self, order: StoreOrder, request: Any) -> None:
        """request: vLLM's Request, whose blocks are to be stored."""
        names = resolve_block_hashes(request.block_hashes, self._hash_tokens, self._block_tokens)
        first, end = order.first_token // self._block_tokens, len(order.blocks)
        if len(names) < end:
            return
        adapter = request.lora_request
        self._orders[order.number] = _Ordered(
            order,
            first,
            maybe_convert_block_hash(names[first - 1]) if first else None,
            [maybe_convert_block_hash(names[block]) for block in range(first, end)],
            self._extra_keys(request, first, end),
            (None, None) if adapter is None else (adapter.adapter_id, adapter.name),
            request.session_id,
        )
        if len(self._orders) > ORDERS_MAX:
            del self._orders[next(iter(self._orders))]

    def reported(self, shard: Shard, report: StoreReport) -> None:
        """A block is told of once it is new in a shard, and all shards have it: a hit needs all of them."""
        ordered = self._orders.get(report.number)
        if ordered is None:
            return
        ordered.reports[shard] = report
        if not self._shards <= ordered.reports.keys():
            return
        del self._orders[report.number]
        reports = ordered.reports.values()
        n_here = min(told.n_here for told in reports)
        new = {block for told in reports for run in told.new for block in range(*run) if block < n_here}
        on_host = all(told.device in ("cpu", "") for told in reports)
        for first, end in _runs(sorted(block for block in new if block >= ordered.first)):
            self._events.append(self._stored(ordered, first, end, MEDIUM_CPU if on_host else MEDIUM_STORAGE))

    def cleared(self) -> None:
        """Nothing that was told of is found any more."""
        self._orders.clear()
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KVCacheEvent]:
        """All since the last call."""
        taken, self._events = self._events, []
        return taken

    def _extra_keys(self, request: Any, first: int, end: int) -> list[tuple[Any, ...] | None]:
        keys: list[tuple[Any, ...] | None] = []
        item = 0
        for begin in range(first * self._block_tokens, end * self._block_tokens, self._block_tokens):
            found, item = generate_block_hash_extra_keys(request, begin, begin + self._block_tokens, item)
            keys.append(found)
        return keys

    def _stored(self, ordered: _Ordered, first: int, end: int, medium: str) -> BlockStored:
        tokens, at = unpack_tokens(ordered.order.tokens), first - ordered.first
        n_blocks, block_tokens = end - first, self._block_tokens
        return BlockStored(
            block_hashes=ordered.names[at : at + n_blocks],
            parent_block_hash=ordered.names[at - 1] if at else ordered.parent,
            token_ids=tokens[at * block_tokens : (at + n_blocks) * block_tokens].tolist(),
            block_size=block_tokens,
            lora_id=ordered.adapter[0],
            lora_name=ordered.adapter[1],
            medium=medium,
            extra_keys=to_event_extra_keys(ordered.extra_keys[at : at + n_blocks]),
            group_idx=0,
            locality=LOCALITY,
            ownership=OWNERSHIP,
            session_id=ordered.conversation,
        )


def _runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs [first, end)."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = runs[-1][0], block + 1
        else:
            runs.append((block, block + 1))
    return runs
