"""``tiered tenants``: who may use how much of each tier; list, show, create, set, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Policy, Seconds, Tenant
from tiered.cli.bounds import takes_bounds
from tiered.cli.output import (
    JsonFlag,
    human_bytes,
    human_count,
    human_share,
    print_json,
    print_lines,
    print_table,
)
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


Name = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]


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
@takes_bounds
def create_command(
    tenant: Name, changes: dict[str, object], coordinator: CoordinatorOption = None, json: JsonFlag = False
) -> None:
    """Name a tenant and give it bounds; what is not given is the default."""
    with connect(coordinator) as client:
        _print_tenant(client.create_tenant(tenant, changes), json=json)


@tenants_app.command("set")
@takes_bounds
def set_command(
    tenant: Name, changes: dict[str, object], coordinator: CoordinatorOption = None, json: JsonFlag = False
) -> None:
    """Change the given bounds of a tenant and leave the others; `none` removes a limit."""
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
