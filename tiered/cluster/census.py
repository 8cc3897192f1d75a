"""How many blocks the shared state has of each life and of the tier in one partition, at one point of its stream.

For whoever mirrors the directory and wants to know whether it still agrees. Which blocks they are is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered.cluster.connection import Client, answered, command, pipelined
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.types import Epoch, NodeId, TenantId


@dataclass(frozen=True, slots=True)
class Count:
    """lives: blocks of each life asked for, in order. stored: blocks that the tier has, one that several tenants use
    counted for each of them."""

    lives: tuple[int, ...]
    stored: int


class Census:
    """Errors of its methods: TierError when the partition's server does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._parts = keys.every()

    def tenants(self, partition: int) -> list[TenantId]:
        """Who has anything stored in the partition."""
        fields: list[bytes] = command(self._client, "HKEYS", self._parts[partition].usage())
        return [TenantId(field[2:].decode()) for field in fields if field.startswith(b"u:")]

    def count(self, partition: int, position: int, lives: Sequence[tuple[NodeId, Epoch]]) -> Count | None:
        """None unless the stream stood at ``position`` from before the first count until after the last one."""
        tenants = self.tenants(partition)
        part = self._parts[partition]
        stream = part.changes()
        where = Command(("XREVRANGE", stream, "+", "-", "COUNT", 1), stream)
        sets = [part.node_blocks(node, epoch) for node, epoch in lives]
        zsets = [part.tenant_blocks(tenant) for tenant in tenants]
        before, *counts, after = answered(
            pipelined(
                self._client,
                [
                    where,
                    *(Command(("SCARD", key), key) for key in sets),
                    *(Command(("ZCARD", key), key) for key in zsets),
                    where,
                ],
            )
        )
        if _seq(before) != position or _seq(after) != position:
            return None
        return Count(lives=tuple(counts[: len(sets)]), stored=sum(counts[len(sets) :]))


def _seq(rows: Sequence[tuple[bytes, object]]) -> int:
    return int(rows[0][0].partition(b"-")[2]) if rows else 0
