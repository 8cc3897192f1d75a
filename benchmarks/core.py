"""What does a decision cost? Median microseconds a block of the core's verbs, and how they grow with the pool.

Baseline of the match: SHA-256 of the same blocks, without which nothing can be found. Baseline of each other row: the
same with 10,000 blocks. Times are of this process's own CPU, the pool has no bytes.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

from _harness import Report, median

from tiered.core.allocate import allocate
from tiered.core.commit import commit
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.match import match, open_lease
from tiered.core.release import release
from tiered.core.why import WhyLog
from tiered.eviction.registry import policy_factory
from tiered.hashing.chain import chain_hashes
from tiered.types import BlockHash, TenantId

TENANT = TenantId("bench")
SCOPE = b"\0" * 32
CONNECTION = 1
CHAIN_BLOCKS = 128
"""Of one prompt: 2,048 tokens in blocks of 16."""

ROUNDS = 60
SIZES = (10_000, 100_000, 1_000_000)


def new_core(n_blocks: int) -> CacheCore:
    options = CoreOptions(block_bytes=1, block_tokens=16, policy=policy_factory("lru"), lower_tier=False)
    return CacheCore(options, n_blocks)


def prompt(number: int) -> list[int]:
    return [(number * 7_919 + i) % 50_000 for i in range(CHAIN_BLOCKS * 16)]


def hashes_of(number: int) -> list[BlockHash]:
    return chain_hashes(number.to_bytes(32, "little"), prompt(number), block_tokens=16)


def save(core: CacheCore, hashes: list[BlockHash]) -> None:
    lease = open_lease(core, hashes, connection=CONNECTION, tenant=TENANT, scope_id=SCOPE)
    while (grant := allocate(core, lease, n_blocks_max=len(hashes))).block_ids:
        commit(core, lease, [None] * len(grant.block_ids))
    release(core, lease, used_tokens=0)
    core.drain_events()
    if core.why is not None:
        core.why.take()


def fill(core: CacheCore) -> int:
    """Full of distinct prompts; returns the number of the next one."""
    number = 0
    while core.table.free_list:
        save(core, hashes_of(number))
        number += 1
    return number


def per_block_us(work: Callable[[], object]) -> float:
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e3 / CHAIN_BLOCKS


def hot_match_us(core: CacheCore, number: int) -> float:
    tokens, root = prompt(number), number.to_bytes(32, "little")

    def once() -> None:
        hashes = chain_hashes(root, tokens, block_tokens=16)
        lease = match(
            core, hashes, connection=CONNECTION, tenant=TENANT, scope_id=SCOPE, asked_tokens=len(tokens), now=0.0
        )
        assert len(lease.pinned) == CHAIN_BLOCKS
        release(core, lease, used_tokens=0)

    return median([per_block_us(once) for _ in range(ROUNDS)])


def replace_us(core: CacheCore, number: int) -> float:
    """Of saving prompts that the full pool does not know: each block takes the place of another."""
    fresh = [hashes_of(number + i) for i in range(ROUNDS)]

    def once() -> None:
        save(core, fresh.pop())

    return median([per_block_us(once) for _ in range(ROUNDS)])


def main() -> None:
    report = Report("core")
    tokens = prompt(0)
    sha_us = median([per_block_us(lambda: chain_hashes(SCOPE, tokens, block_tokens=16)) for _ in range(ROUNDS)])
    report.add("hash chain, a block", sha_us, "us")
    told_us = 0.0
    matched_us: dict[int, float] = {}
    replaced_us: dict[int, float] = {}
    for n_blocks in SIZES:
        core = new_core(n_blocks)
        number = fill(core)
        gc.collect()
        gc.freeze()
        matched_us[n_blocks] = hot_match_us(core, number - 1)
        replaced_us[n_blocks] = replace_us(core, number)
        if n_blocks == SIZES[0]:
            core.why = WhyLog()
            told_us = replace_us(core, number + ROUNDS)
        del core
        gc.unfreeze()
    smallest = SIZES[0]
    report.add(f"hot match with hashing and release, {smallest} blocks", matched_us[smallest], "us", baseline=sha_us)
    report.add(f"allocate, commit and evict, {smallest} blocks", replaced_us[smallest], "us")
    report.add("the same, and noted for the why-log", told_us, "us", baseline=replaced_us[smallest])
    for n_blocks in SIZES[1:]:
        report.add(f"hot match, {n_blocks} blocks", matched_us[n_blocks], "us", baseline=matched_us[smallest])
        what = f"allocate, commit and evict, {n_blocks} blocks"
        report.add(what, replaced_us[n_blocks], "us", baseline=replaced_us[smallest])
    report.add("record of a block", float(sys.getsizeof(new_core(1).table.records[0])), "bytes")
    report.finish()


if __name__ == "__main__":
    main()
