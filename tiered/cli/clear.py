"""``tiered clear``: take blocks out of every pool and out of Redis; of Redis alone where no coordinator runs."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.audit import Namespace, RedisUrl, redis_settings
from tiered.cli.output import human_count
from tiered.cluster.agreement import keys_in_use
from tiered.cluster.clears import ClearRequest, Clears
from tiered.cluster.connection import connect as connect_redis
from tiered.errors import ConfigError
from tiered.types import HASH_BYTES

RedisOnly = Annotated[
    bool,
    typer.Option("--redis-only", help="Clear Redis alone, with no coordinator's help; pools keep what they have."),
]


def clear_command(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Let this tenant go of all its blocks.")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="HASH", help="A block, in hex, and what hangs on it.")] = None,
    scope: Annotated[str | None, typer.Option(metavar="ID", help="All blocks of a scope, by its id in hex.")] = None,
    coordinator: CoordinatorOption = None,
    redis_only: RedisOnly = False,
    redis_url: RedisUrl = None,
    namespace: Namespace = None,
) -> None:
    """Take blocks out of Redis now, and out of the nodes' pools within a second; what is in use there goes when it is
    no more."""
    request = _request(tenant=tenant, prefix=prefix, scope=scope)
    if not redis_only:
        source = context.get_parameter_source("redis_url")
        if source is not None and source.name == "COMMANDLINE":  # in the environment it may be for other commands
            raise ConfigError(
                "--redis-url: goes with --redis-only; without it the coordinator clears", field="redis_url"
            )
        with connect(coordinator) as client:
            n_blocks = client.clear({request.what: request.name})
        typer.echo(f"cleared {human_count(n_blocks)} blocks in Redis; the nodes' pools follow")
        return
    settings = redis_settings(redis_url, namespace)
    with closing(connect_redis(settings, timeout_s=settings.control_timeout_s)) as redis:
        n_blocks = Clears(redis, keys_in_use(redis, settings.namespace)).clear_redis(request)
    typer.echo(f"cleared {human_count(n_blocks)} blocks")


def _request(*, tenant: str | None, prefix: str | None, scope: str | None) -> ClearRequest:
    if [tenant, prefix, scope].count(None) != 2:
        raise ConfigError("clear: say what, by exactly one of --tenant, --prefix and --scope", field="clear")
    if tenant is not None:
        return ClearRequest("tenant", tenant)
    if prefix is not None:
        return ClearRequest("prefix", _digest("--prefix", prefix))
    assert scope is not None
    return ClearRequest("scope", _digest("--scope", scope))


def _digest(flag: str, text: str) -> str:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != HASH_BYTES:
        raise ConfigError(f"{flag}: {text!r} is not {2 * HASH_BYTES} hexadecimal digits", field=flag)
    return digest.hex()
