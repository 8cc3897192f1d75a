"""Who is in the cluster: lives of nodes, their leases, their last stats, and what ended lives had counted.

Owns the entries under the cluster's hash tag; does not know which blocks a node holds (the directory does) or when
to renew (the worker does). Lease times are Redis's own times to live: clocks of machines are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tiered.cluster import scripts
from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys
from tiered.errors import LeaseExpired, StaleEpoch
from tiered.types import Epoch, NodeId, NodeInfo, NodeStats, NodeView, TenantId, TokenCounts

_ENCODER: Final = msgspec.msgpack.Encoder()
_ENTRY: Final = msgspec.msgpack.Decoder(tuple[NodeInfo, int])
_REGISTERED: Final = msgspec.msgpack.Decoder(tuple[msgspec.Raw, int])
_STATS: Final = msgspec.msgpack.Decoder(NodeStats)


@dataclass(frozen=True, slots=True)
class UnreadNode:
    """A registered life of which we cannot read all. epoch: None where not even that can be read."""

    node: NodeId
    epoch: Epoch | None
    is_alive: bool


class Membership:
    """The shared record of members. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def join(self, info: NodeInfo, *, lease_ttl_s: float) -> Epoch:
        """Begin a life of this node; the epoch is greater than every earlier one. An older life of it ends here."""
        node = NodeId(info.node)
        return scripts.join(self._client, self._keys, node, _ENCODER.encode(info), lease_ms=_ms(lease_ttl_s))

    def renew(self, node: NodeId, epoch: Epoch, stats: NodeStats, *, lease_ttl_s: float) -> None:
        """Lengthen the lease and publish stats.

        Errors: LeaseExpired if the lease lapsed or the server restarted empty, StaleEpoch if another life of the
        node runs. Nothing is stored then: the caller is fenced and must join again.
        """
        current = scripts.renew(
            self._client, self._keys, node, epoch, _ENCODER.encode(stats), lease_ms=_ms(lease_ttl_s)
        )
        if current < 0:
            raise LeaseExpired(f"the lease of node {node!r}, epoch {epoch}, has lapsed")
        if current > 0:
            raise StaleEpoch(seen=epoch, current=current)

    def leave(self, node: NodeId, epoch: Epoch) -> None:
        """End this life in order; nothing happens if another one runs."""
        scripts.retire(self._client, self._keys, node, epoch, how="leave")

    def retire(self, node: NodeId, epoch: Epoch) -> bool:
        """End a life whose lease has lapsed: its token counts are kept, once. False if it is not that life's turn."""
        return scripts.retire(self._client, self._keys, node, epoch, how="lapsed")

    def nodes(self) -> list[NodeView]:
        """Every registered life at one moment, ordered by name; one round trip.

        An entry that does not decode, such as one of a later version, says nothing, like a missing one.
        """
        return self.readable()[0]

    def readable(self) -> tuple[list[NodeView], list[UnreadNode]]:
        """As :meth:`nodes`, and the lives whose entry or stats do not decode."""
        return self._read(stats=True)

    def lives(self) -> list[NodeView]:
        """As :meth:`nodes` without the stats: the reply is as long however many tenants there are."""
        return self._read(stats=False)[0]

    def _read(self, *, stats: bool) -> tuple[list[NodeView], list[UnreadNode]]:
        views, unread = [], []
        for node, entry, lease_ms, packed in scripts.nodes(self._client, self._keys, stats=stats):
            try:
                info, epoch = _ENTRY.decode(entry)
                said = NodeStats() if packed is None else _STATS.decode(packed)
            except msgspec.MsgspecError:
                unread.append(UnreadNode(node, _epoch_of(entry), is_alive=lease_ms > 0))
                continue
            views.append(NodeView(info=info, epoch=Epoch(epoch), lease_left_s=lease_ms / 1000, stats=said))
        return sorted(views, key=lambda view: view.info.node), sorted(unread, key=lambda one: one.node)

    def registered(self) -> dict[NodeId, Epoch | None]:
        """The life of each node that counts; None where the entry does not decode, such as one of a later version."""
        entries: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.nodes())
        return {NodeId(name.decode()): _epoch_of(entry) for name, entry in entries.items()}

    def retired_tokens(self) -> dict[TenantId, TokenCounts]:
        """Per tenant, the sum over all lives that have ended. What later releases count besides is left out."""
        sums: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.retired_tokens())
        fields: dict[TenantId, dict[str, int]] = {}
        for name, value in sums.items():
            tenant, _, field = name.decode().rpartition("|")
            counts = fields.setdefault(TenantId(tenant), {})
            if field in TokenCounts.__struct_fields__:
                counts[field] = int(value)
        return {tenant: TokenCounts(**counts) for tenant, counts in sorted(fields.items())}


def _epoch_of(entry: bytes) -> Epoch | None:
    try:
        return Epoch(_REGISTERED.decode(entry)[1])
    except msgspec.MsgspecError:
        return None


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
