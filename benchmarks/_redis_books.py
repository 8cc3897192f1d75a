"""What the books of the Redis tier cost: looking chains up, bytes a block, reservations a second.

Two servers of one kind hold few and many blocks under values of 8 bytes, written through the same scripts as any
block; lookups alternate between them. Not a benchmark itself.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256

import redis
from _harness import Report, median, timed_ms
from _redis_movers import EMPTY, settings_for

from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.tiers.redis.tier import RedisTier
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, TenantId

CHAIN_BLOCKS = 512
"""8,192 tokens in blocks of 16."""

VALUE = b"12345678"
FILL_BLOCKS = 8 * CHAIN_BLOCKS
JOB_BLOCKS = 32
LOOKUPS = 400
JOBS = 300
NODE, EPOCH = NodeId("node-1"), Epoch(1)
TENANT = TenantId("benchmark")
"""The name stands in every record; four of its letters are for the bytes that the size of a real value takes more."""


def chain(index: int) -> list[BlockHash]:
    return [BlockHash(sha256(b"%d/%d" % (index, depth)).digest()) for depth in range(CHAIN_BLOCKS)]


class Books:
    """One server's, and a client of each kind."""

    def __init__(self, url: str) -> None:
        settings = settings_for(url)
        self.keys = Keys(settings.namespace)
        self.plain = redis.Redis.from_url(url, protocol=2)
        self.tier = RedisTier(settings)
        client = connect(settings, timeout_s=settings.control_timeout_s)
        self.ledger = RedisLedger(client, self.keys)
        self.directory = Directory(client, self.keys)
        self.n_chains = 0

    def empty(self) -> None:
        self.plain.execute_command(*EMPTY)

    def used_bytes(self) -> int:
        used: int = self.plain.info("memory")["used_memory"]
        return used

    def write_values(self, hashes: Sequence[BlockHash]) -> None:
        self.plain.mset({self.keys.block(block_hash): VALUE for block_hash in hashes})

    def store(self, hashes: Sequence[BlockHash]) -> float:
        """Reserve, write, commit; the seconds without the writing, which is the data path's."""
        depths = [i % CHAIN_BLOCKS for i in range(len(hashes))]
        parents = [hashes[i - 1] if depth else NO_HASH for i, depth in enumerate(depths)]
        requests = [
            ReserveRequest(block_hash, TENANT, len(VALUE), depth, parent)
            for block_hash, depth, parent in zip(hashes, depths, parents, strict=True)
        ]
        start = time.perf_counter()
        answers = self.ledger.reserve(requests, ttl_s=60.0)
        reserved_s = time.perf_counter() - start
        assert all(answer.reserved for answer in answers), set(answers)
        self.write_values(hashes)
        start = time.perf_counter()
        committed = self.ledger.commit([(block_hash, TENANT, len(VALUE)) for block_hash in hashes])
        assert all(committed)
        return reserved_s + time.perf_counter() - start

    def fill(self, n_chains: int) -> None:
        for hashes in _chunks(n_chains):
            self.store(hashes)
            self.directory.announce(NODE, EPOCH, stored=hashes, removed=())
        self.n_chains = n_chains

    def close(self) -> None:
        self.tier.close()
        self.plain.close()


def _chunks(n_chains: int) -> Iterator[list[BlockHash]]:
    for start in range(0, n_chains, FILL_BLOCKS // CHAIN_BLOCKS):
        indices = range(start, min(n_chains, start + FILL_BLOCKS // CHAIN_BLOCKS))
        yield list(itertools.chain.from_iterable(map(chain, indices)))


def measure_books(report: Report, server: str, url: str, second_url: str, *, n_blocks: int, few_blocks: int) -> None:
    """url's server is to hold n_blocks, second_url's few_blocks; both come and go empty."""
    many, few = Books(url), Books(second_url)
    try:
        _measure_rate(report, server, many)
        _measure_bytes(report, server, many, n_blocks // CHAIN_BLOCKS)
        few.fill(few_blocks // CHAIN_BLOCKS)
        _measure_lookups(report, server, many, few)
    finally:
        for books in (many, few):
            books.empty()
            books.close()


def _measure_rate(report: Report, server: str, books: Books) -> None:
    fresh = itertools.count(1)
    for n in (JOB_BLOCKS, CHAIN_BLOCKS):
        seconds = []
        for _ in range(JOBS * JOB_BLOCKS // n):
            first = next(fresh)
            seconds.append(books.store([BlockHash(sha256(b"rate %d/%d" % (first, i)).digest()) for i in range(n)]))
        report.add(f"{server}, reserve and commit, {n} at a time", n / median(seconds), "blocks/s")
    books.empty()


def _measure_bytes(report: Report, server: str, books: Books, n_chains: int) -> None:
    """What the books add to bare values of the same number under the same names."""
    n_blocks = n_chains * CHAIN_BLOCKS
    empty = books.used_bytes()
    for hashes in _chunks(n_chains):
        books.write_values(hashes)
    values = books.used_bytes() - empty
    books.empty()
    empty = books.used_bytes()
    start = time.perf_counter()
    books.fill(n_chains)
    elapsed_s = time.perf_counter() - start
    per_block = (books.used_bytes() - empty - values) / n_blocks
    report.add(f"{server}, ledger and directory, {n_blocks:,} blocks", per_block, "bytes/block")
    report.add(f"{server}, filling, values and announcements included", n_blocks / elapsed_s, "blocks/s")


def _measure_lookups(report: Report, server: str, many: Books, few: Books) -> None:
    order = random.Random(0)
    missing = chain(-1)
    kinds = {"present": CHAIN_BLOCKS, "half present": CHAIN_BLOCKS // 2, "absent": 0}
    for kind, n_present in kinds.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * LOOKUPS):
            is_many = turn % 2 == 0
            books = many if is_many else few
            hashes = chain(order.randrange(books.n_chains))[:n_present] + missing[n_present:]
            found = []
            ms = timed_ms(lambda books=books, hashes=hashes, found=found: found.extend(books.tier.lookup(hashes)))
            assert sum(where.in_redis for where in found) == n_present
            if turn >= 20:
                times[is_many].append(ms)
        for name, cut in (("p50", 49), ("p99", 98)):
            value, baseline = (statistics.quantiles(times[is_many], n=100)[cut] for is_many in (True, False))
            blocks = f"{many.n_chains * CHAIN_BLOCKS:,} blocks / {few.n_chains * CHAIN_BLOCKS:,}"
            report.add(f"{server}, lookup of 512, {kind}, {name}, {blocks}", value, "ms", baseline=baseline)
