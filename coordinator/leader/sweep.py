"""Which lives of which nodes have ended, and what remains to be cleared after them. Keeps I8.

Decides and applies nothing: the shared state and the clock belong to the runner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tiered.cluster.membership import UnreadNode
from tiered.types import Epoch, NodeId, NodeView

EMPTY_ROUNDS: Final = 15
"""Rounds in a row that find nothing left of an ended life before it is forgotten. A fenced worker may still have an
announcement under way, and what that leaves behind is listed nowhere; half a minute outlasts every deadline."""


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One node from one join to the next."""

    node: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Lives to retire, and lives whose directory entries are to be removed; both in a fixed order.

    A life is swept only once it is retired: Redis has the last word on whether its lease has really lapsed, and a
    worker that renewed at the last moment must not lose its entries.
    """

    retire: tuple[Life, ...]
    sweep: tuple[Life, ...]


Seen = Mapping[Life, int]
"""Lives seen so far that may have entries -> rounds in a row that found none after the life had ended."""


def plan_sweep(nodes: Iterable[NodeView], seen: Seen, unread: Collection[UnreadNode] = ()) -> SweepPlan:
    """Decide from the members as listed and the lives remembered from earlier rounds.

    A lapsed lease ends a life. So does a rejoin: the node is then alive under a newer epoch, and its earlier
    life is listed nowhere but remembered here. A life that another coordinator retired is swept all the same,
    since that one may have stopped half-way; sweeping what is empty does nothing. A life of which we cannot read
    all, such as one of a later release, is as alive as any other; where not even its epoch can be read, none of that
    node's is known to have ended.
    """
    listed = _lives(nodes, unread)
    unknown = {one.node for one in unread if one.epoch is None}
    lapsed = {life for life, alive in listed.items() if not alive}
    ended = {life for life in seen.keys() - listed.keys() if life.node not in unknown}
    return SweepPlan(retire=tuple(sorted(lapsed)), sweep=tuple(sorted(ended)))


def note(seen: Seen, nodes: Iterable[NodeView], unread: Collection[UnreadNode] = ()) -> Seen:
    """Remember every life that is listed, for the day when it no longer is."""
    return dict.fromkeys(_lives(nodes, unread), 0) | dict(seen)


def settle(seen: Seen, *, swept: Collection[Life], empty: Collection[Life]) -> Seen:
    """What to remember after a round that swept some ended lives and found some of those to have no entries."""
    rounds = dict(seen) | {life: seen.get(life, 0) + 1 if life in empty else 0 for life in swept}
    return {life: n_empty for life, n_empty in rounds.items() if n_empty < EMPTY_ROUNDS}


def _lives(nodes: Iterable[NodeView], unread: Iterable[UnreadNode]) -> dict[Life, bool]:
    """Whether each one's lease runs."""
    known = {Life(one.node, one.epoch): one.is_alive for one in unread if one.epoch is not None}
    return known | {Life(NodeId(node.info.node), node.epoch): node.alive for node in nodes}
