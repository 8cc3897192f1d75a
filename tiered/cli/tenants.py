"""``tiered tenants``: who may use how much of each tier; list, show, create, set, delete.

Bounds are checked by the coordinator, which knows the others; here sizes are only read.
"""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Policy, Seconds, Tenant
from tiered.cli.output import (
    JsonFlag,
    human_bytes,
    human_count,
    human_share,
    print_json,
    print_lines,
    print_table,
)
from tiered.config import parse_bytes
from tiered.errors import ConfigError

tenants_app = typer.Typer(help="Tenants and their bounds per tier.", rich_markup_mode=None)

_COLUMNS = (
    "tenant",
    "hot",
    "hot reserved",
    "hot limit",
    "redis",
    "redis reserved",
    "redis limit",
    "weight",
    "over quota",
    "tokens",
    "hit",
)


class OverQuota(enum.StrEnum):
    EVICT_OWN = "evict_own"
    REFUSE = "refuse"


class Codec(enum.StrEnum):
    NONE = "none"
    LOSSLESS = "lossless"
    FP8 = "fp8"
    INT8 = "int8"


Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
HotReserved = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Hot bytes per node nobody else can take; or blocks, such as 4096blocks."),
]
HotLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE|none", help="Hot bytes per node never exceeded; or blocks, such as 4096blocks."),
]
HotTotalReserved = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Hot bytes over all nodes together nobody else can take.")
]
HotTotalLimit = Annotated[
    str | None, typer.Option(metavar="SIZE|none", help="Hot bytes over all nodes together never exceeded.")
]
RedisReserved = Annotated[str | None, typer.Option(metavar="SIZE", help="Redis bytes promised; not yet kept free.")]
RedisLimit = Annotated[str | None, typer.Option(metavar="SIZE|none", help="Redis bytes never exceeded.")]
RedisTtl = Annotated[
    str | None, typer.Option(metavar="SECONDS|none", help="Blocks in Redis go after so long without a use.")
]
Weight = Annotated[float | None, typer.Option(help="Its share of what is idle, against the others' weights.")]
Sharing = Annotated[
    str | None,
    typer.Option(metavar="private|group:NAME|public", help="With whom it uses blocks together."),
]
RedisCodec = Annotated[
    Codec | None, typer.Option("--redis-codec", help="How its blocks are stored in Redis; fp8 and int8 lose bits.")
]
Copies = Annotated[
    int | None, typer.Option(min=1, max=2, help="2: each block in two places that do not fail together.")
]
WhenOver = Annotated[OverQuota | None, typer.Option("--over-quota", help="At the limit: what happens to a write.")]


@tenants_app.command("list")
def list_command(coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """List every tenant that is named or was seen."""
    with connect(coordinator) as client:
        tenants = client.tenants()
    if json:
        print_json({"tenants": tenants})
    else:
        print_table("", _COLUMNS, [tenant_row(tenant) for tenant in tenants])


@tenants_app.command("show")
def show_command(tenant: Name, coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """Show one tenant: its bounds in force, what it holds, and where its tokens were found."""
    with connect(coordinator) as client:
        _print_tenant(client.tenant(tenant), json=json)


@tenants_app.command("create")
def create_command(
    tenant: Name,
    hot_reserved: HotReserved = None,
    hot_limit: HotLimit = None,
    hot_total_reserved: HotTotalReserved = None,
    hot_total_limit: HotTotalLimit = None,
    redis_reserved: RedisReserved = None,
    redis_limit: RedisLimit = None,
    redis_ttl: RedisTtl = None,
    weight: Weight = None,
    over_quota: WhenOver = None,
    sharing: Sharing = None,
    redis_codec: RedisCodec = None,
    copies: Copies = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Name a tenant and give it bounds; what is not given is the default."""
    changes = policy_changes(
        hot_reserved=hot_reserved,
        hot_limit=hot_limit,
        hot_total_reserved=hot_total_reserved,
        hot_total_limit=hot_total_limit,
        redis_reserved=redis_reserved,
        redis_limit=redis_limit,
        redis_ttl=redis_ttl,
        weight=weight,
        over_quota=over_quota,
        sharing=sharing,
        redis_codec=redis_codec,
        copies=copies,
    )
    with connect(coordinator) as client:
        _print_tenant(client.create_tenant(tenant, changes), json=json)


@tenants_app.command("set")
def set_command(
    tenant: Name,
    hot_reserved: HotReserved = None,
    hot_limit: HotLimit = None,
    hot_total_reserved: HotTotalReserved = None,
    hot_total_limit: HotTotalLimit = None,
    redis_reserved: RedisReserved = None,
    redis_limit: RedisLimit = None,
    redis_ttl: RedisTtl = None,
    weight: Weight = None,
    over_quota: WhenOver = None,
    sharing: Sharing = None,
    redis_codec: RedisCodec = None,
    copies: Copies = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Change the given bounds of a tenant and leave the others; `none` removes a limit."""
    changes = policy_changes(
        hot_reserved=hot_reserved,
        hot_limit=hot_limit,
        hot_total_reserved=hot_total_reserved,
        hot_total_limit=hot_total_limit,
        redis_reserved=redis_reserved,
        redis_limit=redis_limit,
        redis_ttl=redis_ttl,
        weight=weight,
        over_quota=over_quota,
        sharing=sharing,
        redis_codec=redis_codec,
        copies=copies,
    )
    if not changes:
        raise ConfigError(f"tenants set {tenant}: nothing to change; give at least one bound, such as --redis-limit")
    with connect(coordinator) as client:
        _print_tenant(client.change_tenant(tenant, changes), json=json)


@tenants_app.command("delete")
def delete_command(tenant: Name, coordinator: CoordinatorOption = None) -> None:
    """Forget a tenant's bounds; from then on the default's hold for it."""
    with connect(coordinator) as client:
        client.delete_tenant(tenant)
    typer.echo(f"{tenant}: deleted; the default tenant's bounds hold for it now")


def policy_changes(
    *,
    hot_reserved: str | None,
    hot_limit: str | None,
    redis_reserved: str | None,
    redis_limit: str | None,
    redis_ttl: str | None,
    weight: float | None,
    over_quota: OverQuota | None,
    sharing: str | None,
    redis_codec: Codec | None,
    copies: int | None,
    hot_total_reserved: str | None = None,
    hot_total_limit: str | None = None,
) -> dict[str, object]:
    """The body of a change: only what was given, sizes in bytes, ``none`` as null.

    A hot bound given in blocks takes the place of one in bytes, and the other way round.
    """
    changes: dict[str, object] = {}
    if hot_reserved is not None:
        blocks = _blocks("hot_reserved", hot_reserved)
        changes["hot_reserved_blocks"] = blocks or 0
        changes["hot_reserved_bytes"] = 0 if blocks is not None else _size("hot_reserved_bytes", hot_reserved)
    if hot_limit is not None:
        blocks = _blocks("hot_limit", hot_limit)
        changes["hot_limit_blocks"] = blocks
        changes["hot_limit_bytes"] = None if blocks is not None else _size("hot_limit_bytes", hot_limit)
    sizes = {
        "hot_total_reserved_bytes": hot_total_reserved,
        "hot_total_limit_bytes": hot_total_limit,
        "redis_reserved_bytes": redis_reserved,
        "redis_limit_bytes": redis_limit,
    }
    for field, text in sizes.items():
        if text is not None:
            changes[field] = _size(field, text)
    if redis_ttl is not None:
        changes["redis_ttl_s"] = _seconds("redis_ttl", redis_ttl)
    if weight is not None:
        changes["weight"] = weight
    if over_quota is not None:
        changes["over_quota"] = over_quota.value
    if sharing is not None:
        changes["sharing"] = sharing
    if redis_codec is not None:
        changes["redis_codec"] = redis_codec.value
    if copies is not None:
        changes["copies"] = copies
    return changes


def _blocks(field: str, text: str) -> int | None:
    """``"4096blocks"`` -> 4096; None for what is no number of blocks."""
    number = text.strip().lower().removesuffix("blocks").rstrip()
    if number == text.strip().lower():
        return None
    if not number.isascii() or not number.isdigit():
        raise ConfigError(f"--{field.replace('_', '-')}: {text!r} is not a number of blocks", field=field)
    return int(number)


def _seconds(field: str, text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise ConfigError(f"--{field.replace('_', '-')}: {text!r} is not a number of seconds above 0", field=field)
    return seconds


def _size(field: str, text: str) -> int | None:
    flag = "--" + field.removesuffix("_bytes").replace("_", "-")
    if text.strip().lower() == "none":
        if field.endswith("_limit_bytes"):
            return None
        raise ConfigError(f"{flag}: a reservation is a number of bytes; write 0 for nothing", field=field)
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a size; {error}", field=field) from None
    if not isinstance(size, int) or size < 0:
        raise ConfigError(f"{flag}: {text!r} is below zero", field=field)
    return size


def tenant_row(tenant: Tenant) -> list[str]:
    policy, tokens = tenant.policy, tenant.tokens
    return [
        policy.tenant if tenant.named else f"{policy.tenant} (by default)",
        human_bytes(tenant.hot.used_bytes),
        _with_total(_hot_reserved(policy), policy.hot_total_reserved_bytes or None),
        _with_total(_hot_limit(policy), policy.hot_total_limit_bytes),
        human_bytes(tenant.redis.used_bytes),
        human_bytes(policy.redis_reserved_bytes),
        human_bytes(tenant.redis_limit_in_force_bytes),
        f"{policy.weight:g}",
        policy.over_quota,
        human_count(tokens.asked),
        human_share(tokens.hot + tokens.peer + tokens.redis, tokens.asked),
    ]


def _hot_reserved(policy: Policy) -> str:
    if policy.hot_reserved_blocks and policy.hot_reserved_bytes:
        return f"{human_bytes(policy.hot_reserved_bytes)} and {human_count(policy.hot_reserved_blocks)} blocks"
    if policy.hot_reserved_blocks:
        return f"{human_count(policy.hot_reserved_blocks)} blocks"
    return human_bytes(policy.hot_reserved_bytes)


def _hot_limit(policy: Policy) -> str:
    if policy.hot_limit_blocks is None:
        return human_bytes(policy.hot_limit_bytes)
    in_blocks = f"{human_count(policy.hot_limit_blocks)} blocks"
    return in_blocks if policy.hot_limit_bytes is None else f"{human_bytes(policy.hot_limit_bytes)} or {in_blocks}"


def _with_total(per_node: str, total: int | None) -> str:
    return per_node if total is None else f"{per_node}, {human_bytes(total)} in total"


def _print_tenant(tenant: Tenant, *, json: bool) -> None:
    if json:
        print_json(tenant)
        return
    tokens = tenant.tokens
    print_lines(
        [
            *policy_lines(tenant),
            ("hot", f"{human_bytes(tenant.hot.used_bytes)}, {human_count(tenant.hot.blocks)} blocks"),
            ("redis", f"{human_bytes(tenant.redis.used_bytes)}, {human_count(tenant.redis.blocks)} blocks"),
            *total_lines(tenant),
            *second_lines(tenant.seconds),
            (
                "tokens",
                f"{human_count(tokens.asked)} asked = {human_count(tokens.hot)} hot + "
                f"{human_count(tokens.peer)} peer + {human_count(tokens.redis)} redis + "
                f"{human_count(tokens.missed)} missed",
            ),
        ]
    )


def total_lines(tenant: Tenant) -> list[tuple[str, str]]:
    """Its bounds over all nodes together and what is in force of them; nothing where it has none."""
    policy = tenant.policy
    if policy.hot_total_limit_bytes is None and not policy.hot_total_reserved_bytes:
        return []
    reserved, limit = human_bytes(policy.hot_total_reserved_bytes), human_bytes(policy.hot_total_limit_bytes)
    lent = "" if tenant.hot_lent_bytes is None else f", {human_bytes(tenant.hot_lent_bytes)} lent to nodes"
    kept = f"{human_bytes(tenant.hot_reserved_in_force_bytes)} reserved in force"
    return [("hot totals", f"{reserved} reserved, limit {limit}, over all nodes; {kept}{lent}")]


def second_lines(seconds: Seconds | None) -> list[tuple[str, str]]:
    """What of it are second copies; nothing where it asks for none."""
    if seconds is None:
        return []
    single = f", {human_count(seconds.single_blocks)} in one node alone" if seconds.single_blocks else ""
    return [
        (
            "second copies",
            f"{human_bytes(seconds.second_bytes)} of redis, {human_count(seconds.second_blocks)} blocks; "
            f"{human_count(seconds.redis_only_blocks)} blocks in redis alone{single}",
        )
    ]


def redis_limit(tenant: Tenant) -> str:
    """The limit in force, and whose it is."""
    limit = tenant.redis_limit_in_force_bytes
    is_the_defaults = limit is not None and tenant.policy.redis_limit_bytes is None
    return human_bytes(limit) + (", the default's" if is_the_defaults else "")


def policy_lines(tenant: Tenant) -> list[tuple[str, str]]:
    policy = tenant.policy
    return [
        ("tenant", policy.tenant if tenant.named else f"{policy.tenant} (the default's bounds)"),
        (
            "hot bounds",
            f"{_hot_reserved(policy)} reserved, limit {_hot_limit(policy)}, per node",
        ),
        (
            "redis bounds",
            f"{human_bytes(policy.redis_reserved_bytes)} reserved, limit {redis_limit(tenant)}"
            + ("" if policy.redis_ttl_s is None else f", idle at most {policy.redis_ttl_s:g} s"),
        ),
        ("weight", f"{policy.weight:g}"),
        ("over quota", policy.over_quota),
        ("sharing", policy.sharing),
        ("redis codec", policy.redis_codec),
        ("copies", str(policy.copies)),
    ]
