"""An engine is killed in the middle of a copy: all it held comes back, and what it had half written is never seen."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from tests.support.content import LAYOUT, TENANT, prompt, save, take
from tests.support.engine_process import hold_and_stall
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import fork, until
from tiered.types import Source

N_BLOCKS = 16
POOL = str(N_BLOCKS * LAYOUT.block_bytes)


def test_pins_and_unfinished_blocks_of_a_killed_engine_come_back(cluster: SmallCluster, tmp_path: Path) -> None:
    cluster.start("w1", hot=POOL, settings=["pool.free_target=0", "pool.demote=never"])
    marker = tmp_path / "filling"
    with cluster.attach("w1") as client:
        engine = fork(hold_and_stall, cluster.socket_path("w1"), str(marker), 6, 8)
        until(marker.exists, "the engine is in the middle of a block", within_s=20)
        assert cluster.blocks("w1") == {"free": 2, "filling": 8, "ready": 6, "leaving": 0}
        # While it lives, nobody gets what it holds, and nobody sees what is half written.
        assert save(client, prompt(3, 8), wait_s=0.1).n_stored == 2
        assert client.match(prompt(2, 8), tenant=TENANT).n_blocks == 0

        engine.kill()
        engine.join(10)
        assert engine.exitcode == -signal.SIGKILL
        until(lambda: cluster.blocks("w1")["filling"] == 0, "unfinished blocks are given back")
        assert cluster.blocks("w1") == {"free": 8, "filling": 0, "ready": 8, "leaving": 0}

        def is_heard_of() -> bool:
            stats = cluster.node("w1").stats
            return (stats.engines, stats.free_blocks) == (1, 8)

        until(is_heard_of, "the cluster hears of it")

        assert take(client, prompt(2, 8)) == Counter()
        assert take(client, prompt(1, 6)) == Counter({Source.HOT: 6})  # what it had finished stays
        assert save(client, prompt(2, 8)).n_stored == 8  # and its unfinished work can be done by another
        assert save(client, prompt(4, N_BLOCKS)).n_stored == N_BLOCKS  # all pins are gone: the whole pool is room


def test_engines_that_come_and_go_leave_neither_blocks_nor_descriptors_behind(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", hot=POOL)
    descriptors = Path(f"/proc/{worker.pid}/fd")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 2))
        before, ours = len(list(descriptors.iterdir())), len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with cluster.attach("w1") as passing:
                passing.match(prompt(1, 2), tenant=TENANT)
        until(lambda: len(list(descriptors.iterdir())) <= before, "the worker closed what it had opened")
        assert len(os.listdir("/proc/self/fd")) == ours
        assert save(client, prompt(4, N_BLOCKS)).n_stored == N_BLOCKS
