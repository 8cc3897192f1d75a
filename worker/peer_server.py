"""Serves blocks to other workers over TCP; checks secret, epoch and scope before the first byte.

Bytes move in threads with blocking sockets, straight from the pool. What is being sent is pinned until it is sent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tiered.codec.frame import CODEC_NONE, BlockHeader, checksum_of, encode_header
from tiered.errors import ConfigError, ProtocolError, TieredError, TierTimeout
from tiered.hashing.chain import split_hashes
from tiered.log import get_logger
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, BlockId
from tiered.wire.auth import new_nonce, proves
from tiered.wire.connection import Connection
from tiered.wire.framing import PEER_REQUESTS
from tiered.wire.messages import Challenge, Failure, Fetch, Holding, PeerRequest, Proof, Welcome
from worker.hot_tier import LEND_LEASE_S, Lent

CONNECTIONS_MAX: Final = 64
"""More are turned away at once: each costs a thread."""

IDLE_S: Final = 300.0
"""A connection on which nothing is asked for this long is closed; the peer opens another."""

HANDSHAKE_S: Final = 5.0
HANDSHAKE_BYTES_MAX: Final = 1_024
"""Of a proof: what a stranger says is not worth more memory."""

FETCH_BLOCKS_MAX: Final = 4_096

STREAM_S: Final = LEND_LEASE_S / 2
"""A fetch that takes longer is given up: no block is read after the lease under which it was lent."""

ACCEPT_AGAIN_S: Final = 0.1
"""Rest after a connection could not be accepted, such as for want of descriptors."""

_log = get_logger("worker.peer")


class Lending(Protocol):
    """What the server needs of the hot tier, callable from its threads."""

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None: ...

    def take_back(self, lent: Lent) -> None: ...

    def epoch(self) -> int: ...

    def pool(self) -> BlockPool | None: ...


@dataclass(frozen=True, slots=True)
class PeerServerCounters:
    """Totals over all connections; refused counts connections."""

    sent_blocks: int = 0
    sent_bytes: int = 0
    refused: int = 0


class PeerServer:
    """Listens from construction on, so that its port is known; serves after :meth:`start`."""

    def __init__(self, host: str, port: int, lending: Lending, *, node: str, secret: str, timeout_s: float) -> None:
        self._counters = PeerServerCounters()
        self._lending = lending
        self._node = node
        self._secret = secret
        self._timeout_s = timeout_s
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener = _listen(host, port)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def counters(self) -> PeerServerCounters:
        with self._lock:
            return self._counters

    def start(self) -> None:
        threading.Thread(target=self._accept, name="peer-accept", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._stopping.wait(ACCEPT_AGAIN_S):  # while stopping, it is the listener that was closed
                    _log.warning("a peer's connection was not accepted", error=str(error))
                continue
            with self._lock:
                full = len(self._open) >= CONNECTIONS_MAX
                if not full:
                    self._open.add(sock)
            if full:
                sock.close()
                self._count(refused=1)
                continue
            name = f"{address[0]}:{address[1]}"
            threading.Thread(target=self._serve, args=(sock, name), name=f"peer-{name}", daemon=True).start()

    def _serve(self, sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection: Connection[PeerRequest] = Connection(sock, PEER_REQUESTS, name=name)
        try:
            if self._welcome(connection):
                while True:
                    self._answer(connection, connection.receive(timeout_s=IDLE_S))
        except TieredError as error:
            if isinstance(error, ProtocolError):
                self._count(refused=1)
                _log.warning("peer dropped", peer=name, error=str(error))
        except OSError as error:
            _log.warning("peer lost", peer=name, error=str(error))
        finally:
            connection.close()
            with self._lock:
                self._open.discard(sock)

    def _welcome(self, connection: Connection[PeerRequest]) -> bool:
        nonce = new_nonce()
        connection.send(Challenge(self._node, self._lending.epoch(), nonce), timeout_s=HANDSHAKE_S)
        proof = connection.receive(timeout_s=HANDSHAKE_S, bytes_max=HANDSHAKE_BYTES_MAX)
        if isinstance(proof, Proof) and proves(
            self._secret, nonce, proof.digest, asking=proof.node, serving=self._node
        ):
            connection.send(Welcome(), timeout_s=HANDSHAKE_S)
            return True
        self._count(refused=1)
        _log.warning("peer refused: it does not know the cluster secret", peer=connection.name)
        connection.send(Failure("secret", "the cluster secret does not match"), timeout_s=HANDSHAKE_S)
        return False

    def _answer(self, connection: Connection[PeerRequest], request: PeerRequest) -> None:
        if not isinstance(request, Fetch):
            raise ProtocolError(f"unexpected {type(request).__name__}")
        epoch = self._lending.epoch()
        if request.epoch != epoch:
            failure = Failure("epoch", f"epoch {request.epoch} has ended, this is {epoch}")
            connection.send(failure, timeout_s=self._timeout_s)
            return
        try:
            hashes = split_hashes(request.hashes)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        if len(hashes) > FETCH_BLOCKS_MAX:
            raise ProtocolError(f"{len(hashes)} blocks in one fetch, at most {FETCH_BLOCKS_MAX}")
        lent = self._lending.lend(hashes, scope_id=request.scope_id)
        pool = self._lending.pool()
        if lent is None or pool is None:
            connection.send(Holding(indices=(), block_bytes=0), timeout_s=self._timeout_s)
            return
        try:
            self._stream(connection, pool, request.scope_id, hashes, lent)
        finally:
            self._lending.take_back(lent)

    def _stream(
        self,
        connection: Connection[PeerRequest],
        pool: BlockPool,
        scope_id: bytes,
        hashes: list[BlockHash],
        lent: Lent,
    ) -> None:
        block_bytes = pool.layout.block_bytes
        holding = Holding(indices=tuple(index for index, _, _ in lent.blocks), block_bytes=block_bytes)
        connection.send(holding, timeout_s=self._timeout_s)
        read = _reader(pool)
        ends_at = time.monotonic() + STREAM_S
        for index, block_id, checksum in lent.blocks:
            payload = read(block_id)
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TierTimeout(f"{connection.name}: the fetch took longer than {STREAM_S:g} s")
            header = BlockHeader(
                block_hash=hashes[index],
                scope_id=scope_id,
                codec=CODEC_NONE,
                raw_bytes=block_bytes,
                stored_bytes=block_bytes,
                checksum=checksum or checksum_of(payload),
            )
            connection.send_raw([encode_header(header), payload], timeout_s=min(self._timeout_s, left))
        self._count(sent_blocks=len(lent.blocks), sent_bytes=len(lent.blocks) * block_bytes)

    def _count(self, *, sent_blocks: int = 0, sent_bytes: int = 0, refused: int = 0) -> None:
        with self._lock:
            before = self._counters
            self._counters = PeerServerCounters(
                sent_blocks=before.sent_blocks + sent_blocks,
                sent_bytes=before.sent_bytes + sent_bytes,
                refused=before.refused + refused,
            )


def _reader(pool: BlockPool) -> Callable[[BlockId], memoryview]:
    """How to get at a block's bytes: in place in host memory, through one reused buffer from a device."""
    if pool.device == "cpu":
        return pool.host_view
    buffer = memoryview(bytearray(pool.layout.block_bytes))

    def read(block_id: BlockId) -> memoryview:
        pool.read(block_id, buffer)
        return buffer

    return read


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=CONNECTIONS_MAX)
    except OSError as error:
        raise ConfigError(
            f"node.peer_port: cannot listen on {host}:{port}: {error.strerror}; choose a free port, or 0 for any",
            field="node.peer_port",
        ) from None
