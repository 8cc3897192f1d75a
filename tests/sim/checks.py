"""What must hold, at every moment and once all is quiet.

Owns the rules as the simulation can see them: with all processes and the shared state before its eyes at one instant.
``AssertionError`` names the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from coordinator.view.mirror import REDIS_BIT
from tests.sim.node import Node
from tiered.blocks.state import BlockState
from tiered.cluster.digest import digest_of
from tiered.cluster.directory import Directory, whereabouts_of
from tiered.cluster.keys import partition_of
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.codec.frame import HEADER_BYTES
from tiered.core.invariants import check_core
from tiered.types import NO_EPOCH, NO_HASH, BlockHash, Epoch, NodeId, TenantId

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

MOMENT_S = 0.002

EXPECTED_MISSES = {"absent", "unavailable", "resting", "epoch", "node", "busy"}
"""Reasons for a block that did not come, all of which say that it was not sent."""


def check_node(node: Node) -> None:
    """I1 to I5 of its core, and that whatever can be matched has the bytes of its hash (I2, I6)."""
    core = node.hot.core
    check_core(core)
    for block_id, record in core.resident():
        if record.state in (BlockState.READY, BlockState.LEAVING):
            found = bytes(node.memory.host_view(block_id))
            assert found == record.block_hash, f"I6: {node.name}: slot {block_id} does not hold its block's bytes"


def check_fences(cluster: Cluster) -> None:
    """A life ends on its node no later than in the shared state, and no two processes ever have one epoch (I8)."""
    registered = {view.info.node: view for view in Membership(cluster.client, cluster.keys).nodes()}
    for node in cluster.running():
        epoch = _epoch(cluster, node)
        if epoch == NO_EPOCH:
            continue
        owner = cluster.epochs.setdefault(epoch, node)
        assert owner is node, f"I8: epoch {epoch} belongs to two processes"
        view = registered.get(node.name)
        if epoch <= cluster.forgotten_epoch or (view is not None and view.epoch > epoch):
            continue
        assert view is not None, f"I8: {node.name} acts under epoch {epoch}, which has ended"
        assert view.epoch == epoch, f"I8: {node.name} acts under epoch {epoch}, which has ended"
        assert view.alive, f"I8: {node.name} acts under epoch {epoch}, whose lease has lapsed"


def check_leaders(cluster: Cluster) -> None:
    """Two never lead at once, and what was lent last was lent under the newest token that ever lent."""
    leading = []
    for coordinator in cluster.coordinators.values():
        if coordinator.host.alive and not coordinator.host.frozen:
            with cluster.loop.being(coordinator.host):
                if (token := coordinator.leading.token()) > cluster.forgotten_token:
                    leading.append((token, coordinator.host.name))
    assert len(leading) <= 1, f"two lead: {leading}"
    token = int(cluster.shared.store.do([b"HGET", cluster.keys.shares(), b":token"]) or 0)
    assert token >= cluster.lent_under, f"an older leader's shares were written: {token} after {cluster.lent_under}"
    cluster.lent_under = token


def check_limits(cluster: Cluster) -> None:
    """The limits in force that members were lent in their present lives sum to the total at most (I5).

    They may be above it from when a total was lowered, or a node brought back what it had kept while it was cut off,
    until all that is lent is within it and every node has taken what it was lent.
    """
    members = Membership(cluster.client, cluster.keys).registered()
    present = [node for node in cluster.running() if _epoch(cluster, node) == members.get(node.name)]
    keeps = any(node.hot.shares and node.hot.lent_to != members[node.name] for node in present)
    for tenant, total in _totals(cluster).items():
        if keeps or cluster.totals.get(tenant) != total:  # by hand, or given back to a server that had forgotten it
            cluster.over.add(tenant)
        cluster.totals[tenant] = total
        lent = {
            node.name: node.hot.core.ledger.limit_bytes(tenant) or 0
            for node in present
            if node.hot.lent_to == members[node.name]
        }
        assert sum(lent.values()) <= total or tenant in cluster.over, (
            f"I5: {tenant} has {lent} in force, {total} in all"
        )
        if tenant in cluster.over and not keeps and _have_taken(cluster, present, tenant, total):
            cluster.over.remove(tenant)


def _have_taken(cluster: Cluster, present: Sequence[Node], tenant: TenantId, total: int) -> bool:
    books = Shares(cluster.client, cluster.keys).books()
    ceilings = [record.tenants[tenant].ceiling_bytes for record in books.lent.values() if tenant in record.tenants]
    taken = {node.name: node.share.revision for node in present}
    return sum(ceilings) <= total and all(
        name in books.lent and books.lent[name].revision <= revision for name, revision in taken.items()
    )


def _totals(cluster: Cluster) -> dict[TenantId, int]:
    policies = Tenants(cluster.client, cluster.keys).policies()
    return {t: total for t, policy in policies.items() if (total := policy.hot_total_limit_bytes) is not None}


def _epoch(cluster: Cluster, node: Node) -> Epoch:
    """Under which it acts, and will in a moment; NO_EPOCH while it is fenced. Servers count in whole milliseconds."""
    node.host.skew_s += MOMENT_S
    try:
        with cluster.loop.being(node.host):
            return node.membership.epoch
    finally:
        node.host.skew_s -= MOMENT_S


def check_books(cluster: Cluster) -> None:
    """Used and pending bytes are the sums over the records, and committed values are there (I5), in each
    partition."""
    store = cluster.shared.store
    for part in cluster.keys.every():
        used: Counter[str] = Counter()
        pending: Counter[str] = Counter()
        prefix = part.meta(NO_HASH)
        for key in store.live_keys():
            if not key.startswith(prefix):
                continue
            state, size, tenants = cluster.record(store.keys[key])
            if state == 1:
                pending[tenants[0]] += size
            elif state == 2:
                for place, tenant in enumerate(tenants):
                    used[tenant] += size // len(tenants) + (place < size % len(tenants))
        flat = store.do([b"HGETALL", part.usage()])
        books = {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
        expected = {f"u:{t}": n for t, n in used.items()} | {f"p:{t}": n for t, n in pending.items()}
        expected |= {"U": used.total(), "P": pending.total()}
        assert books == {name: n for name, n in expected.items() if n}, f"I5: the books say {books}, not {expected}"
        limits = store.do([b"HGETALL", part.limits()])
        for tenant, limit in zip(limits[::2], limits[1::2], strict=True):
            name = tenant.decode()
            if name not in cluster.redis_limits:
                continue
            held = books.get(f"u:{name}", 0) + books.get(f"p:{name}", 0)
            if held <= int(limit):
                cluster.owing.discard((part.partition, name))
            else:
                assert (part.partition, name) in cluster.owing, (
                    f"I5: {name} has {held} of {int(limit)} bytes in Redis"
                )


def check_bounds(node: Node) -> None:
    """I9: whatever waits is bounded."""
    core = node.hot.core
    pending = node.announcer.pending_blocks
    assert pending <= len(core.index) + 200_000, f"I9: {pending} blocks are still to be announced"
    assert len(core.leaving) <= core.options.leaving_max, f"I9: {len(core.leaving)} copies under way"


def check_bytes(cluster: Cluster) -> None:
    """Nobody was ever sent, or found stored, anything but a block's own bytes: what is on its way stays pinned
    (I2)."""
    for node in cluster.born:
        bad = {reason: n for reason, n in node.peers.counters().misses.items() if reason not in EXPECTED_MISSES}
        assert not bad, f"I2: {node.host.name} was sent by peers what was not asked for: {bad}"
        bad = {reason: n for reason, n in node.redis.counters().misses.items() if reason not in EXPECTED_MISSES}
        assert not bad, f"I6: {node.host.name} found stored what does not belong there: {bad}"
        torn = node.hot._built.driver.counters.torn_copies if node.hot._built is not None else 0
        assert not torn, f"I2: {node.host.name} copied {torn} blocks whose slots had changed meanwhile"


# Once all is quiet.


def differences(cluster: Cluster) -> list[str]:
    """What the directory, the mirrors and the nodes do not agree on; empty when all is as it should be."""
    found: list[str] = []
    held: dict[BlockHash, set[tuple[NodeId, Epoch]]] = {}
    store, keys = cluster.shared.store, cluster.keys
    directory = Directory(cluster.client, keys)
    lives = set()
    for node in cluster.running():
        epoch = _epoch(cluster, node)
        if epoch == NO_EPOCH:
            found.append(f"{node.name} is no member")
            continue
        lives.add((node.name, epoch))
        resident = node.hot.core.resident_hashes()
        for block_hash in resident:
            held.setdefault(block_hash, set()).add((node.name, epoch))
        digests = directory.digests(node.name, epoch)
        here: list[list[BlockHash]] = [[] for _ in range(keys.partitions)]
        for block_hash in resident:
            here[partition_of(block_hash, keys.partitions)].append(block_hash)
        if digests != [digest_of(part) for part in here]:
            found.append(f"the digests of {node.name} are {digests}")
        found += _leftovers(node)
    listed: dict[BlockHash, set[tuple[NodeId, Epoch]]] = {}
    stored = set()
    parts = {part.meta(NO_HASH)[:-2]: part for part in keys.every()}
    for key in store.live_keys():
        head, separator, rest = key.partition(b"}:")
        part = parts.get(head + separator)
        if part is None:
            continue
        if rest[:2] == b"m:":
            where = whereabouts_of(store.keys[key])
            block_hash = BlockHash(rest[2:])
            if where.owners:
                listed[block_hash] = {(owner.node, owner.epoch) for owner in where.owners}
            if where.in_redis:
                stored.add(block_hash)
        elif (life := part.life_of(key)) is not None and life not in lives:
            found.append(f"the directory still lists {life}")
    for block_hash in held.keys() | listed.keys():
        if held.get(block_hash) != listed.get(block_hash):
            found.append(f"{block_hash.hex()[:8]}: held {held.get(block_hash)}, listed {listed.get(block_hash)}")
    found += _mirrored(cluster, held, stored)
    return found


def _leftovers(node: Node) -> Iterable[str]:
    """What no request should leave behind it."""
    core = node.hot.core
    left = {
        "leases": len(core.leases),
        "loads": len(core.loads),
        "strays": len(core.strays),
        "filling": len(core.filling),
        "copies": len(core.leaving) + len(core.recalled),
        "pins": sum(record.pins for record in core.table.records),
    }
    return [f"{node.name} still has {n} {what}" for what, n in left.items() if n]


def _mirrored(
    cluster: Cluster, held: dict[BlockHash, set[tuple[NodeId, Epoch]]], stored: set[BlockHash]
) -> Iterable[str]:
    everything = list(held.keys() | stored)
    for coordinator in cluster.coordinators.values():
        mirror = coordinator.follower.mirror
        if mirror.counts.blocks != len(everything):
            yield f"the mirror of {coordinator.host.name} has {mirror.counts.blocks} blocks, not {len(everything)}"
        lives, at = mirror.lives, {}
        for block_hash, mask in zip(everything, mirror.masks(everything), strict=True):
            if mask not in at:
                at[mask] = {life for life, bit in lives.items() if bit & mask}
            nodes, in_redis = at[mask], bool(mask & REDIS_BIT)
            expected = held.get(block_hash, set())
            if nodes != expected or in_redis != (block_hash in stored):
                yield f"{block_hash.hex()[:8]} is mirrored at {nodes}, held by {expected}"


def remains(cluster: Cluster) -> list[bytes]:
    """Keys of blocks and of lives that hold them."""
    store = cluster.shared.store
    return [
        key
        for key in store.live_keys()
        for part in cluster.keys.every()
        if part.hash_of(key) is not None or part.life_of(key) is not None
    ]


def check_conserved(cluster: Cluster) -> None:
    """Every committed record has its value, and every value its record."""
    store = cluster.shared.store
    for part in cluster.keys.every():
        for key in store.live_keys():
            block_hash = part.hash_of(key)
            if block_hash is None or key != part.block(block_hash):
                continue
            packed = store.keys.get(part.meta(block_hash))
            assert packed is not None, "a value that no record names"
            state, size, _ = cluster.record(packed)
            assert state != 2 or size == len(store.keys[key]) >= HEADER_BYTES, "a value of another size"
