"""Which node should have a prompt: all of them, by expected time to first token. A decision over plain values.

Owns the ranking and its numbers. What a node would fetch and what it would compute is decided as the node itself
decides it, by :func:`tiered.estimate.plan.plan` with that node's own rates; where blocks are comes from the mirror.

Where a node has not measured a rate yet, the median of those that have is assumed, and said. Where nobody has, a
source costs nothing, as in the plan; without any engine's rate there is no time to expect, and nodes are ranked by
what they hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from statistics import median
from typing import Final

from coordinator.view.naming import NamedBlocks, scopes_of
from coordinator.view.spread import Holders, Spread
from tiered.estimate.plan import plan
from tiered.types import DrainState, NodeId, NodeRates, NodeView, Source, SourceRate

PREFILL: Final = "prefill"
PEERS: Final = "peers"
REDIS: Final = "redis"


@dataclass(frozen=True, slots=True)
class NodeRoute:
    """One node that could have the prompt: hot, peer and redis blocks it would use, and what is left to compute.

    expected_ttft_s: from the rates; None while no engine of the cluster has said how fast it computes. uncached_s: if
    it computed all. waiting_s: other fetches that come first there. assumed: rates that this node has not measured,
    so that the median of the others' was taken.
    """

    node: NodeView
    hot_blocks: int
    peer_blocks: int
    redis_blocks: int
    computed_tokens: int
    expected_ttft_s: float | None
    uncached_s: float | None
    waiting_s: float
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A node that cannot have it, and why."""

    node: NodeView
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """ranked: best first. unmeasured: rates that no node has measured."""

    ranked: tuple[NodeRoute, ...]
    refused: tuple[Refused, ...]
    unmeasured: tuple[str, ...]


def rank(
    nodes: Sequence[NodeView],
    holders: Holders,
    named: Sequence[NamedBlocks],
    *,
    n_tokens: int,
    limit: int = 1_000,
) -> Ranking:
    """named: the prompt in every scope of one model, at least one. n_tokens: of the whole prompt. limit: how many of
    the best are wanted; what cannot be among them is not planned in full.

    A node with several of the scopes, such as the ranks of one engine, is as slow as the slowest of them.
    """
    model = named[0].scope.model
    bits = {node.info.node: holders.bit(NodeId(node.info.node), node.epoch) for node in nodes if node.alive}
    prompts = {each.scope: Spread.of(each, holders, bits, n_tokens) for each in named}
    refused: list[Refused] = []
    could: list[tuple[NodeView, list[Spread]]] = []
    for node in nodes:
        theirs = [prompts[scope] for _, scope in scopes_of(node) if scope in prompts]
        reason = _why_not(node, model, has_engine=bool(theirs))
        if reason:
            refused.append(Refused(node, reason))
        else:
            could.append((node, theirs))
    medians = _Medians.of([node.stats.rates for node, _ in could])
    options = [_Option(node, theirs, bits[node.info.node], *medians.fill(node.stats.rates)) for node, theirs in could]
    seed = named[0].hashes[0] if named[0].hashes else b""
    ranked = sorted(_best(options, limit), key=lambda route: (_cost(route), _lot(route, seed)))[:limit]
    return Ranking(tuple(ranked), tuple(refused), medians.unmeasured)


@dataclass(frozen=True, slots=True)
class _Option:
    """A node that could have the prompt, with the rates to reckon with."""

    node: NodeView
    prompts: Sequence[Spread]
    bit: int
    rates: NodeRates
    assumed: tuple[str, ...]

    def at_least_s(self) -> float:
        """No plan is quicker; 0 where nothing is known."""
        rates = self.rates
        if rates.prefill_tokens_per_s <= 0:
            return 0.0
        return max(prompt.at_least_s(self.bit, rates) for prompt in self.prompts) * (1 - 1e-9)

    def route(self) -> NodeRoute:
        routes = [_route(self.node, prompt, self.bit, self.rates, self.assumed) for prompt in self.prompts]
        return routes[0] if len(routes) == 1 else max(routes, key=_cost)


def _best(options: Sequence[_Option], limit: int) -> Iterator[NodeRoute]:
    """All that may be among the best ``limit``, and some more."""
    bounds = sorted(((option.at_least_s(), index) for index, option in enumerate(options)))
    slowest: list[float] = []  # heap, negated: the times of the best so far
    for at_least_s, index in bounds:
        if len(slowest) >= limit and at_least_s > -slowest[0]:
            return
        route = options[index].route()
        heappush(slowest, -_cost(route)[0])
        if len(slowest) > limit:
            heappop(slowest)
        yield route


def _why_not(node: NodeView, model: str, *, has_engine: bool) -> str:
    """Why a node cannot have the prompt; empty if it can."""
    if not node.alive:
        return "its lease has lapsed"
    if node.stats.drain.state is not DrainState.NONE:
        return f"it is {node.stats.drain.state}"
    return "" if has_engine else f"no engine of model {model} is attached"


def _route(node: NodeView, prompt: Spread, bit: int, rates: NodeRates, assumed: tuple[str, ...]) -> NodeRoute:
    layout = prompt.scope.layout
    hot_blocks = prompt.hot.get(bit, 0)
    n_left = max(0, prompt.n_tokens - hot_blocks * layout.block_tokens)
    made = plan(
        prompt.pieces(bit, hot_blocks),
        n_tokens=n_left,
        block_tokens=layout.block_tokens,
        block_bytes=layout.block_bytes,
        rates={Source.PEER: rates.peers, Source.REDIS: rates.redis},
        busy_s={Source.PEER: rates.waiting_s, Source.REDIS: rates.waiting_s},
        prefill_tokens_per_s=rates.prefill_tokens_per_s,
    )
    fetched = dict.fromkeys((Source.PEER, Source.REDIS), 0)
    for source, n_blocks in made.fetched:
        fetched[source] += n_blocks
    known = rates.prefill_tokens_per_s > 0
    return NodeRoute(
        node=node,
        hot_blocks=hot_blocks,
        peer_blocks=fetched[Source.PEER],
        redis_blocks=fetched[Source.REDIS],
        computed_tokens=max(0, n_left - made.n_blocks * layout.block_tokens),
        expected_ttft_s=made.ttft_s,
        uncached_s=prompt.n_tokens / rates.prefill_tokens_per_s if known else None,
        waiting_s=rates.waiting_s,
        assumed=assumed,
    )


@dataclass(frozen=True, slots=True)
class _Medians:
    """What to assume of a node that has not measured something: 0 where nobody has."""

    prefill_tokens_per_s: float
    peers: SourceRate
    redis: SourceRate

    @staticmethod
    def of(every: Sequence[NodeRates]) -> _Medians:
        prefills = [of.prefill_tokens_per_s for of in every if of.prefill_tokens_per_s > 0]
        return _Medians(
            median(prefills) if prefills else 0.0,
            _median_rate([of.peers for of in every]),
            _median_rate([of.redis for of in every]),
        )

    @property
    def unmeasured(self) -> tuple[str, ...]:
        known = {
            PREFILL: self.prefill_tokens_per_s,
            PEERS: self.peers.bytes_per_s,
            REDIS: self.redis.bytes_per_s,
        }
        return tuple(name for name, value in known.items() if value <= 0)

    def fill(self, own: NodeRates) -> tuple[NodeRates, tuple[str, ...]]:
        """The node's rates with what it lacks, and what that was."""
        lacks = []
        if own.prefill_tokens_per_s <= 0 < self.prefill_tokens_per_s:
            lacks.append(PREFILL)
        if own.peers.bytes_per_s <= 0 < self.peers.bytes_per_s:
            lacks.append(PEERS)
        if own.redis.bytes_per_s <= 0 < self.redis.bytes_per_s:
            lacks.append(REDIS)
        if not lacks:
            return own, ()
        filled = NodeRates(
            peers=self.peers if PEERS in lacks else own.peers,
            redis=self.redis if REDIS in lacks else own.redis,
            prefill_tokens_per_s=self.prefill_tokens_per_s if PREFILL in lacks else own.prefill_tokens_per_s,
            waiting_s=own.waiting_s,
        )
        return filled, tuple(lacks)


def _median_rate(rates: Sequence[SourceRate]) -> SourceRate:
    measured = [rate for rate in rates if rate.bytes_per_s > 0]
    if not measured:
        return SourceRate()
    return SourceRate(
        latency_s=median(rate.latency_s for rate in measured),
        bytes_per_s=median(rate.bytes_per_s for rate in measured),
    )


def _cost(route: NodeRoute) -> tuple[float, int, int, float]:
    """The time, then what has to be computed, then what has to be fetched, then who waits."""
    ttft_s = 0.0 if route.expected_ttft_s is None else route.expected_ttft_s
    return ttft_s, route.computed_tokens, route.peer_blocks + route.redis_blocks, route.waiting_s


def _lot(route: NodeRoute, seed: bytes) -> bytes:
    """Orders nodes that are alike in every number. seed: of the prompt's beginning, so that prompts that begin alike
    go to one node, and others are spread over all."""
    return blake2b(route.node.info.node.encode(), digest_size=8, key=seed).digest()
