"""``tiered simulate TRACE``: what a cache of these sizes and policies would have hit on real traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiered.cli.output import JsonFlag, human_count, print_json, print_table
from tiered.errors import ConfigError
from tiered.eviction.registry import policy_factory
from tiered.simulate.ceiling import min_hits
from tiered.simulate.replay import Outcome, Routing, Setup, WritePolicy, replay
from tiered.simulate.trace import Request, read_trace
from tiered.types import TenantId

MIN_POLICY = "min"
"""The row of the ceiling; a name that no policy has."""


def simulate_command(
    trace: Annotated[Path, typer.Argument(help="JSON lines of requests, plain or gzipped.", show_default=False)],
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
    workers: Annotated[int, typer.Option(help="How many workers share the requests.")] = 1,
    routing: Annotated[Routing, typer.Option(help="Which worker a request goes to.")] = Routing.ROUND_ROBIN,
    write_policy: Annotated[
        WritePolicy, typer.Option(help="When a block is written to Redis.")
    ] = WritePolicy.ON_EVICT,
    block_size: Annotated[
        int | None, typer.Option(help="Coarsen to blocks of this many tokens.", show_default="the trace's own")
    ] = None,
    tenant_field: Annotated[
        str | None, typer.Option(help="Field of a request that names its tenant.", show_default="one tenant")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.", show_default="all")] = None,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="Also what no policy can beat (MIN).")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Replay a trace through the same table, index, tenancy and policies as a worker's."""
    policies = policy or ["lru"]
    for name in policies:
        policy_factory(name)
    if workers < 1:
        raise ConfigError(f"--workers: {workers} is not at least 1", field="workers")
    requests = list(read_trace(trace, block_tokens=block_size, limit=limit))
    if not requests:
        raise ConfigError(f"trace: {trace} holds no request")
    unique = len({block for request in requests for block in request.blocks})
    hot_sizes = [parse_blocks("--hot-blocks", text, unique=unique, least=1) for text in hot_blocks or ["5%"]]
    redis_sizes = [parse_blocks("--redis-blocks", text, unique=unique, least=0) for text in redis_blocks or ["0"]]
    setups = [
        Setup(name, hot, redis, workers, routing, write_policy, _tenant_of(tenant_field))
        for name, hot, redis in product(policies, hot_sizes, redis_sizes)
    ]
    rows = [_row(setup, outcome) for setup, outcome in _replay_all(requests, setups)]
    if ceiling:
        rows += [_ceiling_row(requests, hot * workers) for hot in hot_sizes]
    if as_json:
        print_json(rows)
    else:
        _print(
            rows,
            f"{trace.name}: {len(requests)} requests, {unique} unique blocks of {requests[0].block_tokens} tokens",
        )


def parse_blocks(flag: str, text: str, *, unique: int, least: int) -> int:
    """``"4096"`` or ``"5%"`` of the trace's unique blocks. Errors: ConfigError naming the flag."""
    number = text.removesuffix("%")
    try:
        blocks = int(float(number) / 100 * unique) if text.endswith("%") else int(number)
    except (ValueError, OverflowError):
        blocks = -1
    blocks = max(blocks, least) if text.endswith("%") and blocks >= 0 else blocks
    if not least <= blocks <= 1 << 32:
        raise ConfigError(
            f"{flag}: {text!r} is not a number of blocks from {least} on, or a share such as 5%", field=flag
        )
    return blocks


def _replay_all(requests: Sequence[Request], setups: Sequence[Setup]) -> list[tuple[Setup, Outcome]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("replaying", total=len(requests) * len(setups))
        return [(setup, replay(requests, setup, on_request=lambda: bars.advance(bar))) for setup in setups]


def _tenant_of(field: str | None) -> Callable[[Request], TenantId]:
    if field is None:
        return lambda request: TenantId("all")
    return lambda request: TenantId(str(request.fields.get(field)))


def _row(setup: Setup, outcome: Outcome) -> dict[str, object]:
    return {
        "policy": setup.policy,
        "hot_blocks": setup.hot_blocks,
        "redis_blocks": setup.redis_blocks,
        "workers": setup.n_workers,
        **asdict(outcome.total),
        "hit_ratio": outcome.total.hit_ratio,
        "redis_writes": outcome.redis_writes,
        "evictions": outcome.evictions,
        "tenants": {t: asdict(tally) | {"hit_ratio": tally.hit_ratio} for t, tally in outcome.tenants.items()},
    }


def _ceiling_row(requests: Sequence[Request], n_blocks: int) -> dict[str, object]:
    accesses = sum(len(request.blocks) for request in requests)
    hits = min_hits(requests, n_blocks=n_blocks)
    return {
        "policy": MIN_POLICY,
        "hot_blocks": n_blocks,
        "redis_blocks": 0,
        "workers": 1,
        "accesses": accesses,
        "hot_hits": hits,
        "peer_hits": 0,
        "redis_hits": 0,
        "hit_ratio": round(100 * hits / max(1, accesses), 2),
        "redis_writes": 0,
        "evictions": 0,
        "tenants": {},
    }


def _print(rows: Sequence[dict[str, object]], title: str) -> None:
    columns = ("policy", "hot_blocks", "redis_blocks", "accesses", "hot_hits", "peer_hits", "redis_hits", "hit_ratio")
    cells = [[_shown(row[column]) for column in columns] for row in rows]
    print_table(title, [column.replace("_", " ") for column in columns], cells)


def _shown(value: object) -> str:
    return human_count(value) if isinstance(value, int) else str(value)
