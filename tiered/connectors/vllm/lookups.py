"""Asks the worker beside us what of a prompt is cached and has it brought up, in a few threads of its own.

The scheduler may not wait, so it submits a lookup and looks at it again in its next step. What a lookup promises is
hot and pinned, in the pools of all of the engine's shards; of several shards the shortest run counts. A lookup that
nobody wants any more gives its pins back, whenever it comes to an end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tiered.client.port import Chain, Loaded, Match
from tiered.connectors.vllm.asks import Ask
from tiered.connectors.vllm.orders import PinnedBlocks, Shard
from tiered.connectors.vllm.tally import Tally
from tiered.hashing.chain import Extras
from tiered.log import get_logger
from tiered.types import NO_HINTS, Hints, Source, TenantId

QUEUE_MAX: Final = 1_024
"""Lookups that wait for a thread; one more is answered "nothing" at once."""

JOIN_S: Final = 2.0

_log = get_logger("tiered.connectors.vllm")


class Client(Protocol):
    """What is used of a RemoteClient: one request at a time."""

    @property
    def attached(self) -> bool: ...

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain: ...

    def match_chain(self, chain: Chain, *, hints: Hints = NO_HINTS, is_counted: bool = True) -> Match: ...

    def load(self, match: Match, *, deadline_s: float) -> Loaded: ...

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool: ...

    def close(self) -> None: ...


Clients = Mapping[Shard, Client]


@dataclass(frozen=True, slots=True)
class Promise:
    """The first ``len(sources)`` blocks of a sequence can be had. sources: of the first shard; made_at: see time."""

    sources: tuple[Source, ...] = ()
    shards: Mapping[Shard, PinnedBlocks] = field(default_factory=dict)
    made_at: float = 0.0

    @property
    def n_blocks(self) -> int:
        return len(self.sources)


@dataclass(slots=True, eq=False)
class Lookup:
    """One question, and its answer once ``answered`` is set. is_fetching: known to be cached, being brought up.
    is_given_up: it took longer than its request would wait.
    """

    ask: Ask
    tokens: Sequence[int]
    is_counted: bool
    asked_at: float
    answered: threading.Event = field(default_factory=threading.Event)
    is_fetching: bool = False
    is_given_up: bool = False
    promise: Promise = field(default_factory=Promise)
    _settled: tuple[int, int] | None = None
    _pins: tuple[_Lane, Mapping[Shard, Match]] | None = None


class Lookups:
    """``n_threads`` lanes, each with a client of every shard, made by ``clients_of``."""

    def __init__(
        self,
        clients_of: Callable[[], Clients],
        *,
        n_threads: int,
        load_timeout_s: float,
        tally: Tally,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_timeout_s = load_timeout_s
        self._tally = tally
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Lookup] = deque()
        self._closed = False
        self._lanes = [_Lane(clients_of()) for _ in range(n_threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"tiered-lookup-{index}", daemon=True)
            for index, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ask: Ask, tokens: Sequence[int], *, is_counted: bool) -> Lookup | None:
        """None when there is nobody to ask, too many ask already, or a worker keeps somebody waiting who gave up."""
        lookup = Lookup(ask, tokens, is_counted, self._clock())
        with self._changed:
            if self._closed or len(self._waiting) >= QUEUE_MAX or not any(lane.attached for lane in self._lanes):
                return None
            if any(lane.is_silent() for lane in self._lanes):
                return None
            self._waiting.append(lookup)
            self._changed.notify_all()  # a lane whose worker is away would sleep on
        return lookup

    def settle(self, lookup: Lookup, *, used_tokens: int, own_tokens: int) -> None:
        """The lookup has served, or is not wanted any more: its pins end, now or once it is answered."""
        with self._changed:
            lookup._settled = used_tokens, own_tokens
            if lookup.is_given_up and not lookup.is_fetching:  # a slow fetch is no sign of a silent worker
                for lane in self._lanes:
                    lane.is_doubtful = lane.is_doubtful or lane.current is lookup
            if lookup.answered.is_set():
                self._give_back(lookup)
            elif lookup in self._waiting:
                self._waiting.remove(lookup)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        ends_at = self._clock() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, ends_at - self._clock()))
        for lane in self._lanes:  # their connections end, and with them all pins
            for client in lane.clients.values():
                client.close()

    def _give_back(self, lookup: Lookup) -> None:
        """The condition is held. The lane does it: a client serves one request at a time."""
        if lookup._pins is not None and lookup._settled is not None:
            lane, matches = lookup._pins
            lookup._pins = None
            lane.releases.append((matches, *lookup._settled))
            self._changed.notify_all()

    def _run(self, lane: _Lane) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or lane.releases or (self._waiting and lane.attached))
                if self._closed:
                    return
                release = lane.releases.popleft() if lane.releases else None
                lookup = self._waiting.popleft() if release is None else None
                lane.current = lookup
            if release is not None:
                self._release(lane, *release)
            elif lookup is not None:
                self._answer(lane, lookup)

    def _answer(self, lane: _Lane, lookup: Lookup) -> None:
        matches: dict[Shard, Match] = {}
        promise = Promise()
        try:
            promise = self._look_up(lane, lookup, matches)
        except ValueError as error:  # a token that is none
            _log.warning("request not looked up", reason=str(error))
        except Exception:  # a lookup that ends without an answer would keep its request waiting
            _log.exception("lookup failed")
        with self._changed:
            lookup.promise = promise
            lookup._pins = lane, matches
            lookup.answered.set()
            lane.current = None
            self._give_back(lookup)
        self._tally.looked_up(self._clock() - lookup.asked_at)

    def _look_up(self, lane: _Lane, lookup: Lookup, matches: dict[Shard, Match]) -> Promise:
        """Fills ``matches`` as pins are taken."""
        ask, n_tokens = lookup.ask, len(lookup.tokens)
        computed = lookup.tokens[:-1]  # the engine has to compute the last token to go on from it
        for shard, client in lane.clients.items():
            chain = replace(client.chain(computed, tenant=ask.tenant, extras=ask.extras), n_tokens=n_tokens)
            is_first = not matches
            is_counted = lookup.is_counted and is_first
            matches[shard] = client.match_chain(chain, hints=ask.hints, is_counted=is_counted)
            if not matches[shard].n_blocks:
                return Promise()
        lookup.is_fetching = any(match.n_peer or match.n_redis for match in matches.values())
        loaded = {shard: self._load(lane.clients[shard], match) for shard, match in matches.items()}
        n_blocks = min(len(found.block_ids) for found in loaded.values())
        shards: dict[Shard, PinnedBlocks] = {}
        for shard, found in loaded.items():
            voucher = matches[shard].voucher
            if voucher is None:
                return Promise()
            shards[shard] = PinnedBlocks(
                voucher, tuple(found.block_ids[:n_blocks]), tuple(found.checksums[:n_blocks])
            )
        sources = next(iter(loaded.values())).sources[:n_blocks]
        return Promise(tuple(sources), shards, self._clock())

    def _load(self, client: Client, match: Match) -> Loaded:
        if not match.n_peer and not match.n_redis:
            return Loaded(match.block_ids, [Source.HOT] * len(match.block_ids), match.checksums)
        return client.load(match, deadline_s=self._load_timeout_s)

    def _release(self, lane: _Lane, matches: Mapping[Shard, Match], used_tokens: int, own_tokens: int) -> None:
        for shard, match in matches.items():
            try:
                lane.clients[shard].release(match, used_tokens=used_tokens, own_tokens=own_tokens)
            except Exception:  # the lane serves the other requests; these pins end by themselves
                _log.exception("pins not given back")


@dataclass(slots=True, eq=False)
class _Lane:
    clients: Clients
    releases: deque[tuple[Mapping[Shard, Match], int, int]] = field(default_factory=deque)
    current: Lookup | None = None
    is_doubtful: bool = False

    @property
    def attached(self) -> bool:
        return all(client.attached for client in self.clients.values())

    def is_silent(self) -> bool:
        """Whether it waits for an answer that came too late already, or has lost its worker over that: one request
        finds out for all. It ends with the answer, or once a worker has let the lane in again."""
        if self.is_doubtful and self.current is None and self.attached:
            self.is_doubtful = False
        return self.is_doubtful
