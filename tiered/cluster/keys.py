"""Every Redis key name, in one place.

Keys of one partition share the hash tag ``{<namespace>:<partition>}`` and keys of the cluster's own state share
``{<namespace>:c}``, so that one script can change each group atomically, on a Redis Cluster too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tiered.types import BlockHash, Epoch, NodeId, TenantId


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of one cluster (namespace) and one partition of its blocks."""

    namespace: str = "tiered"
    partition: int = 0
    _blocks: str = field(init=False, default="")
    _cluster: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blocks", f"{{{self.namespace}:{self.partition}}}:")
        object.__setattr__(self, "_cluster", f"{{{self.namespace}:c}}:")

    # Blocks: one partition.
    def block(self, block_hash: BlockHash) -> bytes:
        """String: the value, header and bytes."""
        return f"{self._blocks}b:".encode() + block_hash

    def meta(self, block_hash: BlockHash) -> bytes:
        """String, MessagePack: state, size, tenant, depth, owners."""
        return f"{self._blocks}m:".encode() + block_hash

    def tenant_blocks(self, tenant: TenantId) -> bytes:
        """Sorted set: the tenant's block hashes by last touch, deeper blocks older."""
        return f"{self._blocks}t:{tenant}".encode()

    def usage(self) -> bytes:
        """Hash: ``u:<tenant>`` used bytes, ``p:<tenant>`` pending bytes, ``U`` and ``P`` their sums."""
        return f"{self._blocks}u".encode()

    def limits(self) -> bytes:
        """Hash: ``<tenant>`` hard limit in bytes, ``*`` the default tenant's; ``o:<tenant>`` (``o:*``) what happens
        over it; ``:capacity`` bytes of the whole tier. No tenant's name holds ``*`` or ``:``."""
        return f"{self._blocks}l".encode()

    def reservations(self) -> bytes:
        """Sorted set: reserved block hashes by the server's time at which they expire, ms."""
        return f"{self._blocks}r".encode()

    def node_blocks(self, node: NodeId, epoch: Epoch) -> bytes:
        """Set: block hashes that this life of the node holds hot."""
        return f"{self._blocks}n:{node}:{epoch}".encode()

    # The cluster's own state.
    def epochs(self) -> bytes:
        """Integer: the last epoch given out; grows for ever."""
        return f"{self._cluster}epoch".encode()

    def nodes(self) -> bytes:
        """Hash: node id -> MessagePack of NodeInfo and epoch."""
        return f"{self._cluster}nodes".encode()

    def node_lease(self, node: NodeId) -> bytes:
        """String with a time to live: the epoch whose lease is running."""
        return f"{self._cluster}lease:{node}".encode()

    def node_stats(self) -> bytes:
        """Hash: node id -> MessagePack of NodeStats."""
        return f"{self._cluster}stats".encode()

    def retired_tokens(self) -> bytes:
        """Hash: ``<tenant>|<field of TokenCounts>`` -> sum over the lives that have ended."""
        return f"{self._cluster}retired".encode()

    def tenants(self) -> bytes:
        """Hash: tenant id -> JSON of TenantPolicy."""
        return f"{self._cluster}tenants".encode()

    def tenants_revision(self) -> bytes:
        """Integer: grows with every change of a tenant, so that watchers poll one small value."""
        return f"{self._cluster}tenants-rev".encode()
