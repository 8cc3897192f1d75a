"""In the place of sockets: the clients of the shared state and the connections between peers, over the simulated
network.

Owns how replies look to those who use redis-py, and how errors do; both are the real ones' (``test_store.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import redis
from redis.exceptions import NoScriptError

from tests.sim.loop import current_host
from tests.sim.network import SHARED, End, Listener, Network, NoAnswerError, UnreachableError
from tests.sim.server import SharedState
from tests.sim.store import Reply, ReplyError
from tiered.codec.frame import HEADER_BYTES
from tiered.errors import ProtocolError, TierTimeout, TierUnavailable
from tiered.tiers.redis.values import Fetched, Received, ValueToRead, ValueToWrite, Written
from tiered.wire.framing import PREFIX, Codec, body_length, encode
from tiered.wire.messages import FRAME_BYTES_MAX, Message

M = TypeVar("M")

Word = str | bytes | int | float | memoryview


class SimClient:
    """As much of ``redis.Redis`` as the services use: every call is one round trip of at most timeout_s."""

    def __init__(self, network: Network, shared: SharedState, *, timeout_s: float) -> None:
        self._network = network
        self._shared = shared
        self._timeout_s = timeout_s

    def execute_command(self, *parts: Word) -> Any:
        reply = self.send([parts])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, transaction: bool = True) -> SimPipeline:
        assert not transaction
        return SimPipeline(self)

    def send(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Errors: redis.TimeoutError, redis.ConnectionError."""
        words = [_words(parts) for parts in commands]
        try:
            replies = self._network.ask(SHARED, lambda: self._shared.execute(words), timeout_s=self._timeout_s)
        except NoAnswerError:
            raise redis.TimeoutError("no answer in time") from None
        except UnreachableError:
            raise redis.ConnectionError("unreachable") from None
        return [_as_redis_py(sent[0].upper(), reply) for sent, reply in zip(words, replies, strict=True)]

    def close(self) -> None:
        """Nothing is held open."""


class SimPipeline:
    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._commands: list[Sequence[Word]] = []

    def __enter__(self) -> SimPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._commands = []

    def execute_command(self, *parts: Word) -> None:
        self._commands.append(parts)

    def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return self._client.send(self._commands)


def _words(parts: Sequence[Word]) -> list[bytes]:
    words = [part if type(part) is bytes else _word(part) for part in parts]
    if b" " in words[0]:  # redis-py's way of naming SCRIPT LOAD
        words[:1] = words[0].split()
    return words


def _word(part: Word) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, memoryview):
        return bytes(part)
    return repr(part).encode()


def _as_redis_py(command: bytes, reply: Reply) -> Any:
    if isinstance(reply, ReplyError):
        text = str(reply)
        return NoScriptError(text) if text.startswith("NOSCRIPT") else redis.ResponseError(text)
    if command == b"HGETALL":
        return dict(zip(reply[::2], reply[1::2], strict=True))
    if command in (b"XRANGE", b"XREVRANGE"):
        return [(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in reply]
    if command in (b"SCAN", b"SSCAN"):
        return int(reply[0]), reply[1]
    if command == b"ZSCAN":
        flat = reply[1]
        return int(reply[0]), [(m, float(s)) for m, s in zip(flat[::2], flat[1::2], strict=True)]
    if command == b"INFO":
        return dict(line.split(":") for line in reply.decode().splitlines() if ":" in line)
    return reply


class SimValues:
    """As :class:`tiered.tiers.redis.values.ValueClient`: all values in one round trip."""

    def __init__(self, network: Network, shared: SharedState, *, timeout_s: float) -> None:
        self._network = network
        self._shared = shared
        self._timeout_s = timeout_s

    def get(self, wanted: Sequence[ValueToRead], *, within_s: float = math.inf) -> Iterator[Received]:
        replies = self._ask([[b"GET", value.key] for value in wanted], min(within_s, self._timeout_s))
        for index, (value, reply) in enumerate(zip(wanted, replies, strict=True)):
            if reply is None:
                yield Received(Fetched.ABSENT, index=index)
                continue
            n_bytes = len(reply) - HEADER_BYTES
            if not 0 <= n_bytes <= value.payload.nbytes:
                yield Received(Fetched.WRONG_LENGTH, index=index)
                continue
            value.payload[:n_bytes] = reply[HEADER_BYTES:]
            yield Received(Fetched.HERE, memoryview(reply)[:HEADER_BYTES], n_bytes, index)

    def put(self, values: Sequence[ValueToWrite], *, ttl_ms: int) -> list[Written]:
        words = [
            [b"SET", value.key, value.header + bytes(value.payload), b"NX", b"PX", b"%d" % ttl_ms] for value in values
        ]
        replies = self._ask(words, self._timeout_s)
        return [Written.KEPT if reply is None else Written.STORED for reply in replies]

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self, words: list[list[bytes]], timeout_s: float) -> list[Reply]:
        if not words:
            return []
        try:
            return self._network.ask(SHARED, lambda: self._shared.execute(words), timeout_s=timeout_s)
        except NoAnswerError:
            raise TierTimeout("values: no answer in time") from None
        except UnreachableError:
            raise TierUnavailable("values: unreachable") from None


def dial(network: Network, host: str, port: int, *, timeout_s: float) -> End:
    """As :func:`tiered.wire.connection.connect_tcp`."""
    try:
        return network.connect((host, port), timeout_s=timeout_s)
    except (NoAnswerError, UnreachableError) as error:
        raise TierUnavailable(f"{host}:{port}: {type(error).__name__}") from None


def listen(network: Network, host: str) -> Listener:
    """As the peer server listens; in the process that runs."""
    process = current_host()
    assert process is not None
    return network.listen(process, host)


class SimConnection(Generic[M]):
    """As :class:`tiered.wire.connection.Connection`, over one end of a simulated one."""

    def __init__(self, sock: End, replies: Codec[M], *, name: str) -> None:
        self.sock = sock
        self.name = name
        self._replies = replies

    @property
    def closed(self) -> bool:
        return self.sock.is_closed

    def close(self) -> None:
        self.sock.close()

    def send(self, message: Message, *, timeout_s: float) -> None:
        self.send_raw([encode(message)], timeout_s=timeout_s)

    def send_raw(self, parts: Sequence[bytes | memoryview], *, timeout_s: float) -> None:
        """What lies there when the last of it is taken is what goes: a sender may not count on any earlier moment."""
        end = self.sock
        with _Translating(self):
            if end.is_over:
                raise ConnectionResetError("closed")
            takes_s = sum(memoryview(part).nbytes for part in parts) * end.network.byte_s
            end.network.loop.sleep(min(takes_s, timeout_s))
            if takes_s > timeout_s:
                raise TimeoutError
            if end.is_over:
                raise ConnectionResetError("closed")
            end.network.carry(end, end.other, b"".join(parts))

    def receive(self, *, timeout_s: float, bytes_max: int = FRAME_BYTES_MAX) -> M:
        with _Translating(self):
            frame = self._next(timeout_s)
            if body_length(bytearray(frame[: PREFIX.size])) > bytes_max:
                raise ProtocolError("a frame that is too long")
            return self._replies.decode(bytearray(frame[PREFIX.size :]))

    def receive_into(self, *views: memoryview, timeout_s: float) -> None:
        with _Translating(self):
            frame, at = self._next(timeout_s), 0
            for view in views:
                view[:] = frame[at : at + view.nbytes]
                at += view.nbytes

    def await_more(self, *, timeout_s: float) -> bool:
        end = self.sock
        if not end.inbox and not end.is_over:
            end.waiters.wait(timeout_s)
        return bool(end.inbox)

    def _next(self, timeout_s: float) -> bytes:
        end, loop = self.sock, self.sock.network.loop
        ends_at = loop.time() + timeout_s
        while not end.inbox:
            if end.is_over:
                raise ConnectionResetError("closed by the other side")
            left = ends_at - loop.time()
            if left <= 0:
                raise TimeoutError
            end.waiters.wait(left)
        return end.inbox.popleft()


class _Translating:
    """Errors as the real connection has them; it is closed then."""

    def __init__(self, connection: SimConnection[Any]) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._connection.close()
        if isinstance(error, TimeoutError):
            raise TierTimeout(f"{self._connection.name}: no answer in time") from error
        if isinstance(error, OSError):
            raise TierUnavailable(f"{self._connection.name}: {error}") from error
