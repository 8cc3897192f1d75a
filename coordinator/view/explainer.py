"""Why a block is where it is: what the nodes remember and hold, and what Redis does, put together.

Owns whom to ask, and what of the answers a tenant may see. Each source that does not answer is named. Times are each
machine's own: between machines their order is as good as their clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from coordinator.view.cursor import Reached
from coordinator.view.nodes_client import Heard, NodesClient
from coordinator.view.sentences import ANOTHER
from coordinator.view.snapshot import ClusterView
from tiered.cluster.why import BooksWhy, InRedis
from tiered.errors import TierError
from tiered.hashing.chain import join_hashes
from tiered.types import BlockHash, BlockHere, Happening, NodeId, NodeView, Owner, TenantId, Told
from tiered.wire.messages import EXPLAINED_EVENTS_MAX, Explain, Recent

REDIS = "redis"
"""Where Redis is named among nodes."""

_OTHERS = (
    "for_used",
    "for_limit",
    "for_reserved",
    "for_weight",
    "tier_used",
    "capacity",
    "free_blocks",
    "pool_blocks",
    "users_left",
    "idle",
)
"""Details that say how others stand, and how much they do."""

HIDDEN = -1
"""In place of a count that a tenant may not see."""


@dataclass(frozen=True, slots=True)
class Event:
    """where: the node that remembers it, or REDIS."""

    at: float
    where: str
    happening: Happening


@dataclass(frozen=True, slots=True)
class Silent:
    """A source that has given no answer, and why."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class OnNode:
    """here: None where the node does not hold the block, or gave no answer. announced: the directory says that it
    does."""

    node: NodeView
    announced: bool
    here: BlockHere | None


@dataclass(frozen=True, slots=True)
class Ended:
    """An owner in the directory that does not count."""

    owner: Owner
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """history: oldest first. in_redis: None if Redis gave no answer, or has nothing that may be seen. forgotten:
    events that nodes remember no more, of any block."""

    nodes: tuple[OnNode, ...]
    in_redis: InRedis | None
    ended: tuple[Ended, ...]
    history: tuple[Event, ...]
    silent: tuple[Silent, ...]
    forgotten: int

    @property
    def is_anywhere(self) -> bool:
        return bool(self.nodes or self.ended or (self.in_redis is not None and self.in_redis.is_stored))


class Explainer:
    """tenant: who asks, if it is one; it sees its own alone. Bounded by the clients' deadlines. Raises nothing."""

    def __init__(self, nodes: NodesClient, books: BooksWhy) -> None:
        self._nodes = nodes
        self._books = books

    def explain(self, view: ClusterView, block_hash: BlockHash, *, tenant: TenantId | None = None) -> Explanation:
        """One block: where it is now, and what happened to it."""
        question = Explain(join_hashes([block_hash]))
        heard = self._nodes.ask(view.alive, lambda _: question)
        silent = _silent(view, heard)
        events = _events(heard)
        found = InRedis()
        try:
            found = self._books.found(block_hash)
            events += [Event(told.at, REDIS, told.happening) for told in self._books.of_block(block_hash)]
        except TierError as error:
            silent.append(Silent(REDIS, str(error)))
        nodes = [_on_node(each, block_hash, found.owners) for each in heard]
        in_redis = found if found.is_stored else None
        if tenant is not None:
            nodes = [seen for each in nodes if (seen := _node_of(each, tenant)) is not None]
            in_redis = _redis_of(in_redis, tenant)
        return Explanation(
            nodes=tuple(each for each in nodes if each.announced or each.here is not None),
            in_redis=in_redis,
            ended=tuple(_ended(view, found.owners)) if tenant is None else (),
            history=tuple(_seen(events, tenant)),
            silent=tuple(silent),
            forgotten=HIDDEN if tenant else sum(each.told.lost for each in heard if each.told is not None),
        )

    def recent(
        self,
        view: ClusterView,
        *,
        node: str | None,
        of_tenant: str,
        what: Collection[str],
        after: Reached | None,
        n_max: int,
        tenant: TenantId | None,
    ) -> tuple[list[Event], Reached, list[Silent]]:
        """The newest events of all sources, oldest first; or, after a place, what came since, at most ``n_max`` of
        each. node: of that one alone, or of REDIS. of_tenant, what: of those alone, where given."""
        of_tenant = tenant or of_tenant
        asked = [each for each in view.alive if node in (None, each.info.node)]
        places = {} if after is None else dict(after.nodes)
        heard = self._nodes.ask(
            asked, lambda each: Recent(places.get(each.info.node, 0), n_max, of_tenant, tuple(sorted(what)))
        )
        silent = [Silent(each.node.info.node, each.reason) for each in heard if each.told is None]
        events = _events(heard)
        reached = Reached(
            nodes=places | {each.node.info.node: each.told.last_seq for each in heard if each.told is not None},
            redis=() if after is None else after.redis,
        )
        if node in (None, REDIS):
            try:
                told, place = self._told_by_books(after, n_max, is_filtered=bool(of_tenant or what))
                reached = msgspec.structs.replace(reached, redis=place)
                events += [Event(each.at, REDIS, each.happening) for each in told if _is_of(each, of_tenant, what)]
            except TierError as error:
                silent.append(Silent(REDIS, str(error)))
        found = _seen(events, tenant)
        return (found if after is not None else found[-n_max:]), reached, silent

    def close(self) -> None:
        self._nodes.close()

    def _told_by_books(
        self, after: Reached | None, n_max: int, *, is_filtered: bool
    ) -> tuple[list[Told], tuple[tuple[int, int], ...]]:
        if after is not None and after.redis:
            return self._books.after(after.redis)
        return self._books.newest(EXPLAINED_EVENTS_MAX if is_filtered else n_max)


def _events(heard: Sequence[Heard]) -> list[Event]:
    return [
        Event(told.at, each.node.info.node, told.happening)
        for each in heard
        if each.told is not None
        for told in each.told.events
    ]


def _silent(view: ClusterView, heard: Sequence[Heard]) -> list[Silent]:
    """Who could have known more: those that did not answer, and those whose lease has lapsed."""
    lapsed = [
        Silent(node.info.node, "its lease has lapsed, so it was not asked") for node in view.nodes if not node.alive
    ]
    return [*(Silent(each.node.info.node, each.reason) for each in heard if each.told is None), *lapsed]


def _on_node(heard: Heard, block_hash: BlockHash, owners: Sequence[Owner]) -> OnNode:
    blocks = () if heard.told is None else heard.told.blocks
    return OnNode(
        node=heard.node,
        announced=Owner(NodeId(heard.node.info.node), heard.node.epoch) in owners,
        here=next((block for block in blocks if block.block_hash == block_hash), None),
    )


def _ended(view: ClusterView, owners: Sequence[Owner]) -> list[Ended]:
    by_name = {node.info.node: node for node in view.nodes}
    ended = []
    for owner in owners:
        node = by_name.get(owner.node)
        if node is None:
            ended.append(Ended(owner, "no node of this name is a member now"))
        elif node.epoch != owner.epoch:
            ended.append(Ended(owner, f"that life has ended; epoch {node.epoch} of the node runs now"))
        elif not node.alive:
            ended.append(Ended(owner, "its lease has lapsed"))
    return ended


def _seen(events: Sequence[Event], tenant: TenantId | None) -> list[Event]:
    """In order of time; as far as the tenant may see, with nothing said of others."""
    in_order = sorted(events, key=lambda event: event.at)
    if tenant is None:
        return in_order
    return [
        Event(event.at, event.where, _without_others(event.happening, tenant))
        for event in in_order
        if event.happening.tenant == tenant
    ]


def _without_others(happening: Happening, tenant: TenantId) -> Happening:
    detail = {name: value for name, value in happening.detail.items() if name not in _OTHERS}
    if detail.get("for_tenant") not in (None, "", tenant):
        detail["for_tenant"] = ANOTHER
    return msgspec.structs.replace(happening, detail=detail)


def _node_of(on_node: OnNode, tenant: TenantId) -> OnNode | None:
    here = on_node.here
    if here is None or tenant not in here.tenants:
        return None
    own = msgspec.structs.replace(here, tenants=(str(tenant),), idle=HIDDEN)
    return OnNode(on_node.node, on_node.announced, own)


def _redis_of(found: InRedis | None, tenant: TenantId) -> InRedis | None:
    if found is None or tenant not in found.tenants:
        return None
    return InRedis(True, found.n_bytes, (tenant,), found.depth, found.idle_s, found.pinned_for_s)


def _is_of(told: Told, tenant: str, what: Collection[str]) -> bool:
    return (not tenant or told.happening.tenant == tenant) and (not what or told.happening.what in what)
