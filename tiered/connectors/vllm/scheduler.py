"""The connector's side in the scheduler's process: vLLM's calls as those of ``Requests``.

Every method is called on the loop that all requests wait for, so none of them waits, but for one short look at a
lookup that was just made.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.connectors.vllm.adapters import Adapters
from tiered.connectors.vllm.asks import Asking, EngineRequest
from tiered.connectors.vllm.engine import VERSION, Engine, renewed, this_host
from tiered.connectors.vllm.events import StoreEvents
from tiered.connectors.vllm.lookups import Lookup, Lookups
from tiered.connectors.vllm.orders import Shard, StepOrders, StoreOrder, StoreReport
from tiered.connectors.vllm.requests import RequestOptions, Requests
from tiered.connectors.vllm.settings import ConnectorSettings
from tiered.connectors.vllm.tally import Tally
from tiered.connectors.vllm.worker import Seen
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.log import get_logger
from tiered.types import Source, TenantId

MATCH_WAIT_S: Final = 0.002
"""For which a step waits for a lookup that was just made: one that finds everything hot takes about one, and coming
back to the request in another step takes longer."""

CALL_S: Final = 1.0
"""After which a worker that has not answered a lookup's call is taken for gone."""

_log = get_logger("tiered.connectors.vllm")


class SchedulerSide:
    def __init__(self, engine: Engine, settings: ConnectorSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._tally = Tally()
        self._asking = Asking(
            default_tenant=TenantId(settings.default_tenant),
            salt_tenants={salt: TenantId(name) for salt, name in settings.salt_tenants.items()},
            adapters=Adapters(),
        )
        self._scopes: dict[Shard, ModelScope] = {}
        self._lookups: Lookups | None = None
        options = RequestOptions(
            block_tokens=engine.block_tokens,
            store=settings.store,
            store_interval_tokens=settings.store_interval_tokens,
            lookup_timeout_s=settings.lookup_timeout_s,
            load_timeout_s=settings.load_timeout_s,
        )
        self._events: StoreEvents | None = None
        if engine.tells_events:
            self._events = StoreEvents(block_tokens=engine.block_tokens, hash_tokens=engine.hash_tokens)
        self._requests = Requests(_Nobody(), options, self._tally, on_store=self._ordered)

    def meet(self, ranks: Mapping[tuple[int, int], Seen]) -> None:
        """Every rank has registered its memory. Errors: ConfigError for ranks that cannot work together."""
        for (pp_rank, tp_rank), seen in ranks.items():
            if seen.host != this_host():
                raise ConfigError(
                    f"rank {pp_rank}.{tp_rank} runs on another machine than the scheduler, where it cannot reach the "
                    "same worker; keep an engine on one machine, or start it without this connector"
                )
            for layer, n_bytes in seen.page_bytes.items():
                expected = self._engine.specs[layer].page_size_bytes if layer in self._engine.specs else n_bytes
                if n_bytes > expected:
                    raise ConfigError(
                        f"rank {pp_rank}.{tp_rank} keeps {n_bytes} bytes a block in layer {layer}, where the "
                        f"scheduler expects {expected}; this version of vLLM is not one that the connector knows"
                    )
            if self._engine.is_writer(tp_rank=tp_rank):
                self._scopes[seen.shard] = seen.scope
        if self._events is not None:
            self._events.expect(self._scopes)
        self._look_up_with(self._scopes, "")

    def arrived(self, request: EngineRequest) -> None:
        self._requests.arrived(request, self._asking.ask_of(request), now=time.monotonic())

    def matched(self, request: EngineRequest, own_tokens: int) -> int | None:
        found = self._requests.matched(request, own_tokens, now=time.monotonic())
        if found is None:
            lookup = self._requests.pending(request)
            is_new = lookup is not None and time.monotonic() - lookup.asked_at < MATCH_WAIT_S
            if lookup is not None and is_new and lookup.answered.wait(MATCH_WAIT_S):
                found = self._requests.matched(request, own_tokens, now=time.monotonic())
        return found

    def allocated(self, request: EngineRequest, blocks: Sequence[int], n_external: int) -> None:
        self._requests.allocated(request, blocks, n_external)

    def sources_of(self, request: EngineRequest) -> list[Source]:
        return self._requests.sources_of(request.request_id)

    def stepped(self, output: Any) -> StepOrders:
        """output: vLLM's SchedulerOutput of the step."""
        state = output.kv_connector_block_state

        def blocks_of(request_id: str) -> Sequence[int]:
            found = state.get_block_ids(request_id)
            return found[0] if found else ()

        return self._requests.stepped(
            output.num_scheduled_tokens,
            blocks_of,
            output.preempted_req_ids or (),
            prefill_tokens=self._requests.prefill_tokens(output.num_scheduled_tokens),
        )

    def received(self, request_ids: Iterable[str], bad_blocks: Collection[int]) -> None:
        self._requests.received(request_ids, bad_blocks)

    def sent(self, request_ids: Iterable[str]) -> None:
        self._requests.sent(request_ids)

    def reported(self, reports: Mapping[Shard, Iterable[StoreReport]]) -> None:
        """What became of stores, on some of the ranks."""
        if self._events is not None:
            for shard, told in reports.items():
                for report in told:
                    self._events.reported(shard, report)

    def take_events(self) -> list[Any]:
        """vLLM's KV events since the last call, where they are enabled."""
        return [] if self._events is None else self._events.take()

    def finished(self, request: EngineRequest, blocks: Sequence[int]) -> bool:
        return self._requests.finished(request, blocks)

    @property
    def holds_blocks(self) -> bool:
        return self._requests.holds_blocks

    def reset(self) -> None:
        """The weights may have changed, so what was cached of them is not this engine's any more, nor anybody's whose
        weights did not change the same way: it goes on under a name that nobody else has."""
        generation = secrets.token_hex(8)
        _log.warning(
            "vLLM reset its caches: this engine finds nothing that was stored before, and shares with no other until "
            "it is started again",
            fix="if its weights are still the same, start it again; /pause resets nothing with clear_cache=false, "
            "/sleep does from level 1 on",
        )
        self._look_up_with(self._scopes, generation)
        if self._events is not None:
            self._events.cleared()

    def take_stats(self) -> dict[str, Any]:
        return self._tally.take()

    def close(self) -> None:
        if self._lookups is not None:
            self._lookups.close()

    def _ordered(self, order: StoreOrder, request: EngineRequest) -> None:
        if self._events is not None:
            self._events.ordered(order, request)

    def _look_up_with(self, scopes: Mapping[Shard, ModelScope], generation: str) -> None:
        old = self._lookups
        # A worker that is late is not gone: requests go on without it long before.
        options = RemoteOptions(call_timeout_s=max(CALL_S, 2 * self._settings.lookup_timeout_s))

        def clients() -> dict[Shard, RemoteClient]:
            return {
                shard: RemoteClient.attach_later(
                    self._settings.socket,
                    renewed(scope, generation),
                    engine=f"{VERSION} scheduler",
                    options=options,
                )
                for shard, scope in scopes.items()
            }

        self._lookups = Lookups(
            clients,
            n_threads=self._settings.lookup_threads,
            load_timeout_s=self._settings.load_timeout_s,
            tally=self._tally,
        )
        self._requests.reset(self._lookups, generation)
        if old is not None:  # it waits for lookups that are under way, and nobody here may
            threading.Thread(target=old.close, name="tiered-close", daemon=True).start()


class _Nobody:
    """Before the ranks have said what they are."""

    def submit(self, ask: Any, tokens: Sequence[int], *, is_counted: bool) -> Lookup | None:
        return None

    def settle(self, lookup: Lookup, *, used_tokens: int, own_tokens: int) -> None:
        raise AssertionError("nobody gave a lookup")
