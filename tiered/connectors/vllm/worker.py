"""The connector's side in each rank's process: blocks between the pool and this rank's KV memory.

All methods are called on the thread that runs the model, so none of them waits for a socket; what takes time is done
by a ``Loader`` and a ``Saver``. Attaching at the start is the exception: a worker of another model stops the start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.client.saving import verified_blocks
from tiered.connectors.vllm.ahead import Ahead
from tiered.connectors.vllm.engine import VERSION, Engine, packing_of, renewed, this_host
from tiered.connectors.vllm.loading import Loader
from tiered.connectors.vllm.orders import Shard, StepOrders, StoreReport
from tiered.connectors.vllm.pages import pages_of, rows_of
from tiered.connectors.vllm.saving import Saver
from tiered.connectors.vllm.settings import ConnectorSettings
from tiered.connectors.vllm.tally import Tally
from tiered.errors import ConfigError, LayoutMismatch, TieredError
from tiered.hashing.scope import ModelScope
from tiered.log import get_logger

_log = get_logger("tiered.connectors.vllm")


@dataclass(frozen=True, slots=True)
class Rank:
    tp_rank: int
    pp_rank: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank tells the scheduler side of itself at the start."""

    scope: ModelScope
    shard: Shard
    host: str
    page_bytes: dict[str, int]


@dataclass(slots=True)
class Finished:
    sending: set[str]
    receiving: set[str]


class WorkerSide:
    def __init__(self, engine: Engine, rank: Rank, settings: ConnectorSettings, vllm_config: Any) -> None:
        self._engine = engine
        self._rank = rank
        self._settings = settings
        self._vllm_config = vllm_config
        self._shard = engine.shard(tp_rank=rank.tp_rank, pp_rank=rank.pp_rank)
        self._tally = Tally()
        self._generation = ""
        self._seen: Seen | None = None
        self._loader: Loader | None = None
        self._saver: Saver | None = None
        self._ahead: Ahead | None = None
        self._bad_blocks: set[int] = set()
        self._unsaved: set[str] = set()
        """Requests that have ended, of which this rank stores nothing."""
        self._prefill: tuple[int, float] | None = None
        self._is_timed = False

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """This rank's KV memory. Errors: ConfigError; LayoutMismatch when the worker serves other blocks."""
        own = {layer: kv_caches[layer] for layer in self._engine.specs if layer in kv_caches}
        rows = rows_of(own, self._engine.n_blocks)
        page_bytes = {layer: row.shape[1] for layer, row in rows.items()}
        layout = self._engine.layout(page_bytes, packing=packing_of(self._vllm_config, list(rows)))
        scope = self._engine.scope(layout, self._shard)
        self._seen = Seen(scope, self._shard, this_host(), page_bytes)
        memory = list(rows.values())
        # A device runs on after its launches have returned; of equal ranks one report is enough.
        self._is_timed = not memory[0].is_cuda and not self._rank.tp_rank
        client = self._attached(scope, "load")
        pool = client.pool
        if pool is not None and pool.device != "cpu" and not memory[0].is_cuda:
            raise ConfigError(
                f"pool.device: the worker's pool is on {pool.device}, where an engine on the CPU cannot copy; attach "
                "it to a worker whose pool is on the cpu",
                field="pool.device",
            )
        if not memory[0].is_cuda:
            self._ahead = Ahead(memory)
        self._loader = Loader(
            client,
            pages_of(memory),
            self._shard,
            check=verified_blocks if self._settings.verify else _unchecked,
            tally=self._tally,
        )
        if self._engine.is_writer(tp_rank=self._rank.tp_rank) and self._settings.store != "off":
            storing = self._attached(scope, "store")
            self._saver = Saver(
                storing,
                pages_of(memory),
                hold_s=self._settings.hold_s,
                tally=self._tally,
                reports=self._engine.tells_events,
            )

    @property
    def seen(self) -> Seen | None:
        return self._seen

    def begin(self, orders: StepOrders) -> None:
        """Before the model runs: first what may no longer be read, then what is to be moved."""
        if self._loader is None:
            return
        if self._ahead is not None:
            self._ahead.used([block for load in orders.loads for block in load.targets])
            self._ahead.used([block for store in orders.stores for block in store.blocks])
        saver = self._saver
        if saver is not None:
            saver.cancel(orders.preempted)
            if orders.generation != self._generation:
                self._start_anew(saver, orders.generation)
            saver.submit(orders.stores)
            saver.close_requests(orders.closing, now=time.monotonic())
        self._loader.submit(orders.loads)
        if saver is None:
            self._unsaved.update(orders.closing)
        self._prefill = (orders.prefill_tokens, time.perf_counter()) if orders.prefill_tokens else None

    def forward_done(self) -> None:
        """After the model ran: how long a step took that computed prompts alone is what fetching has to beat."""
        if self._prefill is not None and self._saver is not None and self._is_timed:
            (n_tokens, began), self._prefill = self._prefill, None
            self._saver.note_prefill(n_tokens, time.perf_counter() - began)

    def finished(self) -> Finished:
        """What has ended since the last call; each request is named once."""
        if self._loader is None:
            return Finished(set(), set())
        arrivals = self._loader.take()
        self._bad_blocks |= arrivals.bad_blocks
        sent = self._unsaved if self._saver is None else self._saver.closed(now=time.monotonic())
        self._unsaved = set()
        return Finished(sent, arrivals.request_ids)

    def take_bad_blocks(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_reports(self) -> dict[Shard, list[StoreReport]]:
        """By this rank's shard, what became of the stores that ended since the last call; empty when none has."""
        reports = [] if self._saver is None else self._saver.take_reports()
        return {self._shard: reports} if reports else {}

    def take_stats(self) -> dict[str, Any]:
        return self._tally.take()

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()
        if self._saver is not None:
            self._saver.close()
        if self._ahead is not None:
            self._ahead.close()

    def _start_anew(self, saver: Saver, generation: str) -> None:
        self._generation = generation
        assert self._seen is not None
        scope = renewed(self._seen.scope, generation)
        saver.exchange(RemoteClient.attach_later(self._settings.socket, scope, engine=self._called("store")))

    def _attached(self, scope: ModelScope, purpose: str) -> RemoteClient:
        """Errors: LayoutMismatch. A worker that is not there yet is attached later."""
        options = RemoteOptions(attach_timeout_s=self._settings.attach_timeout_s)
        try:
            return RemoteClient.attach(self._settings.socket, scope, engine=self._called(purpose), options=options)
        except LayoutMismatch:
            raise
        except TieredError as error:
            _log.warning("no worker yet; going on without a cache", socket=self._settings.socket, reason=str(error))
            return RemoteClient.attach_later(self._settings.socket, scope, engine=self._called(purpose))

    def _called(self, purpose: str) -> str:
        return f"{VERSION} rank {self._rank.pp_rank}.{self._rank.tp_rank} {purpose}"


def _unchecked(pool: Any, block_ids: Any, checksums: Any) -> int:
    return len(block_ids)
