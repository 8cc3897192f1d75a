"""A worker is killed and started again: what still verifies is hot again, all else is a miss, nothing is wrong."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.content import LAYOUT, TENANT, hashes_of, large_scope, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import spawn_worker, until
from tiered.cluster.directory import Directory
from tiered.pool import named
from tiered.types import BlockId, Source


def journal_path(cluster: SmallCluster, name: str) -> Path:
    return cluster.directory / f"tiered-{name}.journal"


def pool_files(cluster: SmallCluster, name: str) -> list[Path]:
    """The named memory of this worker and of its earlier lives."""
    return sorted(named.SHM_DIR.glob(f"{named.stem(name, journal_path(cluster, name))}-*"))


def in_redis(cluster: SmallCluster, tokens: Sequence[int]) -> int:
    found = Directory(cluster.client, cluster.keys).lookup(hashes_of(tokens))
    return sum(where.in_redis for where in found)


def written(cluster: SmallCluster, name: str, n_rows: int) -> None:
    """Wait until the journal has so many changes on the disk."""
    until(lambda: cluster.metrics(name)[("tiered_journal_written_rows_total",)] >= n_rows, f"{n_rows} rows of {name}")


def test_a_killed_workers_blocks_are_hot_again_bit_by_bit(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 16))
        save(client, prompt(2, 8))
        take(client, prompt(1, 16))
        written(cluster, "w1", 24)
    worker.kill()
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 16)) == Counter({Source.HOT: 16})
        assert take(client, prompt(2, 9)) == Counter({Source.HOT: 8})
        metrics = cluster.metrics("w1")
        assert metrics[("tiered_adopted_blocks_total",)] == 24
        assert metrics[("tiered_tokens_total", "hot", TENANT)] == 24 * 16
        cluster.wait_announced("w1", 24)


def test_an_orderly_stop_leaves_no_memory_and_no_claim(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        assert len(pool_files(cluster, "w1")) == 1
        written(cluster, "w1", 4)
    assert worker.stop() == 0
    assert pool_files(cluster, "w1") == []
    assert not journal_path(cluster, "w1").with_suffix(".journal.lock").exists()
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 4)) == Counter()


def test_memory_that_a_worker_has_yet_to_take_over_is_nobodys_to_remove(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        written(cluster, "w1", 4)
    [pool] = pool_files(cluster, "w1")
    worker.kill()
    assert pool in [left.path for left in named.leftovers()]
    worker = cluster.restart("w1")
    until(lambda: pool not in [left.path for left in named.leftovers()], "the next life has laid hands on it")
    assert worker.stop() == 0  # before any engine came
    assert pool_files(cluster, "w1") == []


def test_keep_on_stop_keeps_the_blocks_for_the_next_life(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", settings=["journal.keep_on_stop=true"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
    assert worker.stop() == 0
    assert len(pool_files(cluster, "w1")) == 1
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})
        until(lambda: len(pool_files(cluster, "w1")) == 1, "the memory of the earlier life is gone")


def test_without_a_journal_the_memory_has_no_name(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", settings=["journal.mode=off"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        assert pool_files(cluster, "w1") == []
        assert ("tiered_journal_written_rows_total",) not in cluster.metrics("w1")
    assert not journal_path(cluster, "w1").exists()
    worker.kill()
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 4)) == Counter()


def test_two_workers_of_one_name_beside_each_other_are_refused(cluster: SmallCluster) -> None:
    cluster.start("w1")
    (cluster.directory / "elsewhere").mkdir()
    other = spawn_worker(
        "w1",
        cluster.workers["w1"].argv,
        cluster.directory / "elsewhere",
        socket_path=str(cluster.directory / "other.sock"),
    )
    assert other.wait(within_s=30) == 2
    pid = cluster.workers["w1"].pid
    assert f"tiered-w1.journal is in use by another worker (pid {pid}); stop it" in other.log
    assert len(other.log.strip().splitlines()) == 1


def test_bytes_that_changed_are_not_adopted_nor_what_hangs_on_them(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        save(client, prompt(2, 4))
        written(cluster, "w1", 12)
        match = client.match(prompt(1, 8), tenant=TENANT)
        damaged = match.block_ids[3]
    worker.kill()
    [path] = pool_files(cluster, "w1")
    with path.open("r+b") as pool:
        pool.seek(damaged * LAYOUT.block_bytes + 5)
        pool.write(b"\xee")
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 3})
        assert take(client, prompt(2, 4)) == Counter({Source.HOT: 4})
        metrics = cluster.metrics("w1")
        assert metrics[("tiered_not_adopted_blocks_total", "corrupt")] == 1
        assert metrics[("tiered_not_adopted_blocks_total", "orphan")] == 4


def test_slots_overwritten_after_the_last_batch_are_not_adopted(cluster: SmallCluster) -> None:
    """Eight slots: the second prompt takes the first one's, and the kill comes before the journal hears of it."""
    [worker] = cluster.start(
        "w1", hot=str(8 * LAYOUT.block_bytes), settings=["pool.free_target=0", "pool.demote=never"]
    )
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        written(cluster, "w1", 8)
        before = journal_path(cluster, "w1").read_bytes(), Path(f"{journal_path(cluster, 'w1')}-wal").read_bytes()
        save(client, prompt(2, 5))
    worker.kill()
    journal_path(cluster, "w1").write_bytes(before[0])  # as if the kill had come at once
    Path(f"{journal_path(cluster, 'w1')}-wal").write_bytes(before[1])
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 3})
        assert take(client, prompt(2, 5)) == Counter()
        save(client, prompt(2, 5))
        assert take(client, prompt(2, 5)) == Counter({Source.HOT: 5})


def test_an_engine_that_writes_on_into_the_old_memory_changes_nothing_in_the_new(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", hot=str(16 * LAYOUT.block_bytes), settings=["pool.free_target=0"])
    with cluster.attach("w1") as client, cluster.attach("w1") as stuck:
        save(client, prompt(1, 8))
        written(cluster, "w1", 8)
        old = stuck.pool  # as seen from an engine in the middle of a save: it may write anywhere it ever could
        assert old is not None
        stop = threading.Event()

        def scribble() -> None:
            while not stop.is_set():
                for block_id in range(16):
                    old.host_view(BlockId(block_id))[:] = os.urandom(LAYOUT.block_bytes)

        writer = threading.Thread(target=scribble)
        worker.kill()
        writer.start()
        try:
            cluster.restart("w1")
            with cluster.attach("w1") as again:
                for _ in range(50):
                    hits = take(again, prompt(1, 8))  # compares every byte
                    assert set(hits) <= {Source.HOT}
                    save(again, prompt(2, 8))
                    assert take(again, prompt(2, 8)) == Counter({Source.HOT: 8})
        finally:
            stop.set()
            writer.join(10)


def test_a_journal_of_another_layout_is_set_aside_with_a_warning(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        written(cluster, "w1", 4)
    worker.kill()
    cluster.restart("w1")
    scope = large_scope(64)
    with cluster.attach("w1", scope=scope) as client:
        assert save(client, prompt(1, 4), scope=scope).n_stored == 4
        assert take(client, prompt(1, 4), scope=scope) == Counter({Source.HOT: 4})
        until(lambda: len(pool_files(cluster, "w1")) == 1, "the memory of the earlier life is gone")
    assert "laid out as gqa 2x2x16 float32" in worker.log
    assert journal_path(cluster, "w1").with_name("tiered-w1.journal.aside-1").exists()


def test_garbage_in_the_journals_place_is_set_aside_and_the_worker_starts_empty(cluster: SmallCluster) -> None:
    journal_path(cluster, "w1").write_bytes(os.urandom(50_000))
    [worker] = cluster.start("w1")
    assert "journal set aside" in worker.log
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 4)) == Counter()
        assert save(client, prompt(1, 4)).n_stored == 4


def test_a_bad_path_is_one_sentence(cluster: SmallCluster) -> None:
    worker = cluster.spawn("w1", "journal.path=/nowhere/at/all/j")
    assert worker.wait(within_s=30) == 2
    assert "journal.path: cannot keep a journal in /nowhere/at/all: No such file or directory" in worker.log
    assert len(worker.log.strip().splitlines()) == 1


def test_strict_mode_has_on_the_disk_what_was_answered(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", settings=["journal.mode=strict"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        save(client, prompt(2, 4))
        worker.kill()  # at once
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})
        assert take(client, prompt(2, 4)) == Counter({Source.HOT: 4})


def test_the_hottest_of_what_only_redis_has_comes_back_by_itself(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        take(client, prompt(1, 8))
        written(cluster, "w1", 8 + 8)  # stored, and used
        cluster.set_policy(TENANT, hot_limit_bytes=0)
        until(lambda: in_redis(cluster, prompt(1, 8)) == 8, "all of it went to Redis")
        written(cluster, "w1", 8 + 8 + 8)
    worker.kill()
    cluster.set_policy(TENANT, hot_limit_bytes=None)
    cluster.restart("w1")
    with cluster.attach("w1") as client:
        until(lambda: cluster.metrics("w1")[("tiered_warmed_blocks_total",)] == 8, "it was warmed up")
        assert take(client, prompt(1, 8)) == Counter({Source.HOT: 8})
        assert cluster.metrics("w1")[("tiered_tokens_total", "redis", TENANT)] == 0


def test_nothing_is_warmed_into_room_that_a_tenants_limit_denies(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 8))
        take(client, prompt(1, 8))
        written(cluster, "w1", 8 + 8)
        cluster.set_policy(TENANT, hot_limit_bytes=0)
        until(lambda: in_redis(cluster, prompt(1, 8)) == 8, "all of it went to Redis")
        written(cluster, "w1", 8 + 8 + 8)
    worker.kill()
    cluster.set_policy(TENANT, hot_limit_bytes=3 * LAYOUT.block_bytes)
    cluster.restart("w1")
    with cluster.attach("w1"):
        until(lambda: "warmed up from Redis" in worker.log, "the warming up has ended")
        assert cluster.metrics("w1")[("tiered_warmed_blocks_total",)] == 3
