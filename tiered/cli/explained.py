"""What the coordinator answers about one block, and about what happened of late; and how a person sees it.

Owns those records and their lines. It calls nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tiered.cli.output import human_bytes, human_count


class Event(msgspec.Struct, frozen=True):
    """where: the node that remembers it, or redis. block: None where it had no name yet."""

    at: datetime
    where: str
    what: str
    block: str | None
    tenant: str
    tier: str
    blocks: int
    sentence: str
    detail: dict[str, int | float | str]


class Silent(msgspec.Struct, frozen=True):
    who: str
    reason: str


class OnNode(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    state: str
    announced: bool
    tenants: list[str]
    hits: int
    pins: int
    depth: int
    idle_uses: int | None


class InRedis(msgspec.Struct, frozen=True):
    bytes: int
    tenants: list[str]
    depth: int
    idle_s: float
    pinned_for_s: float


class Ended(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    reason: str


class BlockWhy(msgspec.Struct, frozen=True):
    """Where a block is, and its history, oldest first."""

    hash: str
    nodes: list[OnNode]
    redis: InRedis | None
    ended_owners: list[Ended]
    silent: list[Silent]
    history: list[Event]
    forgotten: int | None
    note: str


class Evictions(msgspec.Struct, frozen=True):
    """after: what to ask for more after."""

    events: list[Event]
    after: str
    silent: list[Silent]


def place_lines(block: BlockWhy) -> list[str]:
    """Where it is now, a line for each place."""
    lines = [_node_line(node) for node in block.nodes]
    redis = block.redis
    if redis is not None:
        pinned = f", pinned for {redis.pinned_for_s:.0f} s more" if redis.pinned_for_s else ""
        lines.append(
            f"redis: {human_bytes(redis.bytes)}, of {', '.join(redis.tenants)}, depth {redis.depth}, unused for "
            f"{redis.idle_s:.1f} s{pinned}"
        )
    lines += [f"{ended.node}, epoch {ended.epoch}: does not count, {ended.reason}" for ended in block.ended_owners]
    return lines or ["nowhere"]


def event_line(event: Event, *, with_block: bool) -> str:
    at = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    block = f"{(event.block or '-')[:16]:<16}  " if with_block else ""
    return f"{at}  {event.where:<10}  {block}{event.sentence}"


def silent_lines(silent: Sequence[Silent]) -> list[str]:
    return [f"no answer from {each.who}: {each.reason}" for each in silent]


def _node_line(node: OnNode) -> str:
    if node.state == "absent":
        return f"{node.node}: absent, though the directory says that it has it"
    if node.state == "unknown":
        return f"{node.node}: the directory says that it has it; it gave no answer"
    idle = "" if node.idle_uses is None else f", unused for {human_count(node.idle_uses)} uses"
    hidden = "" if node.announced else ", not announced yet"
    return (
        f"{node.node}: {node.state}{hidden}, of {', '.join(node.tenants)}, depth {node.depth}, "
        f"hits: {human_count(node.hits)}, pins: {human_count(node.pins)}{idle}"
    )
