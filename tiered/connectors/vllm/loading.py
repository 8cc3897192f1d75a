"""Copies pinned blocks of the pool into vLLM's, in threads of its own, and says which of them may be used.

What is reported as loaded was in the pool that the order names, had its checksum, and was pinned until after the
copy. Every order ends, and is reported once, whatever happens to the worker.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tiered.client.port import Voucher
from tiered.connectors.vllm.orders import LoadOrder, PinnedBlocks, Shard
from tiered.connectors.vllm.tally import Tally
from tiered.log import get_logger
from tiered.types import BlockId

if TYPE_CHECKING:
    from tiered.connectors.vllm.pages import Pages
    from tiered.pool.pool import BlockPool

JOIN_S: Final = 2.0

_log = get_logger("tiered.connectors.vllm")


class Vouching(Protocol):
    """What is used of a RemoteClient."""

    @property
    def pool(self) -> BlockPool | None: ...

    def vouch(self, voucher: Voucher) -> bool: ...

    def close(self) -> None: ...


class Check(Protocol):
    def __call__(self, pool: BlockPool, block_ids: Sequence[BlockId], checksums: Sequence[bytes | None], /) -> int:
        """How many blocks, from the first on, hold the bytes that were committed."""


@dataclass(slots=True)
class Arrivals:
    """Loads that have ended. bad_blocks: vLLM's, in which nothing is to be used."""

    request_ids: set[str] = field(default_factory=set)
    bad_blocks: set[int] = field(default_factory=set)


class Loader:
    def __init__(self, client: Vouching, pages: Pages, shard: Shard, *, check: Check, tally: Tally) -> None:
        self._client = client
        self._pages = pages
        self._shard = shard
        self._check = check
        self._tally = tally
        self._changed = threading.Condition()
        self._orders: deque[LoadOrder] = deque()
        self._arrivals = Arrivals()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tiered-load", daemon=True)
        self._thread.start()

    def submit(self, orders: Collection[LoadOrder]) -> None:
        """Never refused: the engine waits for each. There are no more of them than requests that wait."""
        if orders:
            with self._changed:
                self._orders.extend(orders)
                self._changed.notify()

    def take(self) -> Arrivals:
        """What has ended since the last call."""
        with self._changed:
            arrivals, self._arrivals = self._arrivals, Arrivals()
        return arrivals

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(JOIN_S)
        self._client.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._orders)
                if self._closed:
                    return
                order = self._orders.popleft()
            n_good = 0
            began = time.monotonic()
            try:
                n_good = self._load(order)
            except Exception:  # the request waits for its blocks: it hears that they did not come
                _log.exception("load failed", request=order.request_id)
            bad = order.targets[n_good:]
            self._tally.copied_in(
                n_blocks=n_good,
                n_bytes=n_good * self._pages.block_bytes,
                n_failed=len(bad),
                took_s=time.monotonic() - began,
            )
            with self._changed:
                self._arrivals.request_ids.add(order.request_id)
                self._arrivals.bad_blocks.update(bad)

    def _load(self, order: LoadOrder) -> int:
        """How many blocks, from the first on, have come whole."""
        source = order.sources.get(self._shard)
        pool = self._client.pool
        if source is None or pool is None or pool.name != source.voucher.pool:
            return 0
        n_good = self._copy(pool, source, order.targets)
        return n_good if n_good and self._client.vouch(source.voucher) else 0

    def _copy(self, pool: BlockPool, source: PinnedBlocks, targets: Sequence[int]) -> int:
        """Copied before checked: the bytes are in the processor's cache then."""
        batch = self._pages.batch
        for first in range(0, len(targets), batch):
            part = source.part(first, min(first + batch, len(targets)))
            self._pages.copy_in(pool, part.block_ids, targets[first : first + batch])
            n_good = self._check(pool, part.block_ids, part.checksums)
            if n_good < len(part.block_ids):
                return first + n_good
        return len(targets)
