"""How many blocks a second does the directory hear of, and what does a lookup cost meanwhile?

A worker holds POOL_BLOCKS blocks and says BATCH others in each batch, half of it come and half gone, as its announcer
says them: numbered, with digests and the stream of changes. As many are said through the script as it was before that
(its text is in ``_directory_before.py``), in alternating rounds; the ratio is that of the medians. Several workers
are several processes. Lookups are of a chain of 512 blocks: alone, and while PACE blocks a second are said in batches
of the announcer's interval.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final, TypeAlias

import _directory_before
from _harness import Report, median, timed_ms

from tiered.cluster.announcing import Announcing, Say
from tiered.cluster.calls import Script
from tiered.cluster.connection import Client, connect
from tiered.cluster.directory import Directory
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.config import RedisSettings
from tiered.types import BlockHash, Epoch, NodeId

POOL_BLOCKS: Final = 16_384
"""Of one worker: 6 GiB in blocks of 360 KiB."""

BATCH: Final = 4_096
BATCHES: Final = 8
ROUNDS: Final = 7
WORKERS: Final = 4
CHAIN: Final = 512
PACE: Final = 20_000
INTERVAL_S: Final = 0.05
LOOKUPS: Final = 300
START_S: Final = 60.0
EPOCH: Final = Epoch(1)
BEFORE: Final = Script(_directory_before.TEXT, hashlib.sha1(_directory_before.TEXT.encode()).hexdigest())
Change: TypeAlias = tuple[list[BlockHash], list[BlockHash]]
SPAWN: Final = multiprocessing.get_context("spawn")


def hashes_of(name: str, start: int, n_blocks: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{i}".encode()).digest()) for i in range(start, start + n_blocks)]


class Churn:
    """Blocks that come and leave in order, so that as many are there all the time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first, self.next = 0, POOL_BLOCKS

    def at_first(self) -> list[BlockHash]:
        return hashes_of(self.name, 0, POOL_BLOCKS)

    def batches(self) -> list[Change]:
        return [self.batch(BATCH) for _ in range(BATCHES)]

    def batch(self, n_blocks: int) -> Change:
        half = n_blocks // 2
        removed, stored = hashes_of(self.name, self.first, half), hashes_of(self.name, self.next, half)
        self.first, self.next = self.first + half, self.next + half
        return stored, removed


class Worker:
    """What one process says."""

    def __init__(self, url: str, keys: Keys, name: str) -> None:
        self.client: Client = connect(RedisSettings(url=url), timeout_s=30.0)
        self.node = NodeId(name)
        self.blocks = Churn(name)
        self.directory = Directory(self.client, keys)
        self.announcing = Announcing(keys.partitions)
        self.announcing.begin_life(EPOCH, self.blocks.at_first(), 0.0)
        self.deliver()

    def churn(self) -> float:
        """Blocks a second; which ones is made up before the clock runs."""
        batches = self.blocks.batches()
        start = time.perf_counter()
        for stored, removed in batches:
            self.announcing.note(stored, removed)
            self.deliver()
        return BATCHES * BATCH / (time.perf_counter() - start)

    def walk(self, pace: int) -> float:
        """One interval's worth, at its time."""
        start = time.perf_counter()
        n_blocks = round(pace * INTERVAL_S)
        self.announcing.note(*self.blocks.batch(n_blocks))
        self.deliver()
        time.sleep(max(0.0, start + INTERVAL_S - time.perf_counter()))
        return n_blocks / (time.perf_counter() - start)

    def deliver(self) -> None:
        while isinstance(ask := self.announcing.next(0.0), Say):
            self.announcing.heard(ask, self.directory.hear(self.node, ask.epoch, ask.announcements))


class WorkerBefore:
    def __init__(self, client: Client, keys: Keys) -> None:
        self.say = partial(_directory_before.announce, client, BEFORE, keys, NodeId("before"), EPOCH)
        self.blocks = Churn("before")
        self.say(self.blocks.at_first(), ())

    def churn(self) -> float:
        batches = self.blocks.batches()
        start = time.perf_counter()
        for stored, removed in batches:
            self.say(stored, removed)
        return BATCHES * BATCH / (time.perf_counter() - start)


def update(url: str, keys: Keys, pace: int, seconds: float, begin: Barrier, rates: SimpleQueue[float]) -> None:
    """One process: its blocks a second, once all are ready. pace: what they are to be, 0: as many as go."""
    worker = Worker(url, keys, f"worker-{os.getpid()}")
    begin.wait(START_S)
    start = time.perf_counter()
    said = []
    while time.perf_counter() < start + seconds:
        said.append(worker.walk(pace) if pace else worker.churn())
    rates.put(median(said))


def measure_one(report: Report, url: str, keys: Keys, rounds: int) -> None:
    worker = Worker(url, keys, "now")
    before = WorkerBefore(worker.client, keys) if keys.partitions == 1 else None  # it knew no other number of them
    rates: list[tuple[float, float | None]] = [
        (worker.churn(), before.churn() if before else None) for _ in range(rounds + 1)
    ][1:]
    name = f"updates, one worker, {keys.partitions} partition{'s' * (keys.partitions > 1)}"
    baseline = median([rate for _, rate in rates if rate is not None]) if before else None
    report.add(name, median([rate for rate, _ in rates]), "blocks/s", baseline=baseline)


def measure_many(report: Report, url: str, keys: Keys, seconds: float) -> None:
    rate, _ = together(url, keys, 0, seconds, lambda: time.sleep(INTERVAL_S))
    report.add(f"updates, {WORKERS} workers together", rate, "blocks/s")
    directory = Directory(connect(RedisSettings(url=url), timeout_s=5.0), keys)
    chain = hashes_of("chain", 0, CHAIN)
    directory.announce(NodeId("holder"), EPOCH, stored=chain, removed=())
    alone = [timed_ms(lambda: directory.lookup(chain)) for _ in range(LOOKUPS)]
    rate, meanwhile = together(url, keys, PACE // WORKERS, seconds, lambda: directory.lookup(chain))
    name = f"lookup of {CHAIN} blocks, while {rate:,.0f} blocks/s are said"
    report.add(f"{name}, p50", median(meanwhile), "ms", baseline=median(alone))
    report.add(f"{name}, p95", _at(0.95, meanwhile), "ms", baseline=_at(0.95, alone))


def _at(part: float, values: list[float]) -> float:
    return sorted(values)[int(part * len(values))]


def together(
    url: str, keys: Keys, pace: int, seconds: float, action: Callable[[], object]
) -> tuple[float, list[float]]:
    """Of WORKERS processes the blocks a second in all, and how long the action took meanwhile, each ms."""
    begin, rates = SPAWN.Barrier(WORKERS + 1), SPAWN.SimpleQueue()
    processes = [SPAWN.Process(target=update, args=(url, keys, pace, seconds, begin, rates)) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    begin.wait(START_S)
    took = []
    while all(process.is_alive() for process in processes):
        took.append(timed_ms(action))
        time.sleep(0.005)
    for process in processes:
        process.join(START_S)
    return sum(rates.get() for _ in processes), took


def main() -> None:
    parser = argparse.ArgumentParser(description="Updates of the directory.")
    parser.add_argument("--quick", action="store_true", help="few rounds; the figures mean little")
    arguments = parser.parse_args()
    report = Report("directory")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        EmbeddedServer.start(Path(folder), maxmemory_bytes=None) as server,
    ):
        rounds = 2 if arguments.quick else ROUNDS
        for partitions in (1, 8):
            measure_one(report, server.url, Keys(f"b{partitions}", partitions=partitions), rounds)
        measure_many(report, server.url, Keys("many"), 1.0 if arguments.quick else 5.0)
    report.add("load average of the last minute, at the end", os.getloadavg()[0], "")
    report.finish()


if __name__ == "__main__":
    main()
