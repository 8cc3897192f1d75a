"""``tiered simulate TRACE``: what a cache of these sizes and policies would have hit on real traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from tiered.cli.output import JsonFlag, human_bytes, human_count, print_json, print_table
from tiered.cli.traces import (
    BlockSizeOption,
    LimitOption,
    TenantFieldOption,
    TenantsOption,
    Trace,
    TraceArgument,
    load_tenants,
    load_trace,
    parse_blocks,
    progress_bar,
)
from tiered.errors import ConfigError
from tiered.eviction.registry import policy_factory
from tiered.simulate.ceiling import min_hits
from tiered.simulate.flat import Order, replay_flat
from tiered.simulate.outcome import Outcome, Tally
from tiered.simulate.plot import check_plot, write_plot
from tiered.simulate.replay import Routing, Setup, WritePolicy, replay

MIN_POLICY: Final = "min"
"""The row of the ceiling; a name that no policy has."""

LEAF_FIRST: Final = "leaf-first"
"""The order of the workers' own core, for which the others are a comparison."""

COLUMNS: Final = (
    "policy",
    "hot_blocks",
    "redis_blocks",
    "workers",
    "routing",
    "write_policy",
    "tenant",
    "accesses",
    "hot_hits",
    "peer_hits",
    "redis_hits",
    "hit_ratio",
    "redis_writes",
    "own",
    "limit",
    "reclaimed",
    "moved",
)
ALWAYS: Final = frozenset({"policy", "hot_blocks", "accesses", "hot_hits", "hit_ratio"})
"""Columns shown even where all rows agree."""

T = TypeVar("T")


def simulate_command(
    trace: TraceArgument,
    policy: Annotated[list[str] | None, typer.Option(help="Eviction policy; repeatable.", show_default="lru")] = None,
    hot_blocks: Annotated[
        list[str] | None,
        typer.Option(
            help="Blocks of each worker's pool, or a share of the trace's unique blocks such as 5%; repeatable.",
            show_default="5%",
        ),
    ] = None,
    redis_blocks: Annotated[
        list[str] | None, typer.Option(help="Blocks of the Redis tier, or a share; repeatable.", show_default="0")
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(help="How many workers share the requests; repeatable.", show_default="1")
    ] = None,
    routing: Annotated[
        list[Routing] | None,
        typer.Option(help="Which worker a request goes to; repeatable.", show_default="round-robin"),
    ] = None,
    write_policy: Annotated[
        list[WritePolicy] | None,
        typer.Option(help="When a block is written to Redis; repeatable.", show_default="on_evict"),
    ] = None,
    block_size: BlockSizeOption = None,
    block_bytes: Annotated[
        int | None, typer.Option(help="Bytes of one block; then bytes moved are shown too.", min=1)
    ] = None,
    tenant_field: TenantFieldOption = None,
    tenants: TenantsOption = None,
    limit: LimitOption = None,
    order: Annotated[
        str,
        typer.Option(
            help="leaf-first, as the workers do; or, as other simulators do, with blocks that leave in any order: "
            "tail-first, head-first or plain.",
        ),
    ] = LEAF_FIRST,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="Also what no policy can beat (MIN).")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw hit ratio against size into this PNG, SVG or PDF.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay a trace through the same table, index, tenancy and policies as a worker's."""
    policies = _values(policy, "lru")
    for name in policies:
        policy_factory(name)
    if plot is not None:
        check_plot(plot)
    for count in workers or []:
        if count < 1:
            raise ConfigError(f"--workers: {count} is not at least 1", field="workers")
    loaded = load_trace(trace, block_size=block_size, limit=limit)
    unique = loaded.unique
    hot_sizes = [parse_blocks("--hot-blocks", text, unique=unique, least=1) for text in _values(hot_blocks, "5%")]
    redis_sizes = [
        parse_blocks("--redis-blocks", text, unique=unique, least=0) for text in _values(redis_blocks, "0")
    ]
    who = load_tenants(loaded, field=tenant_field, file=tenants)
    setups = [
        Setup(name, hot, redis, n_workers, route, write, who)
        for name, n_workers, route, write, redis, hot in product(
            policies,
            _values(workers, 1),
            _values(routing, Routing.ROUND_ROBIN),
            _values(write_policy, WritePolicy.ON_EVICT),
            redis_sizes,
            hot_sizes,
        )
    ]
    for setup in setups:
        who.policies(setup.hot_blocks)  # what is wrong with the last size is better said before the first replay
    rows = _replay_all(loaded, setups, _order(order, setups), block_bytes)
    if ceiling:
        totals = dict.fromkeys(setup.hot_blocks * setup.n_workers for setup in setups)
        rows += [_ceiling_row(loaded, n_blocks, block_bytes) for n_blocks in totals]
    if plot is not None:
        write_plot(plot, rows, title=loaded.title)
    if as_json:
        print_json(rows)
    else:
        _print(rows, loaded.title)


def _values(given: Sequence[T] | None, default: T) -> list[T]:
    """Each value once, in the order given."""
    return list(dict.fromkeys(given)) if given else [default]


def _order(text: str, setups: Sequence[Setup]) -> Order | None:
    """None for the core's own. Errors: ConfigError for an unknown order, or one with what only the core has."""
    if text == LEAF_FIRST:
        return None
    try:
        order = Order(text)
    except ValueError:
        known = ", ".join((LEAF_FIRST, *Order))
        raise ConfigError(f"--order: {text!r} is unknown; known orders: {known}", field="order") from None
    if any(setup.redis_blocks or setup.n_workers > 1 or setup.tenants.bounds for setup in setups):
        raise ConfigError(
            f"--order: {order} has one pool, no Redis tier and no bounds of tenants; leave --redis-blocks, --workers "
            f"and --tenants out, or keep {LEAF_FIRST}",
            field="order",
        )
    return order


def _replay_all(
    trace: Trace, setups: Sequence[Setup], order: Order | None, block_bytes: int | None
) -> list[dict[str, object]]:
    rows = []
    with progress_bar("replaying", len(trace.requests) * len(setups)) as advance:
        for setup in setups:
            if order is None:
                outcome = replay(trace.requests, setup, on_request=advance)
            else:
                outcome = replay_flat(
                    trace.requests,
                    policy_factory(setup.policy),
                    n_blocks=setup.hot_blocks,
                    order=order,
                    tenant_of=setup.tenants.of,
                    on_request=advance,
                )
            rows.append(_row(setup, outcome, order=order or LEAF_FIRST, block_bytes=block_bytes))
    return rows


def _row(setup: Setup, outcome: Outcome, *, order: str, block_bytes: int | None) -> dict[str, object]:
    return {
        "policy": setup.policy,
        "hot_blocks": setup.hot_blocks,
        "redis_blocks": setup.redis_blocks,
        "workers": setup.n_workers,
        "routing": setup.routing,
        "write_policy": setup.write_policy,
        "order": order,
        **_counts(outcome.total),
        "redis_writes": outcome.redis_writes,
        "moved_blocks": outcome.moved_blocks,
        "moved_bytes": None if block_bytes is None else outcome.moved_blocks * block_bytes,
        "evictions": outcome.evictions,
        "tenants": {tenant: _counts(tally) for tenant, tally in sorted(outcome.tenants.items())},
    }


def _counts(tally: Tally) -> dict[str, object]:
    return asdict(tally) | {"hit_ratio": tally.hit_ratio}


def _ceiling_row(trace: Trace, n_blocks: int, block_bytes: int | None) -> dict[str, object]:
    outcome = Outcome()
    accesses = sum(len(request.blocks) for request in trace.requests)
    outcome.total.count(n_blocks=accesses, hot=min_hits(trace.requests, n_blocks=n_blocks))
    return _row(Setup(MIN_POLICY, n_blocks), outcome, order=LEAF_FIRST, block_bytes=block_bytes)


def _print(rows: Sequence[dict[str, object]], title: str) -> None:
    """One line a row and, where there are several tenants, one for each below it; no column in which all agree."""
    lines: list[dict[str, object]] = []
    for row in rows:
        lines.append(_line(row) | {"redis_writes": row["redis_writes"], "moved": _moved(row)})
        tenants = row["tenants"]
        assert isinstance(tenants, dict)
        if len(tenants) > 1:
            lines += [_line(row | tally) | {"tenant": tenant} for tenant, tally in tenants.items()]
    shown = [column for column in COLUMNS if column in ALWAYS or len({line.get(column) for line in lines}) > 1]
    cells = [[_cell(line.get(column, "")) for column in shown] for line in lines]
    print(title)
    print_table("", [column.replace("_", " ") for column in shown], cells)


def _line(row: dict[str, object]) -> dict[str, object]:
    evicted = row["evicted"]
    assert isinstance(evicted, dict)
    line = {column: row[column] for column in COLUMNS if column in row and column != "redis_writes"}
    return line | {"tenant": ""} | {str(cause): n for cause, n in evicted.items()}


def _moved(row: dict[str, object]) -> str:
    n_bytes = row["moved_bytes"]
    return human_bytes(n_bytes) if isinstance(n_bytes, int) else ""


def _cell(value: object) -> str:
    return human_count(value) if isinstance(value, int) else str(value)
