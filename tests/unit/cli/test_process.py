"""One child process: when it counts as ready, what is known of its end, and that it cannot outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiered.cli.process import Child, describe_exit, uninterrupted

DEADLINE_S = 20.0
WAIT = "import time; time.sleep(60)"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Child]]:
    made: list[Child] = []

    def build(code: str) -> Child:
        argv = [sys.executable, "-c", code]
        made.append(Child("thing", argv, env=os.environ, log_dir=tmp_path, ready_text="thing ready"))
        made[-1].spawn()
        return made[-1]

    yield build
    for child in made:
        child.kill()


def test_a_child_is_ready_when_it_says_so_and_not_before(make: Callable[[str], Child]) -> None:
    child = make(f"import sys; sys.stdin.read(); print('thing ready on x'); {WAIT}")
    until(lambda: child.ready)
    assert child.ready_words == "on x"
    assert child.alive
    assert child.pid > 0


def test_a_child_that_ended_is_not_ready_whatever_it_said(make: Callable[[str], Child]) -> None:
    child = make("print('thing ready')")
    until(lambda: not child.alive)
    assert not child.ready
    assert child.ending == "exit code 0"


def test_the_last_words_are_the_last_line_on_standard_error(make: Callable[[str], Child]) -> None:
    child = make("import sys; print('note', file=sys.stderr); print(' the reason ', file=sys.stderr); sys.exit(2)")
    until(lambda: not child.alive)
    assert child.last_words == "the reason"
    assert child.ending == "exit code 2"


def test_a_second_life_is_not_ready_by_what_the_first_one_said(make: Callable[[str], Child], tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    child = make(f"import pathlib, time\nif not pathlib.Path({str(flag)!r}).exists(): print('thing ready')\n{WAIT}")
    until(lambda: child.ready)
    flag.touch()
    child.kill()
    child.spawn()
    assert child.alive
    assert not child.ready
    assert "thing ready" in child.stdout_path.read_text()


def test_a_killed_child_tells_the_signal(make: Callable[[str], Child]) -> None:
    child = make(WAIT)
    child.kill()
    assert child.ending == "killed by SIGKILL"
    assert describe_exit(-250) == "killed by signal 250"


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(make: Callable[[str], Child]) -> None:
    child = make(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('thing ready'); {WAIT}")
    until(lambda: child.ready)
    child.stop(grace_s=0.1)
    assert child.ending == "killed by SIGKILL"


def test_a_child_has_a_session_of_its_own(make: Callable[[str], Child]) -> None:
    child = make(WAIT)
    assert os.getsid(child.pid) == child.pid


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of a parent's death is Linux's")
def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, time\n"
        "from tiered.cli.process import Child\n"
        f"child = Child('c', [sys.executable, '-c', {WAIT!r}], env=os.environ, "
        "log_dir=pathlib.Path(sys.argv[1]), ready_text='x')\n"
        "child.spawn()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child_pid = int(parent.stdout.readline())
            os.kill(child_pid, 0)
        finally:
            parent.send_signal(signal.SIGKILL)
    until(lambda: not _running(child_pid))


def _running(pid: int) -> bool:
    """Whether it runs; one that nobody has collected yet (state Z) has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_must_finish_is_not_interrupted(number: signal.Signals) -> None:
    came: list[int] = []

    def note(signum: int, _: object) -> None:
        came.append(signum)

    before = signal.signal(number, note)
    try:
        with uninterrupted():
            os.kill(os.getpid(), number)
        assert came == []
        os.kill(os.getpid(), number)
        assert came == [number]
    finally:
        signal.signal(number, before)


def test_ctrl_c_in_the_middle_of_a_fork_is_raised_and_the_child_is_known(
    make: Callable[[str], Child],
) -> None:
    """Python swallows what is raised in its hooks around a fork, and this is where the signal would come out."""
    child = make(WAIT)
    child.kill()
    armed = [True]

    def interrupt() -> None:
        if armed:
            armed.clear()
            os.kill(os.getpid(), signal.SIGINT)

    os.register_at_fork(after_in_parent=interrupt)
    with pytest.raises(KeyboardInterrupt):
        child.spawn()
    assert child.alive
    child.terminate()  # nothing of this is inherited
    until(lambda: not child.alive)
    assert child.ending == "killed by SIGTERM"
