"""``tiered check`` and ``sweep``: whether the books of the Redis tier are true, and putting them right.

Both talk to Redis itself, so they work with no coordinator running.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Annotated, Final

import typer

from tiered.cli.cluster_file import read_cluster_file
from tiered.cli.output import JsonFlag, human_bytes, human_count, print_json, print_lines
from tiered.cli.redis_check import check_redis
from tiered.cluster.agreement import keys_in_use
from tiered.cluster.audit import Auditor, Findings
from tiered.cluster.connection import connect
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.errors import ConfigError

EXIT_NOT_CONSERVED: Final = 1

_WALKS_MAX: Final = 5
"""The sums can only be compared over a walk that nobody's writes disturbed."""

RedisUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="TIERED_REDIS_URL",
        help="The Redis; without it, that of the cluster that `tiered up` runs here.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None, typer.Option(help="Prefix of the cluster's keys in Redis.", show_default="the cluster's, or tiered")
]


def check_command(redis_url: RedisUrl = None, namespace: Namespace = None, json: JsonFlag = False) -> None:
    """Compare the Redis tier's books with what it holds; exit code 1 when they differ. Changes nothing."""
    findings = _walk(redis_url, namespace, settle=False)
    _print(findings, json=json)
    if findings.conserved is False:
        raise typer.Exit(EXIT_NOT_CONSERVED)


def sweep_command(redis_url: RedisUrl = None, namespace: Namespace = None, json: JsonFlag = False) -> None:
    """Settle what the Redis tier's books and its bytes do not agree on: expired reservations, lost values, strays."""
    _print(_walk(redis_url, namespace, settle=True), json=json)


def _walk(redis_url: str | None, namespace: str | None, *, settle: bool) -> Findings:
    settings = redis_settings(redis_url, namespace)
    with closing(connect(settings, timeout_s=settings.control_timeout_s)) as client:
        keys = keys_in_use(client, settings.namespace)
        policies, _ = Tenants(client, keys).readable()
        idle_s = {t: policy.redis_ttl_s for t, policy in policies.items() if policy.redis_ttl_s is not None}
        findings = told = Auditor(client, keys, settle=settle).walk(idle_s)
        for _ in range(_WALKS_MAX - 1):
            if findings.conserved or (settle and not _leaves_more(findings)):
                break
            # Each walk by itself: what was met in one alone, such as a block without its prefix, may be on its way.
            findings = Auditor(client, keys, settle=settle).walk()
            told = _with_settled(findings, told) if settle else findings
    return told


def _leaves_more(findings: Findings) -> bool:
    """Whether another walk may settle more: one that changes something leaves the sums to the next."""
    return findings.conserved is False or any(getattr(findings, name) for name in _SETTLED)


def _with_settled(findings: Findings, earlier: Findings) -> Findings:
    sums = {name: getattr(findings, name) + getattr(earlier, name) for name in _SETTLED}
    return replace(findings, **sums)


def redis_settings(redis_url: str | None, namespace: str | None) -> RedisSettings:
    """Errors: ConfigError when there is neither a flag nor a cluster, or nothing answers there."""
    state = read_cluster_file()
    url = redis_url or (state.redis_url if state else None)
    if url is None:
        raise ConfigError(
            "--redis-url: no cluster runs on this machine; name the Redis to look at, such as redis://host:6379",
            field="redis_url",
        )
    own = state.namespace if state is not None and url == state.redis_url else "tiered"
    check_redis(url=url, namespace=namespace or own)
    return RedisSettings(url=url, namespace=namespace or own)


def _print(findings: Findings, *, json: bool) -> None:
    ledger = sum(findings.ledger.values())
    if json:
        print_json(
            {
                "conserved": findings.conserved,
                "quiet": findings.is_quiet,
                "blocks": findings.blocks,
                "stored_bytes": findings.stored_bytes,
                "ledger_bytes": ledger,
                "ledger_sum_bytes": findings.ledger_sum_bytes,
                "tenants": {str(tenant): n for tenant, n in sorted(findings.charged.items())},
                **{name: getattr(findings, name) for name in _FINDINGS},
            }
        )
        return
    verdict = {True: "yes", False: "NO", None: "not known: others wrote meanwhile"}[findings.conserved]
    print_lines(
        [
            ("conserved", verdict),
            ("in Redis", f"{human_bytes(findings.stored_bytes)}, {human_count(findings.blocks)} blocks"),
            ("in the books", f"{human_bytes(ledger)} of tenants, {human_bytes(findings.ledger_sum_bytes)} in sum"),
            *((name, f"{human_count(getattr(findings, name))}  {meaning}") for name, meaning in _FINDINGS.items()),
        ]
    )


_SETTLED: Final = ("expired", "lost", "stray", "relisted", "idle", "stamps", "recounted")
"""What a walk finds and settles at once; orphans stay."""

_FINDINGS: Final = {
    "expired": "reservations that nobody committed in time",
    "lost": "values that the server no longer holds whole",
    "stray": "values that no record names",
    "relisted": "charges missing from their tenant's list",
    "orphans": "blocks whose prefix is nowhere",
    "idle": "blocks past their tenant's idle time",
    "stamps": "claims to hold a block by nodes that do not list it, or that are gone",
    "recounted": "partitions whose sums were put right by their records",
}
