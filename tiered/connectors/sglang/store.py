"""A rank's pages by SGLang's keys, over a CacheClient: how many are there, read, write.

A batch may begin anywhere in a prompt. It hangs on the page before it where that is hot, so that the end of a prompt
leaves before its beginning; where it is not, the batch is kept all the same. A prompt may lie in several places in
turn - hot, at a peer, in Redis, hot again - so what a match did not reach is asked for anew from there.

Every call ends in time: each request to the worker has a deadline, and a worker that misses one is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tiered.client.port import CacheClient, Chain, Match
from tiered.connectors.sglang.identity import Naming
from tiered.connectors.sglang.pages import Page, copy_out
from tiered.core.allocate import Shortfall
from tiered.types import BlockId, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool

WINDOW_KEYS: Final = 4_096
"""Of one question to the worker, whose lookup in Redis has 50 ms."""

PRESENT_S: Final = 2.0
WRITE_S: Final = 2.0
"""SGLang's threads are joined for 10 s when a backend is detached."""

BUSY_S: Final = 0.02
"""Until a page is asked for again that somebody else is writing or fetching."""

REPOLL_S: Final = 10.0
"""SGLang asks again about what it missed, a few scheduling rounds later; that is the same request."""

RECENT_MAX: Final = 4_096


class _NothingBeforeError(Exception):
    """The page that a write was to hang on has left."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What one call's pages are called: one root, whatever changes meanwhile."""

    tenant: TenantId
    root: bytes
    naming: Naming
    page_tokens: int

    def chain(self, keys: Sequence[str], *, n_tokens: int | None = None) -> Chain:
        """n_tokens: of which the keys are the beginning; their own when left out."""
        hashes = self.naming.hashes(self.root, keys)
        asked_tokens = len(keys) * self.page_tokens if n_tokens is None else n_tokens
        return Chain(self.tenant, self.root, hashes, asked_tokens, self.page_tokens)


class PageStore:
    """is_counted: this rank's use is the engine's, so the tenant's token counts learn of it.

    Safe to use from several threads, each with a client of its own.
    """

    def __init__(self, tenant: TenantId, *, page_tokens: int, naming: Naming, is_counted: bool) -> None:
        self._tenant = tenant
        self._page_tokens = page_tokens
        self._naming = naming
        self._is_counted = is_counted
        self._recent: dict[str, float] = {}
        self._recent_lock = threading.Lock()
        self._closed = threading.Event()

    def forget(self) -> None:
        """Nothing that was written so far is found from now on."""
        self._naming = self._naming.renewed()

    def close(self) -> None:
        """What waits stops waiting."""
        self._closed.set()

    def present(self, client: CacheClient, keys: Sequence[str]) -> int:
        """How many of the first keys' pages could be read. What is missing counts as asked for and missed."""
        names = self._names(client)
        is_counted = bool(keys) and self._is_counted and self._is_new(keys[-1])
        ends_at = time.monotonic() + PRESENT_S
        n_there = 0
        while n_there < len(keys) and time.monotonic() < ends_at:
            n_left_tokens = (len(keys) - n_there) * self._page_tokens
            chain = names.chain(keys[n_there : n_there + WINDOW_KEYS], n_tokens=n_left_tokens)
            match = client.match_chain(chain, is_counted=is_counted)
            # What is there is counted by its reads: as the engine's own it counts as not asked for.
            own_tokens = n_left_tokens if match.n_blocks else 0
            client.release(match, used_tokens=own_tokens, own_tokens=own_tokens)
            if not match.n_blocks:
                break
            n_there += match.n_blocks
        return n_there

    def read(
        self,
        client: CacheClient,
        keys: Sequence[str],
        pages: Sequence[Page],
        *,
        before: str | None,
        deadline_s: float,
    ) -> int:
        """Fill the first pages with their keys' bytes; returns how many are right. The others hold anything."""
        names = self._names(client)
        ends_at = time.monotonic() + deadline_s
        n_read = 0
        while n_read < len(keys) and (left_s := ends_at - time.monotonic()) > 0:
            match, n_before = self._match_after(
                client, names, keys[n_read:], before, is_counted=self._is_counted and not n_read
            )
            found = self._take(client, match, n_before, pages[n_read:], deadline_s=left_s)
            if not found:
                break
            n_read += found
            before = keys[n_read - 1]
        return n_read

    def _match_after(
        self, client: CacheClient, names: _Names, keys: Sequence[str], before: str | None, *, is_counted: bool
    ) -> tuple[Match, int]:
        """A match of the keys, beginning with the page before them if that is hot; and whether it does."""
        if before is not None:
            chain = names.chain([before, *keys])
            match = client.match_chain(chain, is_counted=is_counted)
            if match.block_ids:
                return match, 1
            client.release(match, used_tokens=chain.n_tokens, own_tokens=chain.n_tokens)  # counts nothing
        return client.match_chain(names.chain(keys), is_counted=is_counted), 0

    def _take(
        self, client: CacheClient, match: Match, n_before: int, pages: Sequence[Page], *, deadline_s: float
    ) -> int:
        """Load the match, copy its blocks after the first n_before into pages, release it; how many are right."""
        n_good = 0
        is_held = False
        try:
            if match.n_blocks > n_before:
                loaded = client.load(match, deadline_s=deadline_s)
                pool = client.pool
                # Another pool's blocks are not those that were named: the worker may have been replaced meanwhile.
                if pool is not None and match.voucher is not None and pool.name == match.voucher.pool:
                    n_good = copy_out(pool, loaded.block_ids[n_before:], loaded.checksums[n_before:], pages)
        finally:
            own_tokens = n_before * self._page_tokens
            used_tokens = own_tokens + n_good * self._page_tokens
            is_held = client.release(match, used_tokens=used_tokens, own_tokens=own_tokens)
        return n_good if is_held else 0

    def write(self, client: CacheClient, keys: Sequence[str], pages: Sequence[Page], *, before: str | None) -> int:
        """Store pages under their keys; returns how many of the first are stored now, or were before."""
        names = self._names(client)
        if before is not None:
            held = client.match_chain(names.chain([before]), is_counted=False)
            try:
                if held.block_ids:
                    return self._save(client, names.chain([before, *keys]), pages, n_before=1)
            except _NothingBeforeError:
                pass  # the worker was replaced in between: then without it
            finally:
                client.release(held, used_tokens=0)
        return self._save(client, names.chain(keys), pages, n_before=0)

    def _save(self, client: CacheClient, chain: Chain, pages: Sequence[Page], *, n_before: int) -> int:
        """The chain: n_before blocks that are hot, then the pages'."""

        def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            if first_index < n_before:
                raise _NothingBeforeError
            for page, block_id in zip(pages[first_index - n_before :], block_ids, strict=False):
                with pool.write(block_id) as block:
                    page.write_to(block)

        ends_at = time.monotonic() + WRITE_S
        while True:
            saved = client.save_chain(chain, fill=fill)
            if not saved.reason:
                return len(pages)
            if saved.reason != Shortfall.BUSY or time.monotonic() >= ends_at or self._closed.wait(BUSY_S):
                return max(0, saved.first_index + saved.n_stored - n_before)

    def _names(self, client: CacheClient) -> _Names:
        root = client.chain((), tenant=self._tenant).root  # it changes with whom the tenant shares its blocks
        return _Names(self._tenant, root, self._naming, self._page_tokens)

    def _is_new(self, last_key: str) -> bool:
        """Whether no question about the prompt that ends in this page was counted a moment ago."""
        now = time.monotonic()
        with self._recent_lock:
            counted_at = self._recent.get(last_key, -REPOLL_S)
            if now - counted_at < REPOLL_S:
                return False
            self._recent.pop(last_key, None)
            self._recent[last_key] = now
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
            return True
