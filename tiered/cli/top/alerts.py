"""What needs a person's eye: a decision over samples, without memory of its own and without words of blame.

Everything here must be true of the numbers on the same screen.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.cli.bodies import Node, Stats
from tiered.cli.output import human_count
from tiered.cli.top.flow import Flow
from tiered.cli.top.sample import Sample
from tiered.types import DrainState, TokenCounts

NAMED_MAX: Final = 3
"""Tenants that one line names; the others are a number."""

GONE_SHOWN_S: Final = 300.0
"""A node that left the list is told of for so long; it may have been meant to go."""


class Level(enum.IntEnum):
    NOTE = 0
    """Worth knowing; nothing is wrong."""
    WARNING = 1
    """Somebody gets less than was asked for."""
    ALARM = 2
    """Something is broken."""


@dataclass(frozen=True, slots=True)
class Alert:
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A node that was listed and is no more. drained: it had moved what it had."""

    node: str
    at: float
    drained: bool


def alerts(sample: Sample, flow: Flow, *, gone: Mapping[str, Gone], led_before: bool, now: float) -> list[Alert]:
    """The gravest first. led_before: whether a leader was ever seen."""
    found = [
        *_of_the_whole(sample, led_before=led_before),
        *_of_nodes(sample.nodes),
        *_of_books(sample.stats),
        *_of_refusals(flow),
        *_of_gone(gone, now),
    ]
    return sorted(found, key=lambda alert: -alert.level)


def note_gone(before: Sample, after: Sample, gone: Mapping[str, Gone], *, now: float) -> dict[str, Gone]:
    """Which nodes have left the list; one that is back is not gone."""
    here = {node.node for node in after.nodes}
    left = {
        node.node: Gone(node.node, now, drained=node.drain.state is DrainState.DRAINED)
        for node in before.nodes
        if node.node not in here
    }
    return {name: each for name, each in {**gone, **left}.items() if name not in here}


def _of_the_whole(sample: Sample, *, led_before: bool) -> Iterator[Alert]:
    stats = sample.stats
    if stats.stale:
        yield Alert(
            Level.ALARM, f"The coordinator cannot read Redis; these are its numbers of {stats.age_s:.0f} s ago."
        )
    if not any(node.alive for node in sample.nodes):
        what = "No worker is alive" if sample.nodes else "No worker has joined"
        yield Alert(Level.ALARM, f"{what}; start one with `tiered-worker`, or a cluster with `tiered up`.")
    if led_before and stats.leader is None and not stats.stale:
        yield Alert(Level.ALARM, "No coordinator leads: nothing is swept, audited or dealt out until one does.")


def _of_nodes(nodes: Sequence[Node]) -> Iterator[Alert]:
    for node in nodes:
        if not node.alive:
            yield Alert(Level.ALARM, f"{node.node} is lost: the lease of its epoch {node.epoch} has lapsed.")
        elif node.traffic.breaker_open:
            yield Alert(Level.ALARM, f"{node.node} leaves Redis alone after repeated failures: its breaker is open.")
        if node.alive and node.drain.state is DrainState.DRAINING:
            stuck = f", {human_count(node.drain.stuck_blocks)} refused by Redis" if node.drain.stuck_blocks else ""
            level = Level.WARNING if stuck else Level.NOTE
            yield Alert(level, f"{node.node} drains: {human_count(node.drain.left_blocks)} blocks left{stuck}.")


def _of_books(stats: Stats) -> Iterator[Alert]:
    unequal = [name for name, tokens in sorted(stats.by_tenant.items()) if not adds_up(tokens)]
    if unequal:
        yield Alert(
            Level.ALARM,
            f"The tokens of {_named(unequal)} do not add up: asked is not hot + peer + redis + missed.",
        )
    if not adds_up(stats.tokens) or stats.tokens.asked != sum(each.asked for each in stats.by_tenant.values()):
        yield Alert(Level.ALARM, "The cluster's tokens are not the sum over its tenants.")
    if stats.redis_conserved is False:
        yield Alert(
            Level.ALARM, "The Redis tier's books differ from the bytes in Redis; `tiered check` tells by how much."
        )


def _of_refusals(flow: Flow) -> Iterator[Alert]:
    refused = {name: n for name, of in flow.tenants.items() if (n := of.pressure.refused_blocks)}
    if refused:
        most_first = sorted(refused, key=lambda name: (-refused[name], name))
        total = human_count(sum(refused.values()))
        yield Alert(
            Level.WARNING,
            f"{total} blocks were refused room in the last {flow.seconds:.1f} s: {_named(most_first)}.",
        )


def _of_gone(gone: Mapping[str, Gone], now: float) -> Iterator[Alert]:
    for each in gone.values():
        age_s = now - each.at
        if age_s <= GONE_SHOWN_S:
            level, how = (Level.NOTE, "drained, and left") if each.drained else (Level.WARNING, "left the cluster")
            yield Alert(level, f"{each.node} {how} {age_s:.0f} s ago.")


def adds_up(tokens: TokenCounts) -> bool:
    return tokens.asked == tokens.hot + tokens.peer + tokens.redis + tokens.missed


def _named(tenants: Sequence[str]) -> str:
    more = len(tenants) - NAMED_MAX
    named = ", ".join(tenants[:NAMED_MAX])
    return f"{named} and {human_count(more)} more" if more > 0 else named
