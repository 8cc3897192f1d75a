"""Copies vLLM's computed blocks into the pool, in a thread of its own, and never reads one that is not the request's.

vLLM takes a request's blocks away when it preempts it. Whoever then calls ``cancel`` returns only once no copy of its
blocks is under way and none will begin, which takes at most one batch's copy: the lock of a job is held for a copy,
never while a socket is waited for. A request that has ended keeps its blocks until ``closed`` names it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tiered.client.port import Chain, Fill, Saved
from tiered.connectors.vllm.orders import StoreOrder, StoreReport, unpack_tokens
from tiered.connectors.vllm.tally import Tally
from tiered.hashing.chain import Extras
from tiered.log import get_logger
from tiered.types import NO_HINTS, BlockId, Hints, TenantId

if TYPE_CHECKING:
    from tiered.connectors.vllm.pages import Pages
    from tiered.pool.pool import BlockPool

JOBS_MAX: Final = 1_024
"""Orders that wait; what is ordered beyond that is not stored."""

JOIN_S: Final = 2.0

_log = get_logger("tiered.connectors.vllm")


class Saving(Protocol):
    """What is used of a RemoteClient."""

    @property
    def attached(self) -> bool: ...

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain: ...

    def save_chain(self, chain: Chain, *, fill: Fill, hints: Hints = NO_HINTS) -> Saved: ...

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None: ...

    def close(self) -> None: ...


class Cancelled(Exception):
    """The blocks are no longer the request's; what was begun is not stored."""


@dataclass(slots=True, eq=False)
class _Job:
    """filled: runs [first, end) of the request's blocks that were copied, each committed before the next is begun."""

    order: StoreOrder
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_live: bool = True
    filled: list[tuple[int, int]] = field(default_factory=list)
    device: str = ""

    def report(self, saved: Saved | None) -> StoreReport:
        """saved: None when the save was broken off in its last run, or never begun."""
        number = self.order.number
        if saved is None:
            whole, n_here = self.filled[:-1], self.filled[-1][0] if self.filled else 0
        elif saved.n_stored:
            whole, n_here = self.filled, self.filled[-1][1]
        else:
            whole, n_here = [], saved.first_index
        return StoreReport(number, tuple(whole), min(n_here, len(self.order.blocks)), self.device if whole else "")


class Saver:
    """``client``: may be exchanged for another scope's while it runs. reports: whether what became of each order is
    kept for ``take_reports``, which then is to be called."""

    def __init__(self, client: Saving, pages: Pages, *, hold_s: float, tally: Tally, reports: bool = False) -> None:
        self._client = client
        self._pages = pages
        self._hold_s = hold_s
        self._tally = tally
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._open: dict[str, list[_Job]] = {}
        """By request its jobs that have not ended, in order."""
        self._chains: dict[str, Chain] = {}
        """By request what its orders so far have told of it."""
        self._closing: dict[str, float] = {}
        """By request that has ended, until when its blocks are kept."""
        self._prefills: deque[tuple[int, float]] = deque(maxlen=16)
        self._reports: list[StoreReport] | None = [] if reports else None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tiered-save", daemon=True)
        self._thread.start()

    def submit(self, orders: Collection[StoreOrder]) -> None:
        with self._changed:
            for order in orders:
                if len(self._jobs) >= JOBS_MAX or self._is_closed:
                    self._tally.count("stores_refused")
                    self._report(StoreReport(order.number))
                    continue
                job = _Job(order)
                self._jobs.append(job)
                self._open.setdefault(order.request_id, []).append(job)
            self._changed.notify()

    def cancel(self, request_ids: Collection[str]) -> None:
        """From its return on no block of these requests is read."""
        if not request_ids:
            return
        with self._changed:
            jobs = [job for request_id in request_ids for job in self._open.pop(request_id, ())]
            for request_id in request_ids:
                self._chains.pop(request_id, None)
            for job in jobs:
                # Before the locks are waited for, so that no further copy begins; under this one, so that no job puts
                # back its request's chain, which nobody would then take away.
                job.is_live = False
        for job in jobs:
            with job.lock:
                pass

    def close_requests(self, request_ids: Collection[str], *, now: float) -> None:
        """These have ended; their blocks are kept, for a while."""
        with self._changed:
            for request_id in request_ids:
                self._closing[request_id] = now + self._hold_s

    def closed(self, *, now: float) -> set[str]:
        """Requests whose blocks are not read any more: stored, or given up after ``hold_s``. Each is named once."""
        with self._changed:
            if not self._closing:
                return set()
            done = {request_id for request_id in self._closing if request_id not in self._open}
            late = {request_id for request_id, ends_at in self._closing.items() if ends_at <= now} - done
        self.cancel(late)
        with self._changed:
            for request_id in done | late:
                del self._closing[request_id]
                self._chains.pop(request_id, None)
        if late:
            self._tally.count("stores_given_up", len(late))
        return done | late

    def take_reports(self) -> list[StoreReport]:
        """Of the orders that have ended since the last call, before ``closed`` names their requests."""
        with self._changed:
            taken = self._reports or []
            if taken:
                self._reports = []
            return taken

    def note_prefill(self, n_tokens: int, took_s: float) -> None:
        with self._changed:
            self._prefills.append((n_tokens, took_s))
            self._changed.notify()

    def exchange(self, client: Saving) -> None:
        """From now on blocks are stored through another client; what is under way is not stored."""
        with self._changed:
            requests = list(self._open)
            # Under the lock, so that none is begun with the new client: its blocks are of the old one's scope.
            for job in (job for jobs in self._open.values() for job in jobs):
                job.is_live = False
            old, self._client = self._client, client
        self.cancel(requests)
        threading.Thread(target=old.close, name="tiered-close", daemon=True).start()  # it may be in a call

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            requests = list(self._open)
            self._changed.notify()
        self.cancel(requests)
        self._thread.join(JOIN_S)
        self._client.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._jobs or self._prefills)
                if self._is_closed:
                    return
                client = self._client
                prefills = list(self._prefills)
                self._prefills.clear()
                job = self._jobs.popleft() if self._jobs else None
            saved = None
            try:
                for n_tokens, took_s in prefills:
                    client.note_prefill(n_tokens=n_tokens, took_s=took_s)
                if job is not None:
                    saved = self._save(client, job)
            except Exception:  # the thread serves the other requests; this one's blocks are computed again
                _log.exception("blocks not stored")
            finally:
                if job is not None:
                    self._end(job, saved)

    def _report(self, report: StoreReport) -> None:
        """The condition is held."""
        if self._reports is not None:
            self._reports.append(report)

    def _end(self, job: _Job, saved: Saved | None) -> None:
        with self._changed:
            self._report(job.report(saved))
            jobs = self._open.get(job.order.request_id)
            if jobs is not None and job in jobs:
                jobs.remove(job)
                if not jobs:
                    del self._open[job.order.request_id]

    def _save(self, client: Saving, job: _Job) -> Saved | None:
        """None when it was broken off, or there was nothing to begin with."""
        if not job.is_live or not client.attached:
            return None
        chain = self._chain_of(client, job)
        if chain is None:
            return None
        began = time.monotonic()
        try:
            saved = client.save_chain(chain, fill=self._filler(job), hints=job.order.hints)
        except Cancelled:
            self._tally.count("stores_cancelled")
            return None
        self._tally.stored(
            n_blocks=saved.n_stored,
            n_bytes=saved.n_stored * self._pages.block_bytes,
            reason=saved.reason,
            took_s=time.monotonic() - began,
        )
        return saved

    def _chain_of(self, client: Saving, job: _Job) -> Chain | None:
        """None for an order whose predecessors were not carried out."""
        order = job.order
        tokens = unpack_tokens(order.tokens)
        with self._changed:
            known = self._chains.get(order.request_id)
        if order.first_token == 0:
            chain = client.chain(tokens, tenant=order.tenant, extras=order.extras)
        elif known is not None and known.n_tokens == order.first_token:
            chain = known.grown(tokens)
        else:
            return None
        with self._changed:
            if job.is_live:
                self._chains[order.request_id] = chain
        return chain

    def _filler(self, job: _Job) -> Fill:
        pages, blocks = self._pages, job.order.blocks

        def fill(pool: BlockPool, slots: Sequence[BlockId], first_index: int) -> None:
            job.filled.append((first_index, first_index + len(slots)))
            job.device = pool.device
            for begin in range(0, len(slots), pages.batch):
                part = slots[begin : begin + pages.batch]
                first = first_index + begin
                with job.lock:
                    if not job.is_live:
                        raise Cancelled
                    pages.copy_out(blocks[first : first + len(part)], pool, part)

        return fill
