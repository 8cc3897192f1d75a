"""Workers, engines and Redis are killed at random under load: no wrong byte, no hung call, all well afterwards."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.engine_process import CALL_S, Round, run_rounds
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import fork, paused, until
from tiered.cluster.embedded import EmbeddedServer
from tiered.types import TenantId

CHAOS_S = 8.0
NAMES = ("w1", "w2", "w3")
N_BLOCKS = 24
"""Of a pool: less than all that is asked for, so that blocks leave, are demoted, and come back."""

ROUNDS = 25
"""Of every engine, between one blow and the next."""

SLACK_S = 1.5
"""Three workers, three engines and a server share two processors here."""

SETTINGS = (
    "cluster.heartbeat_s=0.1",
    "cluster.lease_ttl_s=0.6",
    "cluster.peer_timeout_s=0.5",
    "pool.match_lease_s=2",
)


class Chaos:
    def __init__(self, cluster: SmallCluster, directory: Path, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.directory = directory
        self.stop = directory / "stop"
        self.server = cluster.server
        self.engines: dict[str, BaseProcess] = {}
        self.blows: Counter[str] = Counter()

    def start(self) -> None:
        self.cluster.start(*NAMES, hot=str(N_BLOCKS * LAYOUT.block_bytes), settings=SETTINGS)
        for name in NAMES:
            self.start_engine(name)

    def start_engine(self, name: str) -> None:
        seed = self.rng.randrange(1 << 30)
        path, report = self.cluster.socket_path(name), str(self.directory / f"{name}.rounds")
        self.engines[name] = fork(run_rounds, path, report, str(self.stop), seed)

    def rounds(self, name: str) -> list[Round]:
        lines = (self.directory / f"{name}.rounds").read_text().splitlines()
        return [Round(**json.loads(line)) for line in lines if line.endswith("}")]  # the last may be half written

    def n_rounds(self, name: str) -> int:
        path = self.directory / f"{name}.rounds"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def let_run(self, but: str = "") -> None:
        """Every engine that lives does its rounds: nobody hangs, whoever else is gone."""
        goals = {name: self.n_rounds(name) + ROUNDS for name in NAMES if name != but}
        for name, goal in goals.items():
            until(lambda name=name, goal=goal: self.n_rounds(name) >= goal, f"{name} goes on", within_s=20)  # type: ignore[misc]

    def strike(self) -> None:
        """Kill or pause something, let the others run, and bring it back."""
        what = self.rng.choice(("worker", "worker", "engine", "redis", "worker paused", "redis paused"))
        name = self.rng.choice(NAMES)
        self.blows[what] += 1
        if what == "worker paused":
            with paused(self.cluster.workers[name].pid):
                self.let_run()
        elif what == "redis paused":
            with paused(self.server.pid):
                self.let_run()
        elif what == "redis":
            self.server.kill()
            self.let_run()
            self.server = EmbeddedServer.start(self.server.socket_path.parent, maxmemory_bytes=None)
        elif what == "engine":
            self.engines[name].kill()
            self.engines[name].join(10)
            self.let_run(but=name)
            self.start_engine(name)
        else:
            self.cluster.workers[name].kill()
            self.let_run()
            self.cluster.restart(name)
        self.let_run()

    def end(self) -> None:
        self.stop.touch()
        for name, engine in self.engines.items():
            engine.join(20)
            assert engine.exitcode == 0, f"the engine of {name} ended with {engine.exitcode}"


def test_no_wrong_byte_and_no_hung_call_while_anything_is_killed(
    private_redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"CHAOS_SEED={seed}")
    with small_cluster(private_redis_server, patient=False) as cluster:
        chaos = Chaos(cluster, tmp_path, seed)
        try:
            chaos.start()
            chaos.let_run()
            ends_at = time.monotonic() + CHAOS_S
            while time.monotonic() < ends_at:
                chaos.strike()
            _all_is_well(cluster)
            chaos.end()
            _nothing_is_held(cluster)
        finally:
            chaos.stop.touch()
            chaos.server.kill()
        rounds = [each for name in NAMES for each in chaos.rounds(name)]
    assert [each.wrong for each in rounds if each.wrong] == []
    slowest = max(rounds, key=lambda each: each.slowest_s)
    assert slowest.slowest_s < CALL_S + SLACK_S, slowest
    hits = sum((Counter(each.hits) for each in rounds), Counter[str]())
    print(f"{len(rounds)} rounds, blows {dict(chaos.blows)}, hits {dict(hits)}, slowest {slowest.slowest_s:.2f} s")
    assert chaos.blows.total() >= 3
    assert hits["hot"] > 0
    assert hits["peer"] + hits["redis"] > 0


def _all_is_well(cluster: SmallCluster) -> None:
    """Every worker is a member again, and what one stores another finds."""
    until(lambda: {view.info.node for view in cluster.membership.nodes() if view.alive} == set(NAMES), "all are back")
    cluster.wait_acquainted()
    tenant = TenantId("after")
    with cluster.attach("w1") as client, cluster.attach("w2") as other:
        until(lambda: save(client, prompt(99, 4), tenant=tenant).first_index == 4, "stored")
        until(lambda: take(other, prompt(99, 4), tenant=tenant).total() == 4, "found from elsewhere")


def _nothing_is_held(cluster: SmallCluster) -> None:
    for name in NAMES:
        until(lambda name=name: cluster.metrics(name)[("tiered_worker_engines",)] == 0, "no engine is attached")  # type: ignore[misc]
        until(lambda name=name: cluster.blocks(name)["filling"] == 0, "nothing is half written")  # type: ignore[misc]
        with cluster.attach(name) as client:
            saved = save(client, prompt(1000, N_BLOCKS), tenant=TenantId("last"), wait_s=5.0)
            assert saved.n_stored >= N_BLOCKS // 4, f"{name}: pins are left over: {saved}"
