"""Five workers and two coordinators under load, one of them killed every second for two minutes.

No wrong byte, no call beyond its deadline, and within ten seconds of the last kill nearly as many hits as before the
first. Run by ``make test-chaos``; KILLS_S makes it shorter or longer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.support.content import LAYOUT
from tests.support.engine_process import CALL_S, Round, run_rounds
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import fork, until
from tiered.cluster.embedded import EmbeddedServer

KILLS_S = float(os.environ.get("KILLS_S", "120"))
EVERY_S = 1.0
WORKERS = ("w1", "w2", "w3", "w4", "w5")
COORDINATORS = ("c1", "c2")
N_BLOCKS = 256
"""Of a pool: all that is asked for, so that what is missed is missed because of a kill."""

LEVEL_S = 5.0
"""Over which a level of hits is taken, before the first kill and from some moment after the last."""

RECOVERY_S = 10.0
SLACK_S = 2.0
"""Seven processes, five engines and a server share two processors here."""

SETTINGS = ("cluster.heartbeat_s=0.3", "cluster.lease_ttl_s=1.5", "cluster.peer_timeout_s=0.5")


def become_coordinator(argv: list[str], err: str) -> None:
    for name in [name for name in os.environ if name.startswith("TIERED_")]:
        del os.environ[name]
    file = os.open(err, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["tiered-coordinator", *argv]
    from coordinator.cli import main

    main()


class Kills:
    def __init__(self, cluster: SmallCluster, directory: Path, seed: int) -> None:
        self.cluster = cluster
        self.directory = directory
        self.rng = random.Random(seed)
        self.stop = directory / "stop"
        self.engines: dict[str, BaseProcess] = {}
        self.coordinators: dict[str, BaseProcess] = {}
        self.kills: Counter[str] = Counter()

    def start(self) -> None:
        self.cluster.start(*WORKERS, hot=str(N_BLOCKS * LAYOUT.block_bytes), settings=SETTINGS)
        for name in COORDINATORS:
            self.start_coordinator(name)
        for name in WORKERS:
            report = str(self.directory / f"{name}.rounds")
            self.engines[name] = fork(
                run_rounds, self.cluster.socket_path(name), report, str(self.stop), self.rng.randrange(1 << 30)
            )

    def start_coordinator(self, name: str) -> None:
        argv = ["--redis-url", self.cluster.server.url, "--namespace", self.cluster.namespace, "--port", "0"]
        self.coordinators[name] = fork(become_coordinator, argv, str(self.directory / f"{name}.log"))

    def strike(self) -> None:
        """SIGKILL, and the next life at once, as a supervisor would."""
        name = self.rng.choice((*WORKERS, *COORDINATORS))
        self.kills[name] += 1
        if name in COORDINATORS:
            self.coordinators[name].kill()
            self.coordinators[name].join(10)
            self.start_coordinator(name)
        else:
            self.cluster.workers[name].kill()
            self.cluster.restart(name)

    def rounds(self, name: str) -> list[Round]:
        lines = (self.directory / f"{name}.rounds").read_text().splitlines()
        return [Round(**json.loads(line)) for line in lines if line.endswith("}")]

    def hit_ratio(self, since: float, until_: float) -> float:
        """The mean over the engines: one that is without a cache is answered at once, and asks so much the more."""
        ratios = []
        for name in WORKERS:
            here = [each for each in self.rounds(name) if since <= each.at < until_]
            asked = sum(each.asked for each in here)
            assert asked > 0, f"the engine of {name} did nothing"
            ratios.append(sum(sum(each.hits.values()) for each in here) / asked)
        return sum(ratios) / len(ratios)

    def end(self) -> None:
        self.stop.touch()
        for name, engine in self.engines.items():
            engine.join(20)
            assert engine.exitcode == 0, f"the engine of {name} ended with {engine.exitcode}"
        for process in self.coordinators.values():
            process.kill()


@contextmanager
def _kills(cluster: SmallCluster, directory: Path) -> Iterator[Kills]:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"CHAOS_SEED={seed}")
    kills = Kills(cluster, directory, seed)
    try:
        kills.start()
        yield kills
        kills.end()
    finally:
        kills.stop.touch()
        for process in kills.coordinators.values():
            process.kill()


def _wait(seconds: float) -> float:
    """Load goes on meanwhile; when it is over."""
    ends_at = time.monotonic() + seconds
    until(lambda: time.monotonic() >= ends_at, "time passes", within_s=seconds + 1)
    return ends_at


@pytest.mark.slow
@pytest.mark.timeout(KILLS_S * 2 + 120)
def test_two_minutes_of_kills_cost_no_byte_no_call_and_hits_for_ten_seconds(
    private_redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    with small_cluster(private_redis_server, patient=False) as cluster, _kills(cluster, tmp_path) as kills:
        warm = _wait(LEVEL_S)
        level = kills.hit_ratio(warm, _wait(LEVEL_S))
        ends_at = time.monotonic() + KILLS_S
        while time.monotonic() < ends_at:
            next_at = time.monotonic() + EVERY_S
            kills.strike()
            _wait(max(0.0, next_at - time.monotonic()))
        last_kill = time.monotonic()
        _wait(RECOVERY_S + LEVEL_S)
        during = kills.hit_ratio(warm + LEVEL_S, last_kill)
        after = kills.hit_ratio(last_kill + RECOVERY_S, last_kill + RECOVERY_S + LEVEL_S)
        for name in COORDINATORS:
            assert kills.coordinators[name].is_alive()
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text()
    rounds = [each for name in WORKERS for each in kills.rounds(name)]
    slowest = max(rounds, key=lambda each: each.slowest_s)
    print(f"{len(rounds)} rounds, {kills.kills.total()} kills {dict(kills.kills)}, slowest {slowest.slowest_s:.2f} s")
    print(f"hits: {level:.3f} before, {during:.3f} during, {after:.3f} from ten seconds after the last kill on")
    assert [each.wrong for each in rounds if each.wrong] == []
    assert slowest.slowest_s < CALL_S + SLACK_S, slowest
    assert kills.kills.total() >= KILLS_S / (EVERY_S * 3)
    assert after >= 0.95 * level
