"""``tiered plan TRACE``: what each further GiB of hot tier would buy on real traffic, in all and for each tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from tiered.cli.output import JsonFlag, human_bytes, human_count, print_json, print_lines, print_table
from tiered.cli.traces import (
    BlockSizeOption,
    LimitOption,
    TenantFieldOption,
    TenantsOption,
    TraceArgument,
    load_tenants,
    load_trace,
    parse_blocks,
    progress_bar,
)
from tiered.config import parse_bytes
from tiered.errors import ConfigError
from tiered.eviction.registry import policy_factory
from tiered.layout import DTYPE_BYTES, KvLayout
from tiered.simulate.plan import Line, Plan, Step, ladder, plan_by_replays, plan_exactly
from tiered.simulate.replay import Setup

EXACT_POLICY: Final = "lru"

HEAD: Final = ("tenant", "hot tier", "blocks", "hit ratio", "gained", "points per GiB", "tokens saved")


def plan_command(
    trace: TraceArgument,
    kv_bytes_per_token: Annotated[
        int | None, typer.Option(help="Bytes of one token's KV, all layers, on one worker.", show_default=False)
    ] = None,
    model_layout: Annotated[
        str | None,
        typer.Option(
            metavar="LAYERS,HEADS,DIM,DTYPE",
            help="Or the model's layers, KV heads, head size and dtype, such as 32,8,128,bfloat16.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Eviction policy.")] = EXACT_POLICY,
    redis: Annotated[
        str, typer.Option(metavar="BLOCKS", help="Blocks of a Redis tier below, or a share such as 50%.")
    ] = "0",
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="A size to look at, in bytes or as a share of the trace's unique blocks such as 5%; repeatable.",
            show_default="doublings up to what holds the whole trace",
        ),
    ] = None,
    block_size: BlockSizeOption = None,
    tenant_field: TenantFieldOption = None,
    tenants: TenantsOption = None,
    limit: LimitOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what each further GiB buys: hit ratio and tokens saved by size, and where more buys nothing."""
    policy_factory(policy)
    token_bytes = _token_bytes(kv_bytes_per_token, model_layout)
    loaded = load_trace(trace, block_size=block_size, limit=limit)
    block_bytes = token_bytes * loaded.block_tokens
    who = load_tenants(loaded, field=tenant_field, file=tenants)
    n_redis = parse_blocks("--redis", redis, unique=loaded.unique, least=0)
    if sizes:
        steps = sorted({_size(text, unique=loaded.unique, block_bytes=block_bytes) for text in sizes})
    else:
        steps = ladder(loaded.unique, block_bytes=block_bytes)
    if policy == EXACT_POLICY and not n_redis and not who.bounds:
        plan = plan_exactly(loaded.requests, who, steps, block_bytes=block_bytes)
    else:
        setup = Setup(policy, steps[0], n_redis, tenants=who)
        for n_blocks in steps:
            who.policies(n_blocks)
        with progress_bar("replaying", len(loaded.requests) * len(steps)) as advance:
            plan = plan_by_replays(loaded.requests, setup, steps, block_bytes=block_bytes, on_request=advance)
    if as_json:
        print_json({"policy": policy, "redis_blocks": n_redis, "unique_blocks": loaded.unique, **asdict(plan)})
    else:
        _print(plan, f"{loaded.title}, {human_bytes(block_bytes)} each")


def _token_bytes(given: int | None, layout: str | None) -> int:
    if (given is None) == (layout is None):
        raise ConfigError(
            "--kv-bytes-per-token: say how large a token's KV is, by this or by --model-layout, and not by both",
            field="kv_bytes_per_token",
        )
    if given is not None:
        if not 1 <= given <= 1 << 40:
            raise ConfigError(f"--kv-bytes-per-token: {given} is not at least 1 byte", field="kv_bytes_per_token")
        return given
    assert layout is not None
    parts = [part.strip() for part in layout.split(",")]
    try:
        layers, heads, dim, dtype = parts
        return KvLayout(
            n_layers=int(layers), n_kv_heads=int(heads), head_dim=int(dim), dtype=dtype, block_tokens=1
        ).block_bytes
    except ValueError as error:
        reason = f"; {error}" if len(parts) == 4 else ""
        raise ConfigError(
            f"--model-layout: {layout!r} is not layers,KV heads,head size,dtype such as 32,8,128,bfloat16{reason}; "
            f"known dtypes: {', '.join(DTYPE_BYTES)}",
            field="model_layout",
        ) from None


def _size(text: str, *, unique: int, block_bytes: int) -> int:
    if text.endswith("%"):
        return parse_blocks("--size", text, unique=unique, least=1)
    try:
        n_bytes = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--size: {text!r} is not a size; {error}", field="size") from None
    if not isinstance(n_bytes, int) or n_bytes < block_bytes:
        raise ConfigError(f"--size: {text} does not hold one block of {human_bytes(block_bytes)}", field="size")
    return n_bytes // block_bytes


def _print(plan: Plan, title: str) -> None:
    cells = [
        [
            line.tenant if index == 0 else "",
            human_bytes(step.bytes),
            human_count(step.blocks),
            f"{step.hit_ratio:.1f}%",
            f"{step.gained:+.1f}",
            f"{step.points_per_gib:.2f}",
            human_count(step.tokens_saved),
        ]
        for line in plan.lines
        for index, step in enumerate(_worth_showing(line))
    ]
    print(title)
    print_table("", HEAD, cells)
    print()
    print_lines([(line.tenant, _verdict(line, exact=plan.exact)) for line in plan.lines])


def _worth_showing(line: Line) -> Sequence[Step]:
    """Up to the first step at or beyond the knee; after that all are alike."""
    beyond = next((i for i, step in enumerate(line.steps) if step.blocks >= line.knee_blocks), len(line.steps))
    return line.steps[: beyond + 1]


def _verdict(line: Line, *, exact: bool) -> str:
    if not line.best_ratio:
        return "nothing is hit" + (" at any size: nothing is asked for twice" if exact else "")
    if not exact and line.knee_blocks == line.steps[-1].blocks:
        return f"still gains at {human_bytes(line.knee_bytes)}, the largest size looked at"
    return f"beyond {human_bytes(line.knee_bytes)} nothing is gained: {line.best_ratio:.1f}% is the best"
