"""One raw connection for bulk values: writes GET and SET, reads their replies straight into buffers.

Owns one socket and the few lines of RESP2 that these two commands need; redis-py does everything else. A reply that
is not what the command can have asked for closes the connection: it is never read out of step.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

import redis.connection

from tiered.errors import TierError, TierTimeout, TierUnavailable
from tiered.redis_url import Address
from tiered.tiers.redis.tls import tls_context

_SHORTEST_REPLY: Final = 5
"""``$-1`` or ``+OK`` and the line's end. No reply to GET or SET is shorter, so this much never reads too far."""
_ERROR_LINE_MAX: Final = 1_024
_LENGTH_LINE_MAX: Final = 16
_NIL: Final = b"$-1\r\n"
_OK: Final = b"+OK\r\n"
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"


class WrongLength(TierUnavailable):
    """The value in Redis is not of the expected length; its bytes are in the way, so the connection was closed."""


class SentElsewhere(TierError):
    """The server did not run the command: the key's slot is another's, or (asking) may be while it moves there. The
    connection is fine."""

    def __init__(self, slot: int, address: Address, *, asking: bool) -> None:
        super().__init__(f"redis: slot {slot} is at {address}")
        self.slot = slot
        self.address = address
        self.asking = asking


class ServerFullError(TierError):
    """The server holds all it may; the connection is fine."""


class RawConnection:
    """One blocking connection. Each socket operation ends within its timeout, and all of them by ``ends_at``, of the
    monotonic clock, which its borrower sets. Not thread-safe.

    Errors of every method: TierTimeout or TierUnavailable; the connection is then closed.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, timeout_s: float) -> None:
        options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
        self._host: str = options.get("host", "localhost")
        self.ends_at = math.inf
        self._timeout_s = self._set_timeout_s = timeout_s
        self._socket = self._connect(options, connect_timeout_s, timeout_s)
        # Of a plain socket the kernel fills a whole buffer in one call; TLS gives out one record at a time.
        self._receive_flags = 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_WAITALL
        self._start = bytearray(_SHORTEST_REPLY)
        self._end = bytearray(2)
        self._log_in(options)

    def close(self) -> None:
        self._socket.close()

    def is_quiet(self) -> bool:
        """Whether an idle connection still is one: open, with nothing to read."""
        if self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def send_gets(self, keys: Sequence[bytes], *, asking: bool = False) -> None:
        """asking: of a server that a slot is moving to."""
        before = _ASKING if asking else b""
        self._send([b"".join(before + _command(b"GET", key) for key in keys)])

    def read_value(self, header: memoryview, body: memoryview, *, asking: bool = False) -> int | None:
        """The reply of a GET into the buffers: how many bytes came behind the header, or None if there is no value.

        Errors: WrongLength if the value is shorter than the header, or longer than both buffers; SentElsewhere.
        """
        self._read_leave(asking)
        expected = header.nbytes + body.nbytes
        found = self._read_length(expected)
        if found is None:
            return None
        length, ahead = found
        if not header.nbytes <= length <= expected or len(ahead) > length:
            raise self._closed(WrongLength(f"redis: a value of {length} bytes, expected at most {expected}"))
        views = [header, body[: length - header.nbytes], memoryview(self._end)]
        for index in range(2) if ahead else ():
            n = min(len(ahead), views[index].nbytes)
            views[index][:n] = ahead[:n]
            views[index], ahead = views[index][n:], ahead[n:]
        self._fill_all(views)
        if self._end != b"\r\n":
            raise self._closed(TierUnavailable("redis: a value does not end where it should"))
        return length - header.nbytes

    def _read_length(self, expected: int) -> tuple[int, bytes] | None:
        """The length in a reply's first line, and what was read of the value with it; None where there is no value.

        As a rule it is the expected one, and then two reads are all it takes.
        """
        line = b"$%d\r\n" % expected
        got = self._read_start()
        if got == _NIL:
            return None
        if got[:1] == b"-":
            raise self._server_error(got)
        if got == line[:_SHORTEST_REPLY]:
            rest = bytearray(len(line) - _SHORTEST_REPLY)
            self._fill(memoryview(rest))
            got += rest
            if got == line:
                return expected, b""
        byte = bytearray(1)
        while b"\r\n" not in got and len(got) < _LENGTH_LINE_MAX:
            self._fill(memoryview(byte))
            got += byte
        digits, end, ahead = got[1:].partition(b"\r\n")
        if got[:1] != b"$" or not end or not digits.isdigit():
            raise self._closed(WrongLength(f"redis: a value begins {got!r}"))
        return int(digits), ahead

    def send_set(self, key: bytes, header: bytes, payload: memoryview, *, ttl_ms: int, asking: bool = False) -> None:
        """SET ... NX PX: what is there already stays, what is not committed in time ends by itself."""
        start = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(header) + payload.nbytes)
        ttl = b"%d" % ttl_ms
        end = b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl), ttl)
        self._send([(_ASKING if asking else b"") + start + header, payload, end])

    def read_stored(self, *, asking: bool = False) -> bool:
        """The reply of a SET NX: False if a value was there already. Errors: ServerFullError, SentElsewhere."""
        self._read_leave(asking)
        start = self._read_start()
        if start == _OK:
            return True
        if start == _NIL:
            return False
        raise self._server_error(start)

    def _read_leave(self, asking: bool) -> None:
        """The reply to an ASKING that went ahead of a command."""
        if asking and self._read_start() != _OK:
            raise self._closed(TierUnavailable("redis: the server knows no ASKING"))

    def _connect(self, options: dict[str, Any], connect_timeout_s: float, timeout_s: float) -> socket.socket:
        raw: socket.socket | None = None
        context = tls_context(options) if options.get("connection_class") is redis.SSLConnection else None
        try:
            if "path" in options:
                raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                raw.settimeout(connect_timeout_s)
                raw.connect(options["path"])
            else:
                address = (options.get("host", "localhost"), options.get("port", 6379))
                raw = socket.create_connection(address, connect_timeout_s)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                raw = context.wrap_socket(raw, server_hostname=options.get("host", "localhost"))
                raw.settimeout(timeout_s)
            else:
                # Timeouts of the kernel leave the socket blocking, so that one call can receive a whole value.
                raw.settimeout(None)
                _set_kernel_timeouts(raw, timeout_s)
        except OSError as error:
            if raw is not None:
                raw.close()
            raise _translated(error) from error
        return raw

    def _log_in(self, options: dict[str, Any]) -> None:
        commands = []
        if "password" in options:
            user = [options["username"].encode()] if options.get("username") else []
            commands.append(_command(b"AUTH", *user, options["password"].encode()))
        if options.get("db"):
            commands.append(_command(b"SELECT", b"%d" % options["db"]))
        for command in commands:
            self._send([command])
            start = self._read_start()
            if start != _OK:
                raise self._closed(self._server_error(start))

    def _keep_to_the_end(self) -> None:
        """Before each socket operation: let it take no longer than is left. As a rule that changes nothing."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left for this transfer")
        timeout_s = min(left, self._timeout_s)
        if timeout_s == self._set_timeout_s:
            return
        if self._receive_flags:
            _set_kernel_timeouts(self._socket, timeout_s)
        else:
            self._socket.settimeout(timeout_s)
        self._set_timeout_s = timeout_s

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            self._keep_to_the_end()
            if isinstance(self._socket, ssl.SSLSocket):
                for buffer in buffers:
                    self._socket.sendall(buffer)
                return
            views = [memoryview(buffer) for buffer in buffers]
            while views:
                self._keep_to_the_end()
                sent = self._socket.sendmsg(views)
                while views and sent >= views[0].nbytes:
                    sent -= views.pop(0).nbytes
                if views:
                    views[0] = views[0][sent:]
        except OSError as error:
            raise self._closed(_translated(error)) from error

    def _read_start(self) -> bytes:
        self._fill(memoryview(self._start))
        return bytes(self._start)

    def _fill_all(self, views: Sequence[memoryview]) -> None:
        """Fill buffers one after the other, as a rule in one system call."""
        received = 0
        try:
            if self._receive_flags:
                self._keep_to_the_end()
                received = self._socket.recvmsg_into(views, 0, self._receive_flags)[0]
                if not received:
                    raise ConnectionResetError("the server closed the connection")
        except OSError as error:
            raise self._closed(_translated(error)) from error
        if received == sum(view.nbytes for view in views):
            return
        for view in views:
            done = min(received, view.nbytes)
            received -= done
            self._fill(view[done:])

    def _fill(self, view: memoryview) -> None:
        try:
            while view.nbytes:
                self._keep_to_the_end()
                received = self._socket.recv_into(view, view.nbytes, self._receive_flags)
                if not received:
                    raise ConnectionResetError("the server closed the connection")
                view = view[received:]
        except OSError as error:
            raise self._closed(_translated(error)) from error

    def _server_error(self, start: bytes) -> TierError:
        """Read an error reply to its end. Out of memory, or a key that is elsewhere, leaves the connection usable;
        anything else closes it."""
        line = bytearray(start)
        byte = bytearray(1)
        while line[:1] == b"-" and not line.endswith(b"\r\n") and len(line) < _ERROR_LINE_MAX:
            self._fill(memoryview(byte))
            line += byte
        text = line.decode(errors="replace").strip()
        if line.startswith(b"-OOM"):
            return ServerFullError(f"redis: {text}")
        kind, *rest = text.split()
        if kind in ("-MOVED", "-ASK") and len(rest) == 2:
            host, _, port = rest[1].rpartition(":")
            if rest[0].isdigit() and port.isdigit():
                address = Address(host.strip("[]") or self._host, int(port))
                return SentElsewhere(int(rest[0]), address, asking=kind == "-ASK")
        return self._closed(TierUnavailable(f"redis: {text}"))

    def _closed(self, error: TierError) -> TierError:
        self.close()
        return error


def _set_kernel_timeouts(raw: socket.socket, timeout_s: float) -> None:
    interval = struct.pack("@ll", *divmod(max(1, round(timeout_s * 1e6)), 1_000_000))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


def _command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _translated(error: OSError) -> TierError:
    # A kernel timeout shows as EAGAIN.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return TierTimeout("redis: no answer within the timeout of a value")
    return TierUnavailable(f"redis: {error}")
