"""One blocking request/reply connection with a deadline on every step.

Any error leaves the connection unusable: half a reply may be on its way, so it is closed, never reused.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, TypeVar

from tiered.errors import ProtocolError, TierTimeout, TierUnavailable
from tiered.wire.framing import PREFIX, Codec, body_length, encode
from tiered.wire.messages import FRAME_BYTES_MAX, Message

M = TypeVar("M")


class Connection(Generic[M]):
    """A connected stream socket on which replies of type M arrive in order."""

    def __init__(self, sock: socket.socket, replies: Codec[M], *, name: str) -> None:
        self.sock = sock
        self._replies = replies
        self._name = name
        self.closed = False

    def send(self, message: Message, *, timeout_s: float) -> None:
        with _closing_on_error(self, timeout_s):
            self.sock.sendall(encode(message))

    def receive(self, *, timeout_s: float, bytes_max: int = FRAME_BYTES_MAX) -> M:
        """The next message. TierTimeout, TierUnavailable or ProtocolError; the connection is closed then.

        bytes_max: memory is made ready for what the other side announces, so a stranger is allowed little.
        """
        with _closing_on_error(self, timeout_s) as deadline:
            prefix = bytearray(PREFIX.size)
            self._fill(memoryview(prefix), deadline)
            length = body_length(prefix)
            if length > bytes_max:
                raise ProtocolError(f"a frame of {length} bytes where at most {bytes_max} are expected")
            body = bytearray(length)
            self._fill(memoryview(body), deadline)
            return self._replies.decode(body)

    def call(self, message: Message, *, timeout_s: float) -> M:
        self.send(message, timeout_s=timeout_s)
        return self.receive(timeout_s=timeout_s)

    def receive_into(self, view: memoryview, *, timeout_s: float) -> None:
        """Raw bytes, straight into place."""
        with _closing_on_error(self, timeout_s) as deadline:
            self._fill(view, deadline)

    def send_raw(self, parts: Sequence[bytes | memoryview], *, timeout_s: float) -> None:
        """Raw bytes, gathered from where they lie."""
        with _closing_on_error(self, timeout_s) as deadline:
            left = [memoryview(part).cast("B") for part in parts]
            while left:
                self._wait_until(deadline)
                sent = self.sock.sendmsg(left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if left:
                    left[0] = left[0][sent:]

    def receive_with_descriptor(self, *, timeout_s: float) -> tuple[M, int | None]:
        """The next message and the descriptor that came with it, if one did."""
        with _closing_on_error(self, timeout_s) as deadline:
            prefix = bytearray(PREFIX.size)
            data, descriptors, _, _ = socket.recv_fds(self.sock, PREFIX.size, 1)
            try:
                if not data:
                    raise ConnectionResetError("closed by the other side")
                prefix[: len(data)] = data
                self._fill(memoryview(prefix)[len(data) :], deadline)
                body = bytearray(body_length(prefix))
                self._fill(memoryview(body), deadline)
                return self._replies.decode(body), descriptors[0] if descriptors else None
            except BaseException:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _fill(self, view: memoryview, deadline: float) -> None:
        got = 0
        while got < len(view):
            self._wait_until(deadline)
            n = self.sock.recv_into(view[got:])
            if n == 0:
                raise ConnectionResetError("closed by the other side")
            got += n

    def _wait_until(self, deadline: float) -> None:
        """Let the next socket call take what is left of the time, so that many small steps never add up to more."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)

    @property
    def name(self) -> str:
        return self._name


class _closing_on_error:  # noqa: N801  # reads as a verb where it is used
    """Sets the socket's deadline; closes the connection and translates what went wrong."""

    def __init__(self, connection: Connection[M], timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    def __enter__(self) -> float:
        if self._connection.closed:
            raise TierUnavailable(f"{self._connection.name}: the connection is closed")
        self._connection.sock.settimeout(self._timeout_s)
        return time.monotonic() + self._timeout_s

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._connection.close()
        name = self._connection.name
        if isinstance(error, TimeoutError):
            raise TierTimeout(f"{name}: no answer within {self._timeout_s:g} s") from error
        if isinstance(error, OSError):
            raise TierUnavailable(f"{name}: {error}") from error
        if isinstance(error, ProtocolError):
            raise ProtocolError(f"{name}: {error}") from error


def connect_unix(path: str, *, timeout_s: float) -> socket.socket:
    """A connected Unix socket. Errors: TierUnavailable naming the path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise TierUnavailable(f"{path}: {error.strerror or error}") from error
    return sock


def connect_tcp(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """A connected TCP socket without Nagle's delay. Errors: TierUnavailable naming the address."""
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise TierUnavailable(f"{host}:{port}: {error.strerror or error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
