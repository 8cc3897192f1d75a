"""Puts a partition's sums right by its records, after a walk over all of them during which nobody wrote.

Only a server that lost records leaves sums that nothing else would ever settle: who was charged for a block stands
nowhere but in its record. What makes it certain that nobody wrote stands in recount.lua.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiered.cluster import scripts
from tiered.cluster.connection import Client, answered, command, pipelined
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.types import BlockHash, TenantId

_SCAN_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Mark:
    """What two looks at a partition's books have in common if nobody wrote between them: the sums, the newest of its
    why-log, and the server's life. Another one goes on with a SCAN as it likes, so that records are met twice, or
    never."""

    usage: Mapping[bytes, bytes]
    told: bytes
    life: str


def mark_of(client: Client, keys: Keys) -> Mark:
    """Errors: TierError when Redis does not answer."""
    asked = [
        Command(("HGETALL", keys.usage()), keys.usage()),
        Command(("LRANGE", keys.why(), 0, 0), keys.why()),
        Command(("INFO", "server"), keys.usage()),
    ]
    usage, told, info = answered(pipelined(client, asked))
    return Mark(usage, told[0] if told else b"", info.get("run_id", ""))


def recount(
    client: Client, keys: Keys, seen: Mark, charged: Mapping[TenantId, int], listed: Mapping[TenantId, int]
) -> bool:
    """Write what the records say, if they are still those that were read; whether it was.

    charged, listed: per tenant the bytes that its blocks' records have it pay, and how many those are.
    Errors: TierError when Redis does not answer.
    """
    named = {TenantId(name.decode()[2:]) for name in seen.usage if name[1:2] == b":"}
    tenants = sorted(named | charged.keys())
    lengths = answered(pipelined(client, [Command(("ZCARD", key), key) for key in map(keys.tenant_blocks, tenants)]))
    for tenant, n_listed in zip(tenants, lengths, strict=True):
        if n_listed != listed.get(tenant, 0):
            _unlist(client, keys, tenant)
    rows = [(tenant, charged.get(tenant, 0), listed.get(tenant, 0)) for tenant in tenants]
    return scripts.recount(client, keys, seen.told, seen.usage, rows)


def _unlist(client: Client, keys: Keys, tenant: TenantId) -> None:
    key, cursor = keys.tenant_blocks(tenant), 0
    while True:
        found: tuple[int | bytes, list[tuple[bytes, float]]]
        found = command(client, "ZSCAN", key, cursor, "COUNT", _SCAN_COUNT)
        scripts.unlist(client, keys, tenant, [BlockHash(member) for member, _ in found[1]])
        cursor = int(found[0])
        if cursor == 0:
            return
