"""One child process: started so that it cannot outlive us, its output in files, how it ended in words.

It knows nothing of what the child does beyond the line on standard output that says it is ready.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def tie_to_us() -> Callable[[], None]:
    """For Popen's preexec_fn: the child gets a session of its own, and dies when we die.

    The session keeps the terminal's Ctrl-C away from the child: we stop it, in our order. On Linux the kernel kills
    the child when the *thread* that made it ends, so call Popen from the main thread; elsewhere there is no such
    signal, and children outlive a launcher that was killed.
    """
    if sys.platform != "linux":
        return _new_session
    parent_pid = os.getpid()
    # The library is loaded before the fork: between fork and exec only the few calls below are made.
    libc = ctypes.CDLL(None)

    def tie() -> None:
        _new_session()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # the parent died before the signal was armed
            os._exit(1)

    return tie


def _new_session() -> None:
    os.setsid()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C and the like take effect afterwards: what is raised in Python's hooks around a fork is swallowed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    previous = [(number, signal.signal(number, lambda signum, _: came.append(signum))) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for signum in came:
            signal.raise_signal(signum)


def describe_exit(returncode: int) -> str:
    """``killed by SIGKILL`` or ``exit code 2``, from Popen's returncode."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def stop_process(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """SIGTERM, then SIGKILL after grace_s; returns when the process is gone."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold off Ctrl-C, SIGTERM and SIGHUP: what runs inside is bounded and must finish."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = [(number, signal.signal(number, signal.SIG_IGN)) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Child:
    """A service we start, watch, stop, and may start again with the same command line."""

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log_dir: Path, ready_text: str
    ) -> None:
        self.name = name
        self.stdout_path = log_dir / f"{name}.out"
        self.stderr_path = log_dir / f"{name}.log"
        self._argv = list(argv)
        # Unbuffered, or the line we wait for would sit in the child's buffer.
        self._env = {**env, "PYTHONUNBUFFERED": "1"}
        self._ready_text = ready_text
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout_start = 0
        self._stderr_start = 0

    def spawn(self) -> None:
        """Start it; files are appended to, so that the words of an earlier life are kept."""
        with self.stdout_path.open("ab") as stdout, self.stderr_path.open("ab") as stderr, _interrupts_held():
            self._stdout_start, self._stderr_start = stdout.tell(), stderr.tell()
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                preexec_fn=tie_to_us(),
            )

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether this life of the process has said that it is ready."""
        return self.alive and self._ready_text in _read_from(self.stdout_path, self._stdout_start)

    @property
    def ready_words(self) -> str:
        """What this life said after its ready text, on the same line; empty before it did."""
        said = _read_from(self.stdout_path, self._stdout_start).partition(self._ready_text)[2]
        return said.partition("\n")[0].strip()

    @property
    def ending(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = None if self._process is None else self._process.poll()
        return "" if code is None else describe_exit(code)

    @property
    def last_words(self) -> str:
        """The last line this life wrote to standard error, without spaces around it."""
        lines = _read_from(self.stderr_path, self._stderr_start).strip().splitlines()
        return lines[-1].strip() if lines else ""

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken it away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Ask it to stop; several are asked before any is waited for."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self, *, grace_s: float) -> None:
        if self._process is not None:
            stop_process(self._process, grace_s=grace_s)


def _read_from(path: Path, start: int) -> str:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")
    return ""
