"""``tiered capacity``: what more or less memory would buy each tenant, from what was looked up of late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.output import JsonFlag, human_bytes, print_json, print_table
from tiered.cli.sizing import TenantCapacity, TierRoom, WhatIf
from tiered.config import parse_bytes
from tiered.errors import ConfigError

TIERS: Final = {"hot": "hot tier", "redis": "Redis"}

POORLY_KNOWN: Final = 0.05
"""Prediction and measurement apart by more than this: the table says so."""

_COLUMNS: Final = (
    "tenant",
    "hot",
    "Redis",
    "hit now",
    "predicted",
    "tier",
    "change",
    "hit then",
    "points",
    "tokens/h",
)


def capacity_command(
    tenant: Annotated[
        str | None, typer.Argument(help="This tenant alone.", metavar="[TENANT]", show_default=False)
    ] = None,
    more: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="A change to look at, such as 10GiB, or -512MiB for less.", show_default=False
        ),
    ] = None,
    tier: Annotated[
        str | None, typer.Option(metavar="hot|redis", help="Of which tier; redis unless said.", show_default=False)
    ] = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Say what more memory would buy: hit ratio, tokens and prefill time gained, tenant by tenant."""
    with connect(coordinator) as client:
        found = client.capacity(urlencode(_question(tenant, more, tier)))
    if json:
        print_json(found)
        return
    drawn = [each for each in found.tenants if each.nodes]
    if drawn:
        print_table("", _COLUMNS, [row for each in drawn for row in capacity_rows(each)])
        print()
    for each in found.tenants:
        for sentence in sentences(each, asked=more is not None):
            print(sentence)
    if not found.tenants:
        print("no tenant has looked anything up yet, so there is nothing to draw a curve from; send requests first")
    if found.left_out:
        print(f"{found.left_out:,} tenants with fewer lookups are left out; ask for one by its name")
    if found.stale:
        print(f"Redis cannot be read; these numbers are {found.age_s:.0f} s old")


def capacity_rows(capacity: TenantCapacity) -> list[list[str]]:
    """What is now stands in the first row alone."""
    now = [
        capacity.tenant,
        _room(capacity.hot),
        _room(capacity.redis),
        "-" if capacity.measured is None else _percent(capacity.measured.hit_ratio),
        "-" if capacity.predicted is None else _percent(capacity.predicted.hit_ratio),
    ]
    rows = [_change(each) for each in capacity.what_if] or [["-", "-", "-", "-", "-"]]
    return [[*(now if index == 0 else [""] * len(now)), *row] for index, row in enumerate(rows)]


def sentences(capacity: TenantCapacity, *, asked: bool) -> list[str]:
    """asked: the last change is one that somebody asked for."""
    name = capacity.tenant
    if not capacity.nodes:
        return [f"{name}: no node has seen it look anything up of late, so there is no curve to read"]
    said = []
    if capacity.what_if:
        best = capacity.what_if[-1] if asked else max(capacity.what_if, key=_worth)
        said.append(_sentence(name, best))
    else:
        said.append(f"{name}: nothing of it is in any tier; ask with --more SIZE what room would buy")
    measured, predicted = capacity.measured, capacity.predicted
    if measured and predicted and abs(measured.hit_ratio - predicted.hit_ratio) > POORLY_KNOWN:
        said.append(
            f"{name}: the curve says {_percent(predicted.hit_ratio)} for now, {_percent(measured.hit_ratio)} is "
            f"measured; it was drawn for {_duration(capacity.since_s or 0)} and models one LRU, so read it with care"
        )
    return said


def _question(tenant: str | None, more: str | None, tier: str | None) -> Sequence[tuple[str, str]]:
    """Errors: ConfigError naming the option."""
    if tier is not None and tier not in TIERS:
        raise ConfigError(f"--tier: {tier!r} is neither of {', '.join(TIERS)}", field="tier")
    if tier is not None and more is None:
        raise ConfigError("--tier: says where --more SIZE goes; give that too, such as --more 10GiB", field="tier")
    if more is not None:
        try:
            n_bytes = parse_bytes(more)
        except ValueError as error:
            raise ConfigError(f"--more: {more!r} is not a size; {error}", field="more") from None
        if n_bytes == 0:
            raise ConfigError("--more: 0 bytes change nothing; give a size such as 10GiB or -512MiB", field="more")
    asked = (("tenant", tenant), ("more_bytes", more), ("tier", tier))
    return [(name, value) for name, value in asked if value is not None]


def _change(what_if: WhatIf) -> list[str]:
    return [
        TIERS[what_if.tier],
        _signed_bytes(what_if.more_bytes),
        _percent(what_if.hit_ratio),
        f"{what_if.points:+.1f}",
        f"{what_if.tokens_per_hour:+,.0f}",
    ]


def _sentence(name: str, what_if: WhatIf) -> str:
    change = f"{_signed_bytes(what_if.more_bytes)} of {TIERS[what_if.tier]} for {name}"
    if abs(what_if.points) < 0.05 and abs(what_if.hot_points) < 0.05:
        return f"{change}: no change to speak of"
    verb = "less" if what_if.points >= 0 else "more"
    said = f"{change}: about {what_if.points:+.1f} points, {_count(abs(what_if.tokens_per_hour))} tokens an hour"
    if what_if.prefill_s_per_hour is not None:
        said += f", {_duration(abs(what_if.prefill_s_per_hour))} of prefill an hour"
    said += f" {verb} to compute"
    if what_if.tier == "hot":
        said += f"; {what_if.hot_points:+.1f} points found in the node's own pool"
    return said


def _worth(what_if: WhatIf) -> float:
    """Of the usual changes the one that buys most for its bytes."""
    return what_if.points / max(1, what_if.more_bytes)


def _room(room: TierRoom | None) -> str:
    if room is None:
        return "-"
    return human_bytes(room.used_bytes) + ("" if room.limit_bytes is None else f" of {human_bytes(room.limit_bytes)}")


def _signed_bytes(n_bytes: int) -> str:
    return f"{'-' if n_bytes < 0 else '+'}{human_bytes(abs(n_bytes))}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}%"


def _count(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def _duration(seconds: float) -> str:
    if seconds >= 7_200:
        return f"{seconds / 3_600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
