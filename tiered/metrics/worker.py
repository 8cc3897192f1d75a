"""The series of a worker."""

from __future__ import annotations

from typing import Final

from tiered.metrics.series import BUILD, Catalogue

WORKER: Final = Catalogue("worker")
_counter, _gauge, _histogram = WORKER.counter, WORKER.gauge, WORKER.histogram

WORKER.add(BUILD)

# The node.

INFO: Final = _gauge("tiered_worker_info", "Which node this is; always 1", "node")
EPOCH: Final = _gauge("tiered_worker_epoch", "Epoch of this life; 0 while fenced")
LEASE_LEFT: Final = _gauge("tiered_worker_lease_left_seconds", "How long the lease still runs; 0 while fenced")
HEARTBEAT_AGE: Final = _gauge(
    "tiered_worker_heartbeat_age_seconds", "Since the lease was renewed last, or taken; Redis answered then"
)
REJOINS: Final = _counter("tiered_worker_rejoins_total", "Times this process joined again after its lease was lost")
REDIS_CONNECTED: Final = _gauge("tiered_worker_redis_connected", "1 while renewals of the lease succeed")
PEERS: Final = _gauge("tiered_worker_peers", "Other workers whose lease runs")
ENGINES: Final = _gauge("tiered_worker_engines", "Engines attached")
ENGINES_REFUSED: Final = _counter(
    "tiered_worker_engines_refused_total",
    "Connections of engines that were ended: `version` (it speaks another version of the wire), `protocol` (what it "
    "said is none of it), `busy` (too many)",
    "reason",
)
DRAINING: Final = _gauge("tiered_worker_draining", "1 while the node is on its way out, and after")
DRAIN_LEFT: Final = _gauge("tiered_worker_drain_left_blocks", "Blocks in no other place that a drain has yet to move")

# The pool.

POOL: Final = _gauge(
    "tiered_pool_blocks",
    "Blocks that are `free`, `filling`, `ready`, `leaving`; none before the first engine attached",
    "state",
)
POOL_SIZE: Final = _gauge("tiered_pool_size_blocks", "Blocks of the pool; 0 before the first engine attached")
BLOCK_BYTES: Final = _gauge("tiered_pool_block_bytes", "Size of one of its blocks")
POOL_DIFFERENCE: Final = _gauge(
    "tiered_pool_difference_blocks", "Conservation: blocks over all states less the pool's size; must be 0"
)
HOT_DIFFERENCE: Final = _gauge(
    "tiered_hot_difference_bytes",
    "Conservation: bytes charged to all tenants less those of the blocks that are not free; must be 0",
)

# Tenants.

TOKENS: Final = _counter(
    "tiered_tokens_total",
    "Prompt tokens found `hot`, from a `peer`, in `redis`, or `missed`; the sum is what was asked for",
    "tenant",
    "outcome",
)
ASKED: Final = _counter(
    "tiered_asked_tokens_total", "Prompt tokens asked for: the sum of tiered_tokens_total over outcomes", "tenant"
)
SAVED: Final = _counter(
    "tiered_saved_prefill_seconds_total",
    "Time the engines did not spend on prefill: of each request the tokens that came from here, at the rate of "
    "prefill measured by then. No request counts before an engine has reported a rate. What fetching took is not "
    "taken off, and attention to a long prompt makes it cost more than the rate says",
    "tenant",
)
HOT_BYTES: Final = _gauge("tiered_hot_bytes", "Bytes charged in this pool", "tenant")
HOT_RESERVED: Final = _gauge("tiered_hot_reserved_bytes", "Bytes promised here, shares of totals included", "tenant")
HOT_LIMIT: Final = _gauge(
    "tiered_hot_limit_bytes", "Limit in force here; none for who has no limit, nor for `other`", "tenant"
)
HOT_BORROWED: Final = _gauge("tiered_hot_borrowed_bytes", "Bytes used beyond what was promised here", "tenant")
HOT_LENT: Final = _gauge(
    "tiered_hot_lent_bytes", "Bytes promised here and not used, which others may use meanwhile", "tenant"
)
EVICTED: Final = _counter("tiered_evicted_blocks_total", "Blocks that left the hot tier", "tenant")
DEMOTED: Final = _counter("tiered_demoted_blocks_total", "Of those, copied aside for Redis", "tenant")
SUFFERED: Final = _counter(
    "tiered_evictions_suffered_blocks_total", "Of those, blocks that left so that another tenant had room", "tenant"
)
CAUSED: Final = _counter(
    "tiered_evictions_caused_blocks_total",
    "Other tenants' blocks that left so that this one had room; over all tenants as many as were suffered",
    "tenant",
)
REFUSED: Final = _counter(
    "tiered_refused_blocks_total",
    "Blocks refused: `quota` (the tenant is at its limit), or `room` (all is in use or promised to others, or the "
    "node drains)",
    "tenant",
    "reason",
)
WANTED: Final = _counter(
    "tiered_wanted_bytes_total",
    "Bytes a tenant was refused, or had to evict of its own, because of its limit",
    "tenant",
)

# How long things take.

MATCH: Final = _histogram(
    "tiered_match_duration_seconds", "From an engine's match to its answer, the directory's lookup included"
)
LOAD: Final = _histogram(
    "tiered_load_duration_seconds", "From an engine's load to its answer: all the fetching waited for"
)
SAVE: Final = _histogram(
    "tiered_save_duration_seconds",
    "From an engine's request for slots to the commit of what it filled, at most 64 blocks at a time: waiting for "
    "room, and the engine's own copying, included",
)
DEMOTE: Final = _histogram(
    "tiered_demote_duration_seconds",
    "From the decision that a block leaves, or is to be copied, until Redis has it; of blocks that were stored",
)
PEER_FETCH: Final = _histogram("tiered_peer_fetch_duration_seconds", "Fetches from peers, whatever came of them")
REDIS_CALLS: Final = _histogram(
    "tiered_redis_call_duration_seconds",
    "Calls of Redis on behalf of blocks, failed ones included: `lookup` (the directory), `get` and `put` (values of "
    "a batch), `control` (one script of the books). Lookups that no engine waits for, renewals and announcements are "
    "not among them",
    "kind",
)

# Peers and Redis.

REDIS_FAILED: Final = _counter(
    "tiered_redis_failed_calls_total", "Of those calls, how many Redis did not answer", "kind"
)
BREAKER_OPEN: Final = _gauge(
    "tiered_redis_breaker_open", "1 from the failure that opened the breaker to the success that closed it"
)
BREAKER_OPENED: Final = _counter("tiered_redis_breaker_opened_total", "Times it opened")
DAMAGED: Final = _counter(
    "tiered_damaged_blocks_total",
    "Blocks whose bytes were not what they should be, none of which was served: from a `peer`, from `redis`, in a "
    "copy from the `hot` tier, in the pool of an earlier life that the `journal` named",
    "source",
)
REDIS_HITS: Final = _counter("tiered_redis_hit_blocks_total", "Blocks read from Redis and verified")
REDIS_MISSES: Final = _counter(
    "tiered_redis_missed_blocks_total",
    "Blocks asked of Redis in vain: `absent`, `unavailable`, or what was wrong: `length`, `magic`, `version`, "
    "`header`, `hash`, `scope`, `codec` (unknown, or lossy where that may not be read), `checksum`, `decode`",
    "reason",
)
REDIS_PUTS: Final = _counter(
    "tiered_redis_puts_total",
    "Blocks offered to Redis: `stored`, `stored_after_evicting_own`, `stored_after_reclaiming`, `already_there`, "
    "`refused_quota`, `refused_full`, `failed`",
    "answer",
)
REDIS_STORED: Final = _counter(
    "tiered_redis_stored_blocks_total", "Blocks written, by the codec they ended up with", "codec"
)
REDIS_READ: Final = _counter("tiered_redis_read_bytes_total", "Payload bytes read, as they are stored")
REDIS_WRITTEN: Final = _counter("tiered_redis_written_bytes_total", "Payload bytes stored, after the codec")
REPLICATED: Final = _counter(
    "tiered_redis_replicated_blocks_total",
    "Blocks written for tenants with two copies: `yes` (a replica said in time that it has them), `late`, `no "
    "replica`",
    "outcome",
)
COPIES_DROPPED: Final = _counter(
    "tiered_demotions_dropped_total", "Copies dropped because no staging buffer came back in time"
)
PEER_FETCHED: Final = _counter("tiered_peer_fetched_blocks_total", "Blocks fetched from peers and verified")
PEER_RECEIVED: Final = _counter(
    "tiered_peer_received_bytes_total", "Payload bytes of blocks that arrived whole, good or not"
)
PEER_MISSED: Final = _counter(
    "tiered_peer_missed_blocks_total",
    "Blocks a peer was asked for in vain: `absent`, `unavailable` (no connection, no answer, or not in time), "
    "`resting` (failed within the last second), `busy`, `secret`, `epoch` (another life answers), `node` (another "
    "node answers at its address), `version` (another one of the wire, or of a block), `protocol`, `refused` (by a "
    "later version, for a reason of its own), or what was wrong with a block",
    "reason",
)
PEER_SENT: Final = _counter("tiered_peer_sent_blocks_total", "Blocks sent to peers")
PEER_SENT_BYTES: Final = _counter("tiered_peer_sent_bytes_total", "Payload bytes sent to peers")
PEER_REFUSED: Final = _counter(
    "tiered_peer_refused_total",
    "Connections and requests of peers that were refused: `secret` (it does not match), `unproven` (gone, or too "
    "slow, without a proof), `epoch` (asked for blocks of a life that has ended), `version` (it speaks another "
    "version of the wire), `protocol`, `busy` (no room)",
    "reason",
)

# Fetch or compute.

PLANS: Final = _counter(
    "tiered_fetch_plans_total",
    "Prompts of which peers or Redis had more than the hot tier, by what was decided: `fetch_all`, `fetch_part`, "
    "`compute`; none while no engine has reported how fast it computes",
    "decision",
)
PLANNED: Final = _counter(
    "tiered_fetch_seconds_total",
    "How long fetches so decided were `expected` to take, and took (`measured`)",
    "kind",
)
OUT_OF_PATIENCE: Final = _counter(
    "tiered_fetch_out_of_patience_total", "Fetches that were not waited for to their end"
)
PROBES: Final = _counter("tiered_fetch_probes_total", "Fetches made only to see how fast a slow source is by now")
SOURCE_LATENCY: Final = _gauge(
    "tiered_source_latency_seconds",
    "Measured latency of a fetch from a `peer` (any, by how much came from each) and from `redis`; 0 while none is",
    "source",
)
SOURCE_RATE: Final = _gauge(
    "tiered_source_bytes_per_second", "Measured bandwidth of the same; 0 while none is measured", "source"
)
SOURCE_WAITING: Final = _gauge("tiered_source_waiting_seconds", "Work that waits at the slowest source")
PREFILL_RATE: Final = _gauge(
    "tiered_prefill_tokens_per_second", "How fast the engines compute prompts, as they report; 0 while none has"
)

# The directory.

ANNOUNCED: Final = _counter(
    "tiered_directory_announced_blocks_total", "Blocks that came or left and of which the directory has heard"
)
UNANNOUNCED: Final = _gauge("tiered_directory_unannounced_blocks", "Of which it has yet to hear")
DIFFERING: Final = _gauge(
    "tiered_directory_differing_partitions",
    "Conservation: partitions of the directory that were not what is here when they were compared last, and are not "
    "put right yet; 0 but for seconds",
)
REPAIRS: Final = _counter(
    "tiered_directory_repairs_total", "Partitions that differed from what is here and were put right"
)
REPAIRED: Final = _counter("tiered_directory_repaired_blocks_total", "Blocks that were wrong there")
REFRESHED: Final = _counter(
    "tiered_directory_refreshed_blocks_total",
    "Blocks announced again, each once in a minute or more, in case their stamps were lost",
    moves_idle=True,
)

# Two copies.

SECONDS: Final = _gauge(
    "tiered_second_blocks",
    "Blocks hot and in Redis at once, of tenants with two copies; of several nodes that hold a block one counts it",
    "tenant",
)
SECONDS_BYTES: Final = _gauge("tiered_second_bytes", "What Redis holds of those", "tenant")
SINGLES: Final = _gauge(
    "tiered_single_blocks",
    "Blocks here, of such tenants, that are in no other place; it should be 0 but for seconds",
    "tenant",
)
SECONDS_LOOKED: Final = _counter(
    "tiered_second_looked_blocks_total", "Blocks looked at for a second copy", moves_idle=True
)
SECONDS_MADE: Final = _counter("tiered_second_made_blocks_total", "Seconds made because there was none")
SECONDS_REFUSED: Final = _counter(
    "tiered_second_refused_blocks_total", "Seconds asked for in vain; each is asked for again", moves_idle=True
)
LOST_WAITING: Final = _gauge(
    "tiered_lost_waiting_blocks",
    "Blocks of the cluster that wait for a node to be their second place, as this node read it last",
)
LOST_DROPPED: Final = _gauge("tiered_lost_dropped_blocks", "Of the cluster's, those that list had no room for")
LOST_BROUGHT: Final = _counter("tiered_lost_brought_blocks_total", "Blocks this node brought up to be a second place")

# The journal; nothing of it without one.

JOURNAL_WRITTEN: Final = _counter("tiered_journal_written_rows_total", "Changes written to the journal")
JOURNAL_LOST: Final = _counter(
    "tiered_journal_lost_rows_total", "Changes lost because the disk did not keep up or refused them"
)
JOURNAL_PENDING: Final = _gauge("tiered_journal_pending_rows", "Changes that wait for the disk")
JOURNAL_FAILING: Final = _gauge("tiered_journal_failing", "1 while the disk refuses the journal")
ADOPTED: Final = _counter("tiered_adopted_blocks_total", "Blocks of the earlier life that were taken over")
NOT_ADOPTED: Final = _counter(
    "tiered_not_adopted_blocks_total",
    "Those that were not: `corrupt`, `orphan` (the block before it was not), `limit`, `room`, `time`",
    "reason",
)
WARMED: Final = _counter("tiered_warmed_blocks_total", "Blocks warmed up from Redis after the start")

# Why.

WHY_EVENTS: Final = _gauge("tiered_why_events", "Events that the why-log holds, one for each block")
WHY_BYTES: Final = _gauge("tiered_why_bytes", "What they occupy, as estimated")
WHY_DROPPED: Final = _counter("tiered_why_dropped_events_total", "Events that had to make room for later ones")
