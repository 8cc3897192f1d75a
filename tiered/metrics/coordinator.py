"""The series of a coordinator: sums over the cluster, as of its last read of the shared state."""

from __future__ import annotations

from typing import Final

from tiered.metrics.series import BUILD, Catalogue

COORDINATOR: Final = Catalogue("coordinator")
_counter, _gauge = COORDINATOR.counter, COORDINATOR.gauge

COORDINATOR.add(BUILD)

# This replica.

STALE: Final = _gauge("tiered_view_stale", "1 while Redis cannot be read and the numbers are old")
VIEW_AGE: Final = _gauge("tiered_view_age_seconds", "Since the numbers were read")
LEADER: Final = _gauge("tiered_leader", "1 while this replica leads; the sum over all replicas should be 1")
LEADER_TOKEN: Final = _gauge("tiered_leader_token", "Token of the reign this replica last heard of; grows with each")
NODES_LOST: Final = _counter(
    "tiered_nodes_lost_total",
    "Lives of nodes that ended because their lease lapsed, and not in order, as this replica found; only the leader "
    "looks, so the sum over replicas counts each once",
)

# Tenants.

CLUSTER_TOKENS: Final = _counter(
    "tiered_cluster_tokens_total",
    "The sum of tiered_tenant_tokens_total over all tenants, however many of them have no label of their own",
    "outcome",
)
TOKENS: Final = _counter(
    "tiered_tenant_tokens_total",
    "As tiered_tokens_total of the workers, over all nodes and all their lives",
    "tenant",
    "outcome",
)
ASKED: Final = _counter(
    "tiered_tenant_asked_tokens_total", "The sum of tiered_tenant_tokens_total over outcomes", "tenant"
)
HELD: Final = _gauge(
    "tiered_tenant_bytes", "Bytes held `hot` (on nodes that are alive) and in `redis`", "tenant", "tier"
)
RESERVED: Final = _gauge(
    "tiered_tenant_reserved_bytes", "Bytes promised: `hot` over all nodes alive, and in `redis`", "tenant", "tier"
)
LIMIT: Final = _gauge(
    "tiered_tenant_limit_bytes",
    "Limit: `hot` over those nodes alive that know the tenant, and in `redis`; none for who has no limit, nor for "
    "`other`",
    "tenant",
    "tier",
)
BORROWED: Final = _gauge(
    "tiered_tenant_borrowed_bytes",
    "Bytes used beyond what was promised, node by node and in `redis`",
    "tenant",
    "tier",
)
LENT: Final = _gauge(
    "tiered_tenant_lent_bytes",
    "Bytes promised and not used, which others may use meanwhile, node by node and in `redis`",
    "tenant",
    "tier",
)
SHARED_OUT: Final = _gauge(
    "tiered_tenant_share_bytes", "Of its hot total limit, what nodes alive were lent; none for who has none", "tenant"
)

# Nodes.

NODE_UP: Final = _gauge(
    "tiered_node_up",
    "1 while the node's lease runs, 0 from then until it is struck off, some seconds later",
    "node",
)
NODE_LEASE: Final = _gauge("tiered_node_lease_left_seconds", "How long the lease still runs", "node")
NODE_EPOCH: Final = _gauge("tiered_node_epoch", "Epoch of the node's life; grows with each", "node")
NODE_ENGINES: Final = _gauge("tiered_node_engines", "Engines attached to a node that is alive", "node")
NODE_POOL: Final = _gauge(
    "tiered_node_pool_blocks", "`free` and `used` blocks of nodes that are alive", "node", "state"
)

# Tiers.

TIER_BYTES: Final = _gauge(
    "tiered_tier_bytes", "Bytes of all tenants, `hot` (on nodes that are alive) and in `redis`", "tier"
)
TIER_CAPACITY: Final = _gauge(
    "tiered_tier_capacity_bytes",
    "`hot`: budgets of the pools of nodes that are alive; `redis`: none while it is unbounded",
    "tier",
)
REDIS_PENDING: Final = _gauge("tiered_redis_pending_bytes", "Bytes in Redis that are reserved and not yet committed")
HOT_DIFFERENCE: Final = _gauge(
    "tiered_cluster_hot_difference_bytes",
    "Conservation: bytes charged to all tenants less those of the blocks that are not free, over nodes alive, each "
    "difference without its sign; must be 0",
)
REDIS_DIFFERENCE: Final = _gauge(
    "tiered_redis_difference_bytes",
    "Conservation, in the last audit that nobody wrote during: bytes charged to tenants by the blocks' records less "
    "those in the books, tenant by tenant without sign (`records`); the books' tenants less the books' sum "
    "(`books`); the books' sum less the bytes that Redis holds (`stored`). Must be 0. None where this replica "
    "made no such audit within 15 minutes; only the leader audits",
    "between",
)
CONSERVED: Final = _gauge(
    "tiered_redis_conserved",
    "0 when in the last audit the sum over tenants, the books and the bytes in Redis differed, else 1; not compared "
    "while others write",
)
AUDIT: Final = _gauge(
    "tiered_redis_audit_blocks",
    "Blocks that the last whole audit found `expired`, `lost`, `stray`, `relisted`, `orphans`, `idle`, and `stamps` "
    "of nodes that do not list the block or are gone",
    "finding",
)

# What routing goes by.

MIRROR: Final = _gauge(
    "tiered_mirror_blocks",
    "Blocks that this replica knows to be `anywhere`, and of them in `redis`. About 110 bytes of its memory each",
    "where",
)
MIRROR_LAG: Final = _gauge(
    "tiered_mirror_lag_seconds",
    "Since it knew all that the directory had: about 0.1 when all is well; not there until it first did",
)
MIRROR_ENTRIES: Final = _counter("tiered_mirror_entries_total", "Changes of the directory applied")
MIRROR_RELOADS: Final = _counter(
    "tiered_mirror_reloads_total",
    "`missed`: partitions read whole again since changes were missed, as after a restart of Redis; `differed`: "
    "counts that were not those of the directory and were put right",
    "cause",
)
