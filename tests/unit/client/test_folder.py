"""Engines that find their workers in one folder: spread evenly, and patient with a worker that is started again."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.worker_process import until
from tiered.client.folder import STAY_S, WorkersFolder
from tiered.errors import TierUnavailable


class Workers:
    """Sockets of one folder, and which of them answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listening: dict[str, socket.socket] = {}
        self.away: set[str] = set()

    def start(self, *names: str) -> None:
        for name in names:
            self._listening[name] = listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self.path / f"{name}.sock"))

    def stop(self, name: str) -> None:
        self._listening.pop(name).close()
        (self.path / f"{name}.sock").unlink()

    def open_at(self, path: str) -> str:
        name = Path(path).stem
        if name in self.away or not Path(path).exists():
            raise TierUnavailable(f"{name} is away")
        return name

    def close(self) -> None:
        for listener in self._listening.values():
            listener.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with closing(Workers(tmp_path)) as workers:
        yield workers


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def engines(workers: Workers, clock: list[float]) -> Iterator[list[WorkersFolder]]:
    with ExitStack() as stack:
        made = [WorkersFolder(workers.path, clock=lambda: clock[0]) for _ in range(4)]
        for each in made:
            stack.callback(each.leave)
        yield made


def test_every_worker_has_an_engine_before_one_has_two(workers: Workers, engines: list[WorkersFolder]) -> None:
    workers.start("a", "b", "c")
    found = [engine.attach(workers.open_at) for engine in engines]
    assert (sorted(found[:3]), found[3]) == (["a", "b", "c"], "a")


def test_a_seat_that_is_given_back_is_taken_by_the_next(workers: Workers, engines: list[WorkersFolder]) -> None:
    workers.start("a", "b")
    first, second, third, _ = engines
    assert (first.attach(workers.open_at), second.attach(workers.open_at)) == ("a", "b")
    second.leave()
    assert third.attach(workers.open_at) == "b"


def test_an_engine_waits_for_its_worker_and_after_a_while_goes_to_another(
    workers: Workers, engines: list[WorkersFolder], clock: list[float]
) -> None:
    workers.start("a", "b")
    engine = engines[0]
    assert engine.attach(workers.open_at) == "a"
    workers.stop("a")
    for clock[0] in (10.0, 10.0 + STAY_S - 1):
        with pytest.raises(TierUnavailable, match="a is away"):
            engine.attach(workers.open_at)
    clock[0] = 10.0 + STAY_S
    assert engine.attach(workers.open_at) == "b"


def test_an_engine_finds_its_worker_again_however_often_it_is_started(
    workers: Workers, engines: list[WorkersFolder], clock: list[float]
) -> None:
    workers.start("a", "b")
    engine = engines[0]
    for _ in range(3):
        assert engine.attach(workers.open_at) == "a"
        workers.away.add("a")
        with pytest.raises(TierUnavailable):
            engine.attach(workers.open_at)
        clock[0] += STAY_S - 1
        workers.away.clear()


def test_what_does_not_answer_is_passed_over(workers: Workers, engines: list[WorkersFolder]) -> None:
    workers.start("a", "b")
    workers.away.add("a")
    (workers.path / "0.sock").write_text("no socket")
    assert [engine.attach(workers.open_at) for engine in engines[:2]] == ["b", "b"]


def test_without_a_worker_the_reason_says_so(workers: Workers, engines: list[WorkersFolder]) -> None:
    with pytest.raises(TierUnavailable, match=f"{workers.path}: no worker's socket is there"):
        engines[0].attach(workers.open_at)
    workers.start("a")
    workers.away.add("a")
    with pytest.raises(TierUnavailable, match="a is away"):
        engines[0].attach(workers.open_at)


def test_a_seat_is_no_link_to_a_file_elsewhere(workers: Workers, engines: list[WorkersFolder]) -> None:
    workers.start("a")
    elsewhere = workers.path / "elsewhere"
    (workers.path / ".a.sock.engine-1").symlink_to(elsewhere)
    with pytest.raises(TierUnavailable, match="no seat can be taken"):
        engines[0].attach(workers.open_at)
    assert not elsewhere.exists()


def test_the_seat_of_a_killed_engine_is_free(workers: Workers, engines: list[WorkersFolder]) -> None:
    workers.start("a", "b")
    take = (
        "import sys, time; from pathlib import Path; from tiered.client.folder import WorkersFolder\n"
        "print(WorkersFolder(Path(sys.argv[1])).attach(lambda path: Path(path).stem), flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", take, str(workers.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "a\n"
        assert engines[0].attach(workers.open_at) == "b"
        other.kill()
    until(lambda: engines[1].attach(workers.open_at) == "a", "the kernel has given the seat back")
