"""Every Redis key name, in one place.

Keys of one partition share the hash tag ``{<namespace>:<partition>}`` and keys of the cluster's own state share
``{<namespace>:c}``, so that one script can change each group atomically, on a Redis Cluster too. Which partition a
block belongs to is said here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from tiered.types import HASH_BYTES, BlockHash, Epoch, NodeId, TenantId

SCHEMA_VERSION: Final = 1
"""Of the keys and what is in them, as docs/formats.md has it. A namespace keeps the one that it was begun with."""


def partition_of(block_hash: BlockHash, partitions: int) -> int:
    """A few bits of the hash; partitions is a power of two up to 256."""
    return block_hash[0] & (partitions - 1) if partitions > 1 else 0


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of one cluster (namespace), and of those of one of its partitions of blocks."""

    namespace: str = "tiered"
    partition: int = 0
    partitions: int = 1
    _blocks: str = field(init=False, default="")
    _cluster: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blocks", f"{{{self.namespace}:{self.partition}}}:")
        object.__setattr__(self, "_cluster", f"{{{self.namespace}:c}}:")

    def every(self) -> tuple[Keys, ...]:
        """One for each partition."""
        return _partitions(self.namespace, self.partitions)

    def of(self, block_hash: BlockHash) -> Keys:
        """Those of the block's partition."""
        if self.partitions == 1:
            return self
        return _partitions(self.namespace, self.partitions)[partition_of(block_hash, self.partitions)]

    # Blocks: one partition.
    def block(self, block_hash: BlockHash) -> bytes:
        """String: the value, header and bytes."""
        return f"{self._blocks}b:".encode() + block_hash

    def hash_of(self, key: bytes) -> BlockHash | None:
        """Whose meta, value or part of a value a key is; None for any other key."""
        prefix = len(self._blocks) + 2
        if key[:prefix] not in (f"{self._blocks}b:".encode(), f"{self._blocks}m:".encode()):
            return None
        block_hash = key[prefix : prefix + HASH_BYTES]
        return BlockHash(block_hash) if len(block_hash) == HASH_BYTES else None

    def part_of(self, key: bytes) -> int:
        """Which string of a value a key is; 0 for the first one, and for a meta."""
        suffix = key[len(self._blocks) + 2 + HASH_BYTES :]
        return int(suffix[1:]) if suffix[1:].isdigit() else 0

    def blocks_pattern(self) -> bytes:
        """For SCAN: meta and values. A namespace holds none of a pattern's special characters."""
        return f"{self._blocks}[bm]:*".encode()

    def everything_pattern(self) -> bytes:
        """For SCAN: meta and values, and what lists the blocks of lives."""
        return f"{self._blocks}[bmnd]:*".encode()

    def life_of(self, key: bytes) -> tuple[NodeId, Epoch] | None:
        """Whose set or digest a key is; None for any other key."""
        prefix = len(self._blocks) + 2
        if key[:prefix] not in (f"{self._blocks}n:".encode(), f"{self._blocks}d:".encode()):
            return None
        node, _, epoch = key[prefix:].decode(errors="replace").rpartition(":")
        return (NodeId(node), Epoch(int(epoch))) if epoch.isdecimal() else None

    def meta(self, block_hash: BlockHash) -> bytes:
        """String, MessagePack: state, size, tenants, depth, expiry, owners, parent."""
        return f"{self._blocks}m:".encode() + block_hash

    def tenant_blocks(self, tenant: TenantId) -> bytes:
        """Sorted set: the tenant's block hashes by last touch, deeper blocks older."""
        return f"{self._blocks}t:{tenant}".encode()

    def usage(self) -> bytes:
        """Hash: ``u:<tenant>`` used bytes, ``p:<tenant>`` pending bytes, ``U`` and ``P`` their sums."""
        return f"{self._blocks}u".encode()

    def limits(self) -> bytes:
        """Hash: ``<tenant>`` hard limit in bytes, ``*`` the default tenant's; ``o:<tenant>`` (``o:*``) what happens
        over it, ``w:`` weight likewise, ``r:<tenant>`` reserved bytes; ``:capacity`` bytes of the tier; ``:deal``
        number of the deal they are of. All bytes are this partition's part. No tenant's name holds ``*`` or ``:``."""
        return f"{self._blocks}l".encode()

    def standings(self) -> bytes:
        """Sorted set: tenants by what they hold beyond their reserved bytes, per unit of weight."""
        return f"{self._blocks}s".encode()

    def reservations(self) -> bytes:
        """Sorted set: reserved block hashes by the server's time at which they expire, ms."""
        return f"{self._blocks}r".encode()

    def node_blocks(self, node: NodeId, epoch: Epoch) -> bytes:
        """Set: block hashes that this life of the node holds hot."""
        return f"{self._blocks}n:{node}:{epoch}".encode()

    def lives(self) -> bytes:
        """What the keys of all such sets begin with."""
        return f"{self._blocks}n:".encode()

    def node_digests(self, node: NodeId, epoch: Epoch) -> bytes:
        """Hash: how many block hashes that set has and a digest of them, so that lost batches are noticed."""
        return f"{self._blocks}d:{node}:{epoch}".encode()

    def changes(self) -> bytes:
        """Stream, bounded: what became hot or stored in this partition and what left, for who mirrors that."""
        return f"{self._blocks}c".encode()

    def why(self) -> bytes:
        """List, bounded: what the books' scripts took from whom and for whom, newest first."""
        return f"{self._blocks}y".encode()

    def lost(self) -> bytes:
        """Sorted set, bounded: blocks of which Redis alone is left though a tenant asks for two copies, by the
        server's time from which on a worker may take them, ms."""
        return f"{self._blocks}x".encode()

    def lost_dropped(self) -> bytes:
        """Integer: how many of those there was no room for."""
        return f"{self._blocks}xd".encode()

    def replicated(self) -> bytes:
        """String, short-lived: a write of which is asked whether a replica has it."""
        return f"{self._blocks}w".encode()

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

    def shape(self) -> bytes:
        """Hash: ``schema`` and ``partitions``, on which all that share the namespace agree; ``capacity``, bytes of
        the tier; ``born`` and ``before``, of which books these are."""
        return f"{self._cluster}shape".encode()

    def tenants(self) -> bytes:
        """Hash: tenant id -> JSON of TenantPolicy."""
        return f"{self._cluster}tenants".encode()

    def tenants_revision(self) -> bytes:
        """Integer: grows with every change of a tenant, so that watchers poll one small value."""
        return f"{self._cluster}tenants-rev".encode()

    def leader(self) -> bytes:
        """String with a time to live: MessagePack of who leads, its token among it."""
        return f"{self._cluster}leader".encode()

    def leader_tokens(self) -> bytes:
        """Integer: the last fencing token given out; grows for ever."""
        return f"{self._cluster}leader-token".encode()

    def shares(self) -> bytes:
        """Hash: node id -> MessagePack of what was lent to that life, ``<node id>:held`` of what it says it holds;
        ``:token`` the last writing leader's, ``:revision`` of the books, ``:settled`` 1 once all could report."""
        return f"{self._cluster}shares".encode()

    def drains(self) -> bytes:
        """Hash: node id -> the epoch of the life that is asked to drain."""
        return f"{self._cluster}drains".encode()

    def clears(self) -> bytes:
        """Hash: number of a request -> JSON of what is to be cleared everywhere, until it is."""
        return f"{self._cluster}clears".encode()

    def clear_numbers(self) -> bytes:
        """Integer: the last number given to such a request."""
        return f"{self._cluster}clears-n".encode()

    def access_tokens(self) -> bytes:
        """Hash: SHA-256 of a bearer token, hex -> JSON of what it allows."""
        return f"{self._cluster}tokens".encode()

    def deals(self) -> bytes:
        """Integer: the number of the last deal of bounds to the partitions; grows for ever."""
        return f"{self._cluster}deals".encode()


@lru_cache(maxsize=64)
def _partitions(namespace: str, partitions: int) -> tuple[Keys, ...]:
    return tuple(Keys(namespace, partition, partitions) for partition in range(partitions))
