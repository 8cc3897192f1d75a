"""The scheduler's side of each request: what to look up, promise, load and store, and when to let go.

Decisions only: takes requests as the engine has them and ``now``, answers with orders for the worker side. It knows
neither vLLM nor sockets.

The life of one request::

    arrived -> (looked up) -> matched* -> allocated -> (loading -> received) -> stepped* -> finished -> (sent)

and at any point preempted, which leads back to matched, or finished. The engine may match again and again, never
allocate, allocate less than was offered, or end a request that is being loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from tiered.connectors.vllm.asks import Ask, EngineRequest
from tiered.connectors.vllm.lookups import Lookup
from tiered.connectors.vllm.orders import LoadOrder, StepOrders, StoreOrder, pack_tokens
from tiered.connectors.vllm.tally import Tally
from tiered.log import get_logger
from tiered.types import Source

PROMISE_S: Final = 20.0
"""A promise that no blocks were found for in this time is made anew: its pins end by themselves some time."""

RENEWALS_MAX: Final = 1_000
"""Of one request's promises, which waits for blocks meanwhile: five hours."""

_log = get_logger("tiered.connectors.vllm")


class LookupService(Protocol):
    def submit(self, ask: Ask, tokens: Sequence[int], *, is_counted: bool) -> Lookup | None: ...

    def settle(self, lookup: Lookup, *, used_tokens: int, own_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """As in ConnectorSettings."""

    block_tokens: int
    store: Literal["all", "prompt", "off"] = "all"
    store_interval_tokens: int = 256
    lookup_timeout_s: float = 0.25
    load_timeout_s: float = 5.0


@dataclass(slots=True)
class _Loading:
    """Under way at the worker side. n_good: of ``order.targets``, from the first on, those not reported as bad."""

    lookup: Lookup
    order: LoadOrder
    own_blocks: int
    n_good: int


@dataclass(slots=True)
class _Entry:
    """One request.

    n_asked: lookups so far. own_blocks: computed before what was offered last, as the engine said. stored: blocks
    from the first on that are in the cache or ordered to be; sent: those whose tokens the worker side knows.
    has_orders: the worker side may be reading the request's blocks.
    """

    request: EngineRequest
    ask: Ask
    lookup: Lookup | None = None
    may_ask: bool = True
    n_asked: int = 0
    own_blocks: int = 0
    loading: _Loading | None = None
    stored: int = 0
    sent: int = 0
    has_orders: bool = False
    may_store: bool = True
    is_finished: bool = False


class Requests:
    """on_store: told of every store order when it is made, with its request."""

    def __init__(
        self,
        lookups: LookupService,
        options: RequestOptions,
        tally: Tally,
        *,
        on_store: Callable[[StoreOrder, EngineRequest], None] = lambda order, request: None,
    ) -> None:
        self._lookups = lookups
        self._options = options
        self._tally = tally
        self._on_store = on_store
        self._n_orders = 0
        self._entries: dict[str, _Entry] = {}
        self._held: set[str] = set()
        self._loads: list[LoadOrder] = []
        self._stores: list[StoreOrder] = []
        self._closing: list[str] = []
        self._generation = ""

    @property
    def n_open(self) -> int:
        """Requests that something is remembered of."""
        return len(self._entries) + len(self._held)

    @property
    def holds_blocks(self) -> bool:
        """Whether blocks of requests that have ended are about to come free."""
        return bool(self._held)

    # As the engine calls.

    def arrived(self, request: EngineRequest, ask: Ask | None, *, now: float) -> None:
        """ask: None for a request that is served without the cache."""
        stale = self._entries.pop(request.request_id, None)
        if stale is not None:  # the engine never has two of one name; what is left of the first is given back
            self._drop_lookup(stale)
        if ask is None:
            return
        entry = _Entry(request, ask)
        self._entries[request.request_id] = entry
        self._ask(entry, now)

    def matched(self, request: EngineRequest, own_tokens: int, *, now: float) -> int | None:
        """How many tokens after the engine's own can be loaded; None while that is being found out."""
        entry = self._entries.get(request.request_id)
        if entry is None or entry.is_finished or entry.loading is not None:
            return 0
        block_tokens = self._options.block_tokens
        own_blocks = entry.own_blocks = own_tokens // block_tokens
        most = (len(request.all_token_ids) - 1) // block_tokens
        if own_blocks >= most:
            return 0
        if entry.lookup is None:
            self._ask(entry, now)
        lookup = entry.lookup
        if lookup is None:
            return 0
        if not lookup.answered.is_set():
            return self._still_waiting(entry, lookup, now)
        if now - lookup.promise.made_at > PROMISE_S and lookup.promise.n_blocks:
            self._drop_lookup(entry)
            entry.may_ask = entry.n_asked < RENEWALS_MAX
            self._ask(entry, now)
            return None if entry.lookup is not None else 0
        return max(0, min(lookup.promise.n_blocks, most) - own_blocks) * block_tokens

    def pending(self, request: EngineRequest) -> Lookup | None:
        """The request's lookup, while it has no answer."""
        entry = self._entries.get(request.request_id)
        lookup = None if entry is None else entry.lookup
        return lookup if lookup is not None and not lookup.answered.is_set() else None

    def allocated(self, request: EngineRequest, blocks: Sequence[int], n_external: int) -> None:
        """The engine has blocks for the request, for ``n_external`` tokens to be loaded among them.

        blocks: all of the request's, in the order of its tokens.
        """
        entry = self._entries.get(request.request_id)
        if entry is None or entry.lookup is None:
            assert not n_external, f"{request.request_id}: {n_external} tokens to load that nobody promised"
            return
        lookup, block_tokens = entry.lookup, self._options.block_tokens
        if not n_external:
            self._drop_lookup(entry)
            return
        entry.lookup = None
        first, n_blocks = entry.own_blocks, n_external // block_tokens
        targets = tuple(blocks[first : first + n_blocks])
        promise = lookup.promise
        assert len(targets) == n_blocks
        assert first + n_blocks <= promise.n_blocks
        sources = {shard: pinned.part(first, first + n_blocks) for shard, pinned in promise.shards.items()}
        order = LoadOrder(request.request_id, targets, sources)
        entry.loading = _Loading(lookup, order, own_blocks=first, n_good=n_blocks)
        self._loads.append(order)

    def sources_of(self, request_id: str) -> list[Source]:
        """Where each block that is being loaded for the request was found."""
        entry = self._entries.get(request_id)
        if entry is None or entry.loading is None:
            return []
        loading = entry.loading
        return list(loading.lookup.promise.sources[loading.own_blocks :][: len(loading.order.targets)])

    def stepped(
        self,
        scheduled: Iterable[str],
        blocks_of: Callable[[str], Sequence[int]],
        preempted: Collection[str],
        *,
        prefill_tokens: int = 0,
    ) -> StepOrders:
        """The engine's next step is decided: all that the worker side is to do in it.

        scheduled: requests that compute something. What they had computed before this step is stored, so what a step
        computed from blocks that turn out to be bad is not: the engine takes it back before its next step.
        """
        for entry in self._known(preempted):
            self._drop_lookup(entry)
            entry.may_ask, entry.own_blocks, entry.stored, entry.sent = True, 0, 0, 0
            entry.has_orders = False
        for entry in self._known(scheduled):
            if entry.request.request_id not in preempted:
                self._store_what_is_due(entry, blocks_of)
        orders = StepOrders(
            preempted=frozenset(preempted),
            loads=tuple(self._loads),
            stores=tuple(self._stores),
            closing=tuple(self._closing),
            generation=self._generation,
            prefill_tokens=prefill_tokens,
        )
        self._loads, self._stores, self._closing = [], [], []
        return orders

    def prefill_tokens(self, scheduled: Mapping[str, int]) -> int:
        """How many tokens a step computes that computes prompts alone; else 0. scheduled: tokens by request."""
        for request_id in scheduled:
            entry = self._entries.get(request_id)
            if entry is None or entry.request.num_computed_tokens >= entry.request.num_prompt_tokens:
                return 0
        return sum(scheduled.values())

    def received(self, request_ids: Iterable[str], bad_blocks: Collection[int]) -> None:
        """Loads have ended, on all ranks. bad_blocks: of the engine's, those that hold nothing to be used."""
        if bad_blocks:
            for entry in self._entries.values():
                if entry.loading is not None:
                    entry.loading.n_good = min(entry.loading.n_good, _n_before(entry.loading.order, bad_blocks))
        for entry in self._known(request_ids):
            if entry.loading is None:
                continue
            loading, entry.loading = entry.loading, None
            n_good = loading.own_blocks + loading.n_good
            block_tokens = self._options.block_tokens
            self._lookups.settle(
                loading.lookup, used_tokens=n_good * block_tokens, own_tokens=loading.own_blocks * block_tokens
            )
            self._tally.loaded(loading.lookup.promise.sources[loading.own_blocks : n_good], block_tokens)
            entry.stored = n_good
            if entry.is_finished:
                del self._entries[entry.request.request_id]

    def finished(self, request: EngineRequest, blocks: Sequence[int]) -> bool:
        """The request has ended, however. True when its blocks are to be kept until they are reported as sent.

        blocks: those that hold computed tokens.
        """
        entry = self._entries.get(request.request_id)
        if entry is None:
            return False
        self._drop_lookup(entry)
        entry.is_finished = True
        if entry.loading is not None:  # the engine keeps its blocks until they have arrived, and frees them then
            return False
        del self._entries[request.request_id]
        self._store(entry, blocks, self._n_storable(entry))
        if entry.has_orders:
            self._closing.append(request.request_id)
            self._held.add(request.request_id)
        return entry.has_orders

    def sent(self, request_ids: Iterable[str]) -> None:
        """What was kept of these requests has been freed."""
        self._held.difference_update(request_ids)

    def reset(self, lookups: LookupService, generation: str) -> None:
        """The weights have changed: nothing that was computed so far is found any more, or stored.

        generation: a name that nobody used before, and by which the worker side knows of it.
        """
        for entry in self._entries.values():
            self._drop_lookup(entry)
            entry.may_store = False
        self._stores.clear()
        self._lookups, self._generation = lookups, generation

    # What is behind it.

    def _known(self, request_ids: Iterable[str]) -> list[_Entry]:
        return [self._entries[request_id] for request_id in request_ids if request_id in self._entries]

    def _ask(self, entry: _Entry, now: float) -> None:
        """One lookup, unless there was one: what failed once is not tried again."""
        if not entry.may_ask or not entry.ask.may_load:
            return
        entry.may_ask = False
        tokens = list(entry.request.all_token_ids)
        if len(tokens) <= self._options.block_tokens:
            return
        entry.lookup = self._lookups.submit(entry.ask, tokens, is_counted=not entry.n_asked)
        entry.n_asked += 1

    def _still_waiting(self, entry: _Entry, lookup: Lookup, now: float) -> int | None:
        patience_s = self._options.lookup_timeout_s
        if lookup.is_fetching:
            patience_s += self._options.load_timeout_s
        if now - lookup.asked_at < patience_s:
            return None
        self._tally.gave_up()
        lookup.is_given_up = True
        self._drop_lookup(entry)
        return 0

    def _drop_lookup(self, entry: _Entry) -> None:
        lookup, entry.lookup = entry.lookup, None
        if lookup is not None:
            own_tokens = entry.own_blocks * self._options.block_tokens
            self._lookups.settle(lookup, used_tokens=own_tokens, own_tokens=own_tokens)

    def _n_storable(self, entry: _Entry) -> int:
        """Full blocks that hold what was computed from right inputs, and whose tokens are known."""
        request = entry.request
        n_tokens = min(request.num_computed_tokens - request.num_in_flight_tokens, len(request.all_token_ids))
        if self._options.store == "prompt":
            n_tokens = min(n_tokens, request.num_prompt_tokens)
        return max(0, n_tokens) // self._options.block_tokens if self._options.store != "off" else 0

    def _store_what_is_due(self, entry: _Entry, blocks_of: Callable[[str], Sequence[int]]) -> None:
        n_blocks = self._n_storable(entry)
        n_new = n_blocks - entry.stored
        if n_new <= 0:
            return
        prompt_blocks = entry.request.num_prompt_tokens // self._options.block_tokens
        of_prompt = entry.stored < prompt_blocks
        if of_prompt or n_new * self._options.block_tokens >= self._options.store_interval_tokens:
            self._store(entry, blocks_of(entry.request.request_id), n_blocks)

    def _store(self, entry: _Entry, blocks: Sequence[int], n_blocks: int) -> None:
        n_blocks = min(n_blocks, len(blocks))
        if not entry.may_store or n_blocks <= entry.stored:
            return
        block_tokens, request = self._options.block_tokens, entry.request
        first, last = entry.sent * block_tokens, n_blocks * block_tokens
        try:
            tokens = pack_tokens(list(request.all_token_ids[first:last]))
        except ValueError as error:
            _log.warning("request not stored", request=request.request_id, reason=str(error))
            entry.may_store = False
            return
        hints = entry.ask.hints
        if entry.is_finished:
            n_answer = max(0, len(request.all_token_ids) - request.num_prompt_tokens)
            hints = msgspec.structs.replace(hints, output_tokens=n_answer)
        self._n_orders += 1
        order = StoreOrder(
            number=self._n_orders,
            request_id=request.request_id,
            tenant=entry.ask.tenant,
            extras=entry.ask.extras,
            first_token=first,
            tokens=tokens,
            blocks=tuple(blocks[:n_blocks]),
            hints=hints,
        )
        self._stores.append(order)
        self._on_store(order, request)
        entry.stored = entry.sent = n_blocks
        entry.has_orders = True


def _n_before(order: LoadOrder, bad_blocks: Collection[int]) -> int:
    for index, block in enumerate(order.targets):
        if block in bad_blocks:
            return index
    return len(order.targets)
