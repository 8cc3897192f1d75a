"""``tiered up`` goes on, and ends in order, whatever second launchers and hangups come."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.integration.processes import temporary_place, until
from tests.integration.test_up import N_WORKERS, STOP_S, Up, ask
from tiered.cluster.connection import command, connect
from tiered.cluster.keys import Keys
from tiered.config import RedisSettings
from tiered.pool.named import remove_pools

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")


@contextmanager
def up(*, n_workers: int = 1, run_dir: str = "", under_nohup: bool = False) -> Iterator[Up]:
    with temporary_place() as place:
        environ = {"TIERED_RUN_DIR": str(place.directory / run_dir)} if run_dir else {}
        # What a child process inherits, whatever these tests run under.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
        try:
            started = Up(place, n_workers=n_workers, **environ)
        finally:
            signal.signal(signal.SIGHUP, before)
        try:
            yield started
        finally:
            started.process.kill()
            started.process.wait(STOP_S)


def pids(up: Up, words: str) -> list[int]:
    return [pid for pid, command in up.place.running().items() if words in command]


def test_a_second_launcher_in_its_run_directory_is_refused_and_disturbs_nothing() -> None:
    with up(run_dir="r") as first:
        run_dir = first.place.directory / "r"
        before = (run_dir / "redis.sock").stat().st_ino
        second = subprocess.run(
            first.place.argv("up", "--port", "0", "--workers", "1"),
            env={**first.place.env, "TIERED_RUN_DIR": str(run_dir)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        [said] = second.stderr.splitlines()
        assert said == (
            f"tiered: TIERED_RUN_DIR: {run_dir} is in use by another cluster (pid {first.process.pid}); stop it, or "
            "set TIERED_RUN_DIR to another directory"
        )
        assert (run_dir / "redis.sock").stat().st_ino == before
        with closing(connect(RedisSettings(url=first.state()["redis_url"]), timeout_s=5.0)) as client:
            assert command(client, "EXISTS", Keys("tiered").nodes()) == 1
        assert ask(first, "status")["stats"]["nodes"]["alive"] == 1
        assert first.end(signal.SIGTERM) == 0
        assert first.place.running() == {}
        assert (run_dir / "worker-1.log").exists()
        assert not (run_dir / "lock").exists()


def test_under_nohup_it_outlives_the_end_of_its_terminal() -> None:
    with up(under_nohup=True) as started:
        started.process.send_signal(signal.SIGHUP)
        [victim] = pids(started, "--node worker-1")
        os.kill(victim, signal.SIGKILL)
        until(lambda: "worker-1 is back" in started.err, "it goes on mending")
        assert started.end(signal.SIGTERM) == 0
        assert started.place.running() == {}


def test_a_second_hangup_does_not_interrupt_the_orderly_stop() -> None:
    with up(n_workers=N_WORKERS) as started:
        journals = list(started.place.directory.glob("run/*/*.journal"))
        assert len(journals) == N_WORKERS
        [slow] = pids(started, "--node worker-2")
        os.kill(slow, signal.SIGSTOP)  # its share of the grace has to be waited for
        started.process.send_signal(signal.SIGHUP)
        until(lambda: not pids(started, "--node worker-1"), "it is stopping")
        assert pids(started, "--node worker-2") == [slow]
        assert started.end(signal.SIGHUP) == 0
        assert re.search(r"^stopped$", started.out, re.MULTILINE)
        assert "Traceback" not in started.err
        assert started.place.running() == {}
        assert list((started.place.directory / "run").iterdir()) == []
        assert sum(remove_pools(journal) for journal in journals) == 0
