"""What does the journal cost a save, and how fast does a killed worker get its blocks back?

Baseline of the saves: the same with the journal off. Baseline of the attach after a kill: one that makes
an empty pool of the same size. How long strict mode takes is what a flush of this machine's disk takes.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from _cluster import wait_until
from _harness import Report, median, timed_ms

from tiered.cli.launcher import ClusterPlan, LocalCluster
from tiered.cli.overrides import Overrides
from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.hashing.scope import ModelScope
from tiered.journal.file import About, Changes, JournalFile
from tiered.journal.rows import ROOT, JournalRow
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, BlockId, TenantId

TENANT = TenantId("bench")
SMALL = ModelScope(
    model="bench",
    weights_version="0",
    layout=KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="float32", block_tokens=16),
)
LARGE = ModelScope(
    model="bench",
    weights_version="1",
    layout=KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16", block_tokens=16),
)
"""2 MiB a block, as an 8-billion model has them."""

MODES = ("off", "batched", "strict")
RUNS = 200
LIVES = 3
POOL_BYTES = 2 << 30
ROWS = 100_000
PATIENT = RemoteOptions(attach_timeout_s=60.0, call_timeout_s=10.0)


def leave_as_it_is(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
    """The content does not matter here."""


def number_blocks(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
    for offset, block_id in enumerate(block_ids):
        pool.tensor[block_id].fill_(first_index + offset)


@contextmanager
def worker(mode: str, *, hot_bytes: int) -> Iterator[LocalCluster]:
    plan = ClusterPlan(n_workers=1, hot_bytes=hot_bytes, overrides=Overrides(worker={"journal.mode": mode}))
    with LocalCluster(plan, say=lambda line: None) as cluster:
        yield cluster


def attach(cluster: LocalCluster, scope: ModelScope) -> RemoteClient:
    return RemoteClient.attach(str(cluster.workers[0].socket_path), scope, options=PATIENT)


def save_ms(client: RemoteClient, n_blocks: int, seeds: Iterator[int]) -> float:
    """Median over fresh prompts: open, allocate, commit, release."""
    tokens = n_blocks * client.layout.block_tokens

    def once() -> None:
        first = next(seeds) * 100_000
        saved = client.save(list(range(first, first + tokens)), tenant=TENANT, fill=leave_as_it_is)
        assert saved.n_stored == n_blocks, saved

    return median([timed_ms(once) for _ in range(RUNS)])


def measure_saves(report: Report) -> None:
    seeds = itertools.count()
    off: dict[int, float] = {}
    for mode in MODES:
        with worker(mode, hot_bytes=512 << 20) as cluster, closing(attach(cluster, SMALL)) as client:
            for n_blocks in (1, 64):
                took = save_ms(client, n_blocks, seeds)
                off.setdefault(n_blocks, took)
                report.add(f"save of {n_blocks} blocks, {mode}", took, "ms", baseline=off[n_blocks])


def attach_ms(cluster: LocalCluster) -> tuple[float, RemoteClient]:
    started = time.perf_counter()
    client = attach(cluster, LARGE)
    return (time.perf_counter() - started) * 1e3, client


def next_life(cluster: LocalCluster) -> None:
    [one] = cluster.workers
    one.kill()
    one.child.spawn()
    wait_until(lambda: one.child.ready, "the next life of the worker")


def measure_adoption(report: Report) -> None:
    n_blocks = int(0.9 * POOL_BYTES) // LARGE.layout.block_bytes
    tokens = list(range(n_blocks * LARGE.layout.block_tokens))
    empty_ms, adopting_ms = [], []
    with worker("batched", hot_bytes=POOL_BYTES) as cluster:
        for _ in range(LIVES):
            took_ms, client = attach_ms(cluster)
            empty_ms.append(took_ms)
            client.close()
            next_life(cluster)
        with closing(attach(cluster, LARGE)) as client:
            assert client.save(tokens, tenant=TENANT, fill=number_blocks).n_stored == n_blocks
            time.sleep(1.0)  # ten batches: all of it is written
        for _ in range(LIVES):
            next_life(cluster)
            took_ms, client = attach_ms(cluster)
            adopting_ms.append(took_ms)
            with closing(client):
                assert len(client.match(tokens, tenant=TENANT).block_ids) == n_blocks
                time.sleep(1.0)  # the next life reads what this one has written
    gib = n_blocks * LARGE.layout.block_bytes / (1 << 30)
    took_ms = median(adopting_ms)
    report.add(f"attach after a kill, {gib:.1f} GiB adopted", took_ms, "ms", baseline=median(empty_ms))
    report.add("adopted in that time", gib / (took_ms / 1e3), "GiB/s")


def measure_file(report: Report) -> None:
    directory = Path(tempfile.mkdtemp(prefix="tiered-bench-"))
    rows = [
        JournalRow(BlockHash(n.to_bytes(32, "little")), ROOT, b"s" * 32, (TENANT,), 0, slot=n, checksum=bytes(16))
        for n in range(ROWS)
    ]
    try:
        file = JournalFile(directory / "j", mode="batched", node="w")
        report.add(f"begin with {ROWS} rows", timed_ms(lambda: file.begin(About("w", "l", "p"), rows)), "ms")
        batch = [Changes(stored=rows[:10_000])]
        report.add(
            "a batch of 10000 rows", median([timed_ms(lambda: file.apply(batch, pool="p")) for _ in range(9)]), "ms"
        )
        file.close()
        opened: list[JournalFile] = []
        report.add(
            f"open and check {ROWS} rows",
            timed_ms(lambda: opened.append(JournalFile(directory / "j", mode="batched", node="w"))),
            "ms",
        )
        report.add(f"read {ROWS} rows", timed_ms(opened[0].rows), "ms")
        report.add("a row on the disk", (directory / "j").stat().st_size / ROWS, "bytes")
        opened[0].close()
    finally:
        shutil.rmtree(directory)


def main() -> None:
    report = Report("journal")
    measure_file(report)
    measure_saves(report)
    measure_adoption(report)
    report.finish()


if __name__ == "__main__":
    main()
