"""``tiered stats --watch``: the sums over the cluster again and again, for a terminal, a log or a program.

Owns how each of those is printed. It goes on while the coordinator is away, and says so; it ends by Ctrl-C, or when
nobody reads what it prints.
"""

from __future__ import annotations

import enum
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from tiered.cli.output import human_count, human_share
from tiered.cli.top.flow import found
from tiered.cli.top.picture import Picture, failed, first_picture, seen
from tiered.cli.top.sample import Sample
from tiered.cli.top.words import brief, cut, duration, per_second, short
from tiered.errors import ConfigError
from tiered.types import TokenCounts

EVERY_S: Final = 2.0

_TIERS: Final = ("hot", "peer", "redis", "missed")

_WIDE: Final = (24, 9, 14, 13, 13, 13, 13, 8)
_NARROW: Final = (17, 9, 9, 9, 9, 9, 9, 8)
"""Columns of the screen, the tenant's first; the narrow ones fit a terminal of 80."""

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Form(enum.Enum):
    SCREEN = enum.auto()
    """Redrawn in place, as far as it fits."""
    LINES = enum.auto()
    """One for each look, for people."""
    JSON = enum.auto()
    """One for each look, for programs."""


class Totals(Protocol):
    def totals(self) -> Sample: ...


def watch(
    cluster: Totals,
    *,
    every_s: float,
    form: Form,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Does not return. Errors: ConfigError if nobody answers the first time; BrokenPipeError; KeyboardInterrupt."""
    sample = cluster.totals()
    due = clock()
    picture = first_picture(sample, now=due)
    while True:
        _print(picture, form=form, every_s=every_s)
        due = max(due + every_s, clock())
        wait(max(0.0, due - clock()))
        try:
            after = cluster.totals()
        except ConfigError as error:
            following = failed(picture, brief(str(error)), now=clock())
        else:
            following = seen(picture, after, now=clock())
        if following.failure and not picture.failure and form is not Form.SCREEN:
            print(f"tiered: {following.failure}; asking again", file=sys.stderr, flush=True)
        picture = following


def json_line(picture: Picture, *, at: datetime) -> str:
    """last: what was counted since the line before; null in the first."""
    flow = picture.flow
    last = {"seconds": round(flow.seconds, 3), "tokens": flow.tokens} if flow.seconds else None
    return msgspec.json.encode({"at": at, "last": last, "stats": picture.sample.stats}).decode()


def text_line(picture: Picture, *, at: datetime) -> str:
    stats, flow = picture.sample.stats, picture.flow
    stale = f"; STALE, {duration(stats.age_s)} old" if stats.stale else ""
    shares = [f"{name} {human_share(getattr(flow.tokens, name), flow.tokens.asked)}" for name in _TIERS]
    return (
        f"{at.astimezone():%H:%M:%S}  asked {per_second(flow.per_s(flow.tokens.asked))}, {', '.join(shares)}; since "
        f"start {human_count(stats.tokens.asked)}, hit {human_share(found(stats.tokens), stats.tokens.asked)}; "
        f"{stats.nodes.alive} of {stats.nodes.known} nodes alive{stale}"
    )


def screen_lines(picture: Picture, *, every_s: float, width: int, height: int) -> list[str]:
    """The sum first, then those who asked for most of late, as many as fit."""
    stats, flow = picture.sample.stats, picture.flow
    lines = [f"{picture.sample.url}, every {every_s:g} s, {stats.nodes.alive} of {stats.nodes.known} nodes alive"]
    if picture.failure:
        lines.append(f"STALE, {duration(picture.age_s)} old: {picture.failure}; asking again")
    elif stats.stale:
        lines.append(f"STALE: the coordinator cannot read Redis; its numbers are {duration(stats.age_s)} old")
    widths = _WIDE if width >= sum(_WIDE) else _NARROW
    lines.append(_row(widths, "tenant", ("asked/s", "asked", *_TIERS, "hit")))
    lines.append(_token_row(widths, "all", stats.tokens, per_second(flow.per_s(flow.tokens.asked))))
    since = {name: flow.of_tenant(name).tokens.asked for name in stats.by_tenant}
    busiest = sorted(stats.by_tenant, key=lambda name: (-since[name], -stats.by_tenant[name].asked, name))
    room = max(0, height - len(lines))
    shown = busiest if len(busiest) <= room else busiest[: max(0, room - 1)]
    for name in shown:
        lines.append(_token_row(widths, name, stats.by_tenant[name], per_second(flow.per_s(since[name]))))
    if len(shown) < len(busiest):
        lines.append(f"and {human_count(len(busiest) - len(shown))} more")
    return [cut(line, width) for line in lines[:height]]


def _print(picture: Picture, *, form: Form, every_s: float) -> None:
    """Nothing new is printed where the lines before are the record, and no news came."""
    at = datetime.now(UTC)
    if form is Form.SCREEN:
        width, height = shutil.get_terminal_size()
        # Not the last column: terminals that have written there erase it with what would be right of it.
        lines = screen_lines(picture, every_s=every_s, width=max(1, width - 1), height=max(1, height - 1))
        sys.stdout.write(_HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _TO_SCREEN_END)
    elif not picture.failure:
        line = json_line(picture, at=at) if form is Form.JSON else text_line(picture, at=at)
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _token_row(widths: Sequence[int], name: str, tokens: TokenCounts, rate: str) -> str:
    """Counts are exact where there is room for them."""
    count = human_count if widths is _WIDE else short
    counts = [count(n) for n in (tokens.asked, tokens.hot, tokens.peer, tokens.redis, tokens.missed)]
    return _row(widths, name, [rate.removesuffix("/s"), *counts, human_share(found(tokens), tokens.asked)])


def _row(widths: Sequence[int], name: str, cells: Sequence[str]) -> str:
    first, *rest = widths
    return f"{cut(name, first):<{first}}" + "".join(f"{cell:>{n}}" for cell, n in zip(cells, rest, strict=True))
