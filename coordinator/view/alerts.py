"""What needs a person's eye: a decision over the view, the last minutes and the last audit.

Owns what is an alert, how grave it is, and its words. It asks nobody, and blames nobody: who reads it may look.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from coordinator.view.history import Gone, Point, Went
from coordinator.view.snapshot import NO_TOKENS, ClusterView
from tiered.types import DrainState, TenantId, TokenCounts

NAMED_MAX: Final = 3
"""Tenants that one line names; the others are a number."""

REFUSALS_S: Final = 60.0


class Level(enum.StrEnum):
    """alarm: something is broken. warning: somebody gets less than was asked for. note: worth knowing."""

    ALARM = "alarm"
    WARNING = "warning"
    NOTE = "note"


_GRAVITY: Final = {level: place for place, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Alert:
    """about: what it is of, one word for machines. age_s: since it happened, where that is known."""

    level: Level
    about: str
    text: str
    node: str | None = None
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is known besides the view. conserved: of the last audit, None where it cannot say. leader_known: whether
    anybody leads; None where it is not asked. corrupt: ages of the blocks found bad of late."""

    points: Sequence[Point] = ()
    gone: Sequence[Gone] = ()
    conserved: bool | None = None
    leader_known: bool | None = None
    corrupt_ages_s: Sequence[float] = ()


def alerts(view: ClusterView, found: Found, *, now: float, tenant: TenantId | None = None) -> list[Alert]:
    """The gravest first. tenant: who asks, if it is one; the view is then its own."""
    told = [
        *_of_the_whole(view, found, now),
        *_of_nodes(view, found.gone, now),
        *_of_books(view, found),
        *_of_bad_blocks(found),
        *_of_refusals(found.points, now, tenant),
    ]
    return sorted(told, key=lambda alert: _GRAVITY[alert.level])


def _of_the_whole(view: ClusterView, found: Found, now: float) -> Iterator[Alert]:
    if view.stale:
        age_s = view.age_s(now)
        yield Alert(Level.ALARM, "stale", f"{view.reason}. The numbers are those read before.", age_s=age_s)
        return
    if found.leader_known is False:
        yield Alert(
            Level.ALARM, "leader", "No coordinator leads: nothing is swept, audited or dealt out until one does."
        )
    if view.alive:
        return
    if view.nodes or found.gone:
        yield Alert(Level.ALARM, "workers", "No worker is alive: engines go on without a cache until one is.")
    else:  # no fault, but nobody should wait for hits
        yield Alert(Level.NOTE, "workers", "No worker has joined; start one with `tiered-worker`.")


def _of_nodes(view: ClusterView, gone: Sequence[Gone], now: float) -> Iterator[Alert]:
    for each in gone:
        age_s = max(0.0, now - each.at)
        if each.how is Went.DRAINED:
            yield Alert(Level.NOTE, "left", f"{each.node} was drained and left.", each.node, age_s)
        elif each.how is Went.LEFT:
            yield Alert(Level.NOTE, "left", f"{each.node} stopped in order and left.", each.node, age_s)
        else:
            text = f"Worker {each.node} is lost: the lease of its epoch {each.epoch} ended and it has not come back."
            yield Alert(Level.ALARM, "lost", text, each.node, age_s)
    told = {each.node for each in gone}
    for node in view.nodes:
        name, drain = node.info.node, node.stats.drain
        if not node.alive:
            if name not in told:
                text = f"Worker {name} is lost: the lease of its epoch {node.epoch} has lapsed."
                yield Alert(Level.ALARM, "lost", text, name)
            continue
        if node.stats.traffic.breaker_open:
            text = f"{name} leaves Redis alone after repeated failures: its breaker is open."
            yield Alert(Level.ALARM, "breaker", text, name)
        if drain.state is DrainState.DRAINING and drain.stuck_blocks:
            text = f"{name} cannot drain: Redis does not take {drain.stuck_blocks:,} of {drain.left_blocks:,} blocks."
            yield Alert(Level.WARNING, "drain", text, name)
        elif drain.state is DrainState.DRAINING:
            yield Alert(Level.NOTE, "drain", f"{name} drains: {drain.left_blocks:,} blocks left.", name)


def _of_books(view: ClusterView, found: Found) -> Iterator[Alert]:
    if found.conserved is False:
        yield Alert(
            Level.ALARM,
            "books",
            "The books of the Redis tier differ from the bytes in Redis; `tiered check` tells by how much.",
        )
    unequal = [
        tenant.policy.tenant
        for tenant in view.tenants
        if tenant.tokens.asked != tenant.tokens.hot + tenant.tokens.peer + tenant.tokens.redis + tenant.tokens.missed
    ]
    if unequal:
        yield Alert(Level.ALARM, "books", f"The tokens found and missed of {_named(unequal)} are not those asked.")
    if view.tokens != reduce(TokenCounts.plus, (tenant.tokens for tenant in view.tenants), NO_TOKENS):
        yield Alert(Level.ALARM, "books", "The tokens of the cluster are not the sum over its tenants.")


def _of_bad_blocks(found: Found) -> Iterator[Alert]:
    ages = found.corrupt_ages_s
    if ages:
        n = len(ages)
        text = f"{n} {'copy was' if n == 1 else 'copies were'} found corrupt and not used; see Evictions."
        yield Alert(Level.ALARM, "corrupt", text, age_s=min(ages))


def _of_refusals(points: Sequence[Point], now: float, tenant: TenantId | None) -> Iterator[Alert]:
    refused: dict[str, int] = {}
    newest = 0.0
    for point in points:
        if now - point.at > REFUSALS_S:
            continue
        for name, n in _seen(point.refused_blocks, tenant):
            refused[name] = refused.get(name, 0) + n
            newest = max(newest, point.at)
    if refused:
        n = sum(refused.values())
        most_first = sorted(refused, key=lambda name: (-refused[name], name))
        what = "block was" if n == 1 else "blocks were"
        text = f"{n:,} {what} refused room in the last minute: {_named(most_first)}."
        yield Alert(Level.WARNING, "refused", text, age_s=max(0.0, now - newest))


def _seen(refused: Mapping[TenantId, int], tenant: TenantId | None) -> Iterator[tuple[str, int]]:
    for name, n in refused.items():
        if tenant in (None, name):
            yield name, n


def _named(tenants: Sequence[str]) -> str:
    more = len(tenants) - NAMED_MAX
    named = ", ".join(tenants[:NAMED_MAX])
    return f"{named} and {more:,} more" if more > 0 else named
