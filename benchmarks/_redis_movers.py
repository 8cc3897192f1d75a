"""What is moved to and from a server, and two that move it: our tier, and bare sockets that do the same exchange.

All movers move the same bytes from the same pool and, where they can, into the same pool, and say how long that took.
Not a benchmark itself.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np

from tiered.config import RedisSettings
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.types import BlockHash, BlockId, TenantId

TENANT = TenantId("bench")
SCOPE_ID = b"\1" * 16
HEADER = b"\0" * 192
"""What every value bears ahead of its block, as the tier's do."""

JOB_BLOCKS = 32
"""As many as one fetch of a worker asks for."""

PART_BYTES = 4 << 20
WINDOW_VALUES, WINDOW_BYTES = 8, 8 << 20
PATIENT_S = 30.0
EMPTY = ("FLUSHALL", "SYNC")
"""Not what the client has under that name, which returns while a thread of the server still frees memory."""


class Cargo:
    """Blocks of random bytes in one half of a pool, and the places where they are to arrive in the other."""

    def __init__(self, layout: KvLayout, n_blocks: int) -> None:
        self.layout = layout
        self._pool = BlockPool(layout, 2 * n_blocks)
        self.hashes = [BlockHash(sha256(f"{layout.describe()}/{i}".encode()).digest()) for i in range(n_blocks)]
        self.sources = [self._pool.host_view(BlockId(i)) for i in range(n_blocks)]
        self.targets = [self._pool.host_view(BlockId(n_blocks + i)) for i in range(n_blocks)]
        random = np.random.default_rng(0)
        for source, target in zip(self.sources, self.targets, strict=True):
            source[:] = random.bytes(source.nbytes)
            target[:] = bytes(target.nbytes)

    @property
    def nbytes(self) -> int:
        return len(self.sources) * self.layout.block_bytes

    def forget(self) -> None:
        """So that what is found to have arrived has arrived since."""
        for target in self.targets:
            target[:1] = target[-1:] = b"\0"

    def has_arrived(self) -> bool:
        return all(source == target for source, target in zip(self.sources, self.targets, strict=True))

    def close(self) -> None:
        self._pool.close()


class Mover(Protocol):
    """put and get move all blocks once and return the seconds it took."""

    def put(self) -> float: ...
    def get(self) -> float: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """One way to a server."""

    transport: str
    url: str
    target: str | tuple[str, int]

    def connect(self) -> socket.socket:
        if isinstance(self.target, str):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.target)
        else:
            connection = socket.create_connection(self.target)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def settings_for(url: str) -> RedisSettings:
    """Deadlines that a busy machine does not reach: what is measured is the speed."""
    return RedisSettings(
        url=url,
        connect_timeout_s=PATIENT_S,
        control_timeout_s=PATIENT_S,
        lookup_timeout_s=PATIENT_S,
        value_timeout_s=PATIENT_S,
    )


class _Threads:
    """Runs jobs in threads of its own; with one, in the caller's."""

    def __init__(self, n: int) -> None:
        self._threads = ThreadPoolExecutor(n) if n > 1 else None

    def timed(self, move: Callable[[int], None], n_jobs: int) -> float:
        start = time.perf_counter()
        for _ in map(move, range(n_jobs)) if self._threads is None else self._threads.map(move, range(n_jobs)):
            pass
        return time.perf_counter() - start

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


class TierMover:
    """The tier as a worker calls it, in jobs: reserved, checksummed, committed; verified and touched."""

    def __init__(self, cargo: Cargo, address: Address, n_threads: int) -> None:
        self._threads = _Threads(n_threads)
        self._tier = RedisTier(settings_for(address.url))
        self._cargo = cargo
        n_blocks = len(cargo.hashes)
        job_blocks = min(JOB_BLOCKS, math.ceil(n_blocks / n_threads))
        self._jobs = [range(i, min(i + job_blocks, n_blocks)) for i in range(0, n_blocks, job_blocks)]

    def put(self) -> float:
        return self._threads.timed(self._put, len(self._jobs))

    def get(self) -> float:
        return self._threads.timed(self._get, len(self._jobs))

    def close(self) -> None:
        self._threads.close()
        self._tier.close()

    def _put(self, job: int) -> None:
        cargo = self._cargo
        blocks = [ToStore(cargo.hashes[i], TENANT, i, cargo.sources[i], checksum=None) for i in self._jobs[job]]
        answers = self._tier.put(blocks, scope_id=SCOPE_ID, layout=cargo.layout)
        assert set(answers) == {PutAnswer.STORED}, answers

    def _get(self, job: int) -> None:
        cargo = self._cargo
        wanted = [Wanted(cargo.hashes[i], cargo.targets[i]) for i in self._jobs[job]]
        checksums = self._tier.get(wanted, scope_id=SCOPE_ID, tenant=TENANT, layout=cargo.layout)
        assert None not in checksums, self._tier.counters()


@dataclass(frozen=True, slots=True)
class RawString:
    key: bytes
    header: bytes
    body: memoryview


def strings(views: Sequence[memoryview], first: int, step: int) -> Iterator[RawString]:
    """What lies in Redis for every step-th block: the header is in the first string of each."""
    for i in range(first, len(views), step):
        cut = PART_BYTES - len(HEADER)
        yield RawString(b"raw:%d" % i, HEADER, views[i][:cut])
        for start in range(cut, views[i].nbytes, PART_BYTES):
            yield RawString(b"raw:%d:%d" % (i, start), b"", views[i][start : start + PART_BYTES])


class RawMover:
    """Blocking sockets, one a thread, that know what will come: the same commands and windows, nothing else."""

    def __init__(self, cargo: Cargo, address: Address, n_sockets: int) -> None:
        self._threads = _Threads(n_sockets)
        self._sockets = [address.connect() for _ in range(n_sockets)]
        self._puts = [list(strings(cargo.sources, i, n_sockets)) for i in range(n_sockets)]
        self._gets = [list(strings(cargo.targets, i, n_sockets)) for i in range(n_sockets)]

    def put(self) -> float:
        return self._threads.timed(self._put, len(self._sockets))

    def get(self) -> float:
        return self._threads.timed(self._get, len(self._sockets))

    def close(self) -> None:
        self._threads.close()
        for connection in self._sockets:
            connection.close()

    def _put(self, index: int) -> None:
        connection = self._sockets[index]
        reply = bytearray(5)

        def send(window: Sequence[RawString]) -> None:
            for string in window:
                length = len(string.header) + string.body.nbytes
                start = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(string.key), string.key, length)
                end = b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n"
                _send(connection, [start + string.header, string.body, end])

        def receive(string: RawString) -> None:
            _fill(connection, [memoryview(reply)])
            assert reply == b"+OK\r\n", reply

        _in_windows(self._puts[index], send, receive)

    def _get(self, index: int) -> None:
        connection = self._sockets[index]

        def send(window: Sequence[RawString]) -> None:
            gets = [b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(string.key), string.key) for string in window]
            if gets:
                connection.sendall(b"".join(gets))

        def receive(string: RawString) -> None:
            line = b"$%d\r\n" % (len(string.header) + string.body.nbytes)
            start, end = bytearray(len(line) + len(string.header)), bytearray(2)
            _fill(connection, [memoryview(start), string.body, memoryview(end)])
            assert (start, end) == (line + string.header, b"\r\n"), start

        _in_windows(self._gets[index], send, receive)


def _in_windows(
    strings: Sequence[RawString], send: Callable[[Sequence[RawString]], None], receive: Callable[[RawString], None]
) -> None:
    sent, in_flight = 0, deque[int]()
    for string in strings:
        if 2 * len(in_flight) <= WINDOW_VALUES and 2 * sum(in_flight) <= WINDOW_BYTES:
            first = sent
            while sent < len(strings) and fits(in_flight, strings[sent].body.nbytes):
                in_flight.append(strings[sent].body.nbytes)
                sent += 1
            send(strings[first:sent])
        receive(string)
        in_flight.popleft()


def fits(in_flight: deque[int], nbytes: int) -> bool:
    return not in_flight or (len(in_flight) < WINDOW_VALUES and sum(in_flight) + nbytes <= WINDOW_BYTES)


def _send(connection: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    views = [memoryview(buffer) for buffer in buffers]
    while views:
        views = _after(views, connection.sendmsg(views))


def _fill(connection: socket.socket, views: list[memoryview]) -> None:
    while views:
        received = connection.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
        assert received, "the server closed the connection"
        views = _after(views, received)


def _after(views: list[memoryview], n: int) -> list[memoryview]:
    while views and n >= views[0].nbytes:
        n -= views.pop(0).nbytes
    return [views[0][n:], *views[1:]] if views and n else views
