"""One blocking request/reply connection with a deadline on every step.

Any error leaves the connection unusable: half a reply may be on its way, so it is closed, never reused.

The socket stays blocking and the kernel keeps the deadlines, so that one call receives a whole block: with Python's
own timeouts a socket is polled before each piece, and a piece is what has arrived so far.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Generic, TypeVar

from tiered.errors import ProtocolError, TierTimeout, TierUnavailable, VersionMismatch
from tiered.wire.framing import PREFIX, Codec, body_length, encode, parting_word
from tiered.wire.messages import FRAME_BYTES_MAX, Message

M = TypeVar("M")

_INTERVAL: Final = struct.Struct("@ll")
_MICROSECONDS: Final = 1_000_000
_UNREAD_BYTES: Final = 64 << 10


class Connection(Generic[M]):
    """A connected stream socket on which replies of type M arrive in order."""

    def __init__(self, sock: socket.socket, replies: Codec[M], *, name: str) -> None:
        sock.settimeout(None)
        self.sock = sock
        self._replies = replies
        self._name = name
        self.closed = False
        self.minor = 0
        """The other side's minor version, once it has introduced itself."""

    def send(self, message: Message, *, timeout_s: float) -> None:
        self.send_raw([encode(message)], timeout_s=timeout_s)

    def receive(self, *, timeout_s: float, bytes_max: int = FRAME_BYTES_MAX) -> M:
        """The next message. TierTimeout, TierUnavailable or ProtocolError; the connection is closed then.

        bytes_max: memory is made ready for what the other side announces, so a stranger is allowed little.
        """
        with _closing_on_error(self, timeout_s) as deadline:
            prefix = bytearray(PREFIX.size)
            self._fill(memoryview(prefix), deadline)
            length = body_length(prefix)
            if length > bytes_max:
                raise ProtocolError(f"a frame of more than the {bytes_max} bytes that are expected")
            body = bytearray(length)
            self._fill(memoryview(body), deadline)
            return self._replies.decode(body)

    def await_more(self, *, timeout_s: float) -> bool:
        """Whether the other side says something more within the time, rather than nothing or that it goes."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        try:
            return bool(poll.poll(timeout_s * 1e3)) and bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def call(self, message: Message, *, timeout_s: float) -> M:
        self.send(message, timeout_s=timeout_s)
        return self.receive(timeout_s=timeout_s)

    def receive_into(self, *views: memoryview, timeout_s: float) -> None:
        """Raw bytes, straight into place: as a rule all views in one system call."""
        with _closing_on_error(self, timeout_s) as deadline:
            self._receive_within(deadline)
            got = self.sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
            if got == 0:
                raise ConnectionResetError("closed by the other side")
            for view in views:
                here = min(got, view.nbytes)
                got -= here
                if here < view.nbytes:
                    self._fill(view[here:], deadline)

    def send_raw(self, parts: Sequence[bytes | memoryview], *, timeout_s: float) -> None:
        """Raw bytes, gathered from where they lie."""
        with _closing_on_error(self, timeout_s) as deadline:
            left = [memoryview(part).cast("B") for part in parts]
            while left:
                try:
                    sent = self.sock.sendmsg(left, (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._wait_for_room(deadline)
                    continue
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if left:
                    left[0] = left[0][sent:]

    def receive_with_descriptor(self, *, timeout_s: float) -> tuple[M, int | None]:
        """The next message and the descriptor that came with it, if one did.

        TierTimeout, TierUnavailable or ProtocolError; TierUnavailable also where this process may have no more files.
        """
        with _closing_on_error(self, timeout_s) as deadline:
            prefix = bytearray(PREFIX.size)
            self._receive_within(deadline)
            data, descriptors, flags, _ = socket.recv_fds(self.sock, PREFIX.size, 1)
            try:
                if flags & socket.MSG_CTRUNC and not descriptors:  # all that the kernel says where it drops one
                    raise OSError(errno.EMFILE, "Too many open files: the descriptor that came was not taken")
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

    def say_which_version(self, error: VersionMismatch) -> None:
        """Best effort, and at once: the other side, which cannot read what we send, then knows why we go."""
        with suppress(OSError):
            self.sock.recv(_UNREAD_BYTES, socket.MSG_DONTWAIT)  # what lies unread would make the end a reset
        with suppress(OSError):
            self.sock.send(parting_word(error), socket.MSG_DONTWAIT)

    def close(self) -> None:
        self.closed = True
        self.sock.close()

    def _fill(self, view: memoryview, deadline: float) -> None:
        while view.nbytes:
            self._receive_within(deadline)
            n = self.sock.recv_into(view, 0, socket.MSG_WAITALL)
            if n == 0:
                raise ConnectionResetError("closed by the other side")
            view = view[n:]

    def _receive_within(self, deadline: float) -> None:
        """Let the next receive take what is left of the time, so that many small steps never add up to more."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _interval(deadline))

    def _wait_for_room(self, deadline: float) -> None:
        """Until something can be sent. A send that blocks would do, if a Unix socket did not give each of its packets
        the whole timeout."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError

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
        return time.monotonic() + self._timeout_s

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, VersionMismatch):
            self._connection.say_which_version(error)
        self._connection.close()
        name = self._connection.name
        if isinstance(error, TimeoutError | BlockingIOError):  # the kernel's word for a timeout of its own
            raise TierTimeout(f"{name}: no answer within {self._timeout_s:g} s") from error
        if isinstance(error, OSError):
            raise TierUnavailable(f"{name}: {error}") from error
        if isinstance(error, VersionMismatch):
            raise VersionMismatch(seen=error.seen, spoken=error.spoken, who=name) from error
        if isinstance(error, ProtocolError):
            raise ProtocolError(f"{name}: {error}") from error


def _interval(deadline: float) -> bytes:
    """What is left until then as the kernel's timeout, for which zero would mean for ever. Errors: TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return _INTERVAL.pack(*divmod(max(1, int(left * _MICROSECONDS)), _MICROSECONDS))


def connect_unix(path: str, *, timeout_s: float) -> socket.socket:
    """A connected Unix socket; waits while too many others connect. Errors: TierUnavailable naming the path."""
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel's timeout: with Python's own a listener whose backlog is full refuses at once.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _interval(time.monotonic() + timeout_s))
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise TierUnavailable(f"{path}: {error.strerror or error}") from error
    return sock


def connect_tcp(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """A connected TCP socket without Nagle's delay. Errors: TierUnavailable naming the address."""
    try:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    except UnicodeError as error:  # of a name that cannot be one
        raise TierUnavailable(f"{host}:{port}: no name of a machine") from error
    except OSError as error:
        raise TierUnavailable(f"{host}:{port}: {error.strerror or error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
