"""Serves blocks to other workers over TCP; checks secret, epoch and scope before the first byte.

Bytes move in threads with blocking sockets, straight from the pool. What is being sent is pinned until it is sent.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tiered.codec.frame import CODEC_NONE, BlockHeader, checksum_of, encode_header
from tiered.errors import ProtocolError, TieredError, TierTimeout, VersionMismatch
from tiered.hashing.chain import split_hashes
from tiered.log import get_logger
from tiered.pool.pool import BlockPool
from tiered.tracing import span
from tiered.types import BlockHash, BlockId
from tiered.wire.auth import Handshake, Side, new_nonce, prove, proves
from tiered.wire.connection import Connection
from tiered.wire.framing import PEER_REQUESTS
from tiered.wire.handshake import HANDSHAKE_BYTES_MAX, left_until, not_that_life
from tiered.wire.messages import (
    WIRE_MINOR,
    Challenge,
    Explain,
    Explained,
    Failure,
    Fetch,
    Holding,
    PeerRequest,
    Proof,
    Recent,
    Welcome,
)
from worker.hot_tier import LEND_LEASE_S, Lent
from worker.listening import cannot_listen, family_of
from worker.peer_slots import PeerSlots

IDLE_S: Final = 300.0
"""A connection on which nothing is asked for this long is closed; the peer opens another."""

HANDSHAKE_S: Final = 5.0
"""Of a handshake in all, however slowly its bytes come."""

REQUEST_BYTES_MAX: Final = 256 << 10
"""Of one request, for which memory is made ready: FETCH_BLOCKS_MAX hashes fit twice."""

FETCH_BLOCKS_MAX: Final = 4_096

SEND_BUFFER_BYTES: Final = 4 << 20
"""As much as kernels usually grant: blocks then go out in fewer pieces, each of which costs a turn for the
interpreter. 5% less CPU of both sides, benchmarks/peer_fetch.py."""

STREAM_S: Final = LEND_LEASE_S / 2
"""A fetch that takes longer is given up: no block is read after the lease under which it was lent."""

BACKLOG: Final = 128

ACCEPT_AGAIN_S: Final = 0.1
"""Rest after a connection could not be accepted, such as for want of descriptors."""

WARN_AGAIN_S: Final = 30.0
"""Refusals for one reason are told of in the log once in so long; the counters have every one."""

REFUSALS: Final = ("secret", "unproven", "epoch", "protocol", "version", "busy")
"""The secret does not match; gone without a proof, in time or at all; a fetch from an epoch that has ended; what was
said is not of this protocol, or of another version of it; no room, or no thread."""

_log = get_logger("worker.peer")


class Lending(Protocol):
    """What the server needs of the hot tier, callable from its threads."""

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None: ...

    def take_back(self, lent: Lent) -> None: ...

    def epoch(self) -> int: ...

    def pool(self) -> BlockPool | None: ...

    def explain(self, request: Explain | Recent) -> Explained:
        """Errors: ProtocolError for what cannot be understood."""


@dataclass(frozen=True, slots=True)
class PeerServerCounters:
    """Totals over all connections. refused: connections by reason, but for ``epoch``, which counts requests."""

    sent_blocks: int = 0
    sent_bytes: int = 0
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))


class PeerServer:
    """Listens from construction on, so that its port is known; serves after :meth:`start`.

    secrets: whoever proves one of them is answered, by a proof of the same.
    """

    def __init__(
        self, host: str, port: int, lending: Lending, *, node: str, secrets: Sequence[str], timeout_s: float
    ) -> None:
        self._sent_blocks = 0
        self._sent_bytes = 0
        self._refused = dict.fromkeys(REFUSALS, 0)
        self._warned_at: dict[str, float] = {}
        self._lending = lending
        self._node = node
        self._secrets = tuple(secrets)
        self._timeout_s = timeout_s
        self._slots = PeerSlots()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener = _listen(host, port)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def counters(self) -> PeerServerCounters:
        with self._lock:
            return PeerServerCounters(self._sent_blocks, self._sent_bytes, dict(self._refused))

    def start(self) -> None:
        threading.Thread(target=self._accept, name="peer-accept", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._slots.end_all()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._stopping.wait(ACCEPT_AGAIN_S):  # while stopping, it is the listener that was closed
                    _log.warning("a peer's connection was not accepted", error=str(error))
                continue
            name = f"{address[0]}:{address[1]}"
            if not self._slots.admit(sock, str(address[0])):
                sock.close()
                self._refuse("busy", name, "no room for another connection")
                continue
            if self._stopping.is_set():  # it came as the others were told to end
                self._slots.leave(sock)
                sock.close()
                return
            thread = threading.Thread(target=self._serve, args=(sock, name), name=f"peer-{name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine, or our cgroup, has no more
                self._slots.leave(sock)
                sock.close()
                self._refuse("busy", name, str(error))

    def _serve(self, sock: socket.socket, name: str) -> None:
        connection: Connection[PeerRequest] = Connection(sock, PEER_REQUESTS, name=name)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._welcome(connection):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                while self._answer_next(connection):
                    pass
        except VersionMismatch as error:
            self._refuse("version", name, str(error))
        except ProtocolError as error:
            self._refuse("protocol", name, str(error))
        except (TieredError, OSError) as error:
            _log.debug("peer gone", peer=name, error=str(error))
        finally:
            self._slots.leave(sock)
            connection.close()

    def _welcome(self, connection: Connection[PeerRequest]) -> bool:
        """The serving side of ``tiered.wire.handshake``. False: the connection is to end. Errors: TieredError."""
        ends_at = time.monotonic() + HANDSHAKE_S
        name, nonce = connection.name, new_nonce()
        try:
            challenge = Challenge(self._node, self._lending.epoch(), nonce, WIRE_MINOR)
            connection.send(challenge, timeout_s=left_until(ends_at, name))
            proof = connection.receive(timeout_s=left_until(ends_at, name), bytes_max=HANDSHAKE_BYTES_MAX)
        except ProtocolError:
            raise
        except TieredError as error:
            self._refuse("unproven", name, str(error))
            return False
        if not isinstance(proof, Proof):
            raise ProtocolError(f"{type(proof).__name__} before a proof")
        connection.minor = proof.minor
        handshake = Handshake(proof.node, self._node, asking_nonce=proof.nonce, serving_nonce=nonce)
        secret = next((each for each in self._secrets if proves(each, handshake, Side.ASKING, proof.digest)), None)
        if secret is None:
            self._refuse("secret", name, "it does not know the cluster secret")
            failure = Failure("secret", "the cluster secret does not match")
            connection.send(failure, timeout_s=left_until(ends_at, name))
            return False
        if not self._slots.promote(connection.sock):
            self._refuse("busy", name, "all places are taken")
            connection.send(Failure("busy", "all places are taken"), timeout_s=left_until(ends_at, name))
            return False
        welcome = Welcome(prove(secret, handshake, Side.SERVING))  # by the one that the asker knows
        connection.send(welcome, timeout_s=left_until(ends_at, name))
        return True

    def _answer_next(self, connection: Connection[PeerRequest]) -> bool:
        """False: the peer has nothing more to ask. Errors: TieredError."""
        self._slots.quiet(connection.sock)
        if not connection.await_more(timeout_s=IDLE_S):
            return False
        self._slots.busy(connection.sock)
        self._answer(connection, connection.receive(timeout_s=self._timeout_s, bytes_max=REQUEST_BYTES_MAX))
        return True

    def _answer(self, connection: Connection[PeerRequest], request: PeerRequest) -> None:
        if isinstance(request, Explain | Recent):
            connection.send(self._lending.explain(request), timeout_s=self._timeout_s)
            return
        if not isinstance(request, Fetch):
            raise ProtocolError(f"unexpected {type(request).__name__}")
        epoch = self._lending.epoch()
        if request.epoch != epoch:
            failure = Failure("epoch", not_that_life(request.epoch, epoch))
            self._refuse("epoch", connection.name, failure.message)
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
            with span("peer.lend", parent=request.trace, node=self._node, n_blocks=len(lent.blocks)):
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
        with self._lock:
            self._sent_blocks += len(lent.blocks)
            self._sent_bytes += len(lent.blocks) * block_bytes

    def _refuse(self, reason: str, name: str, why: str) -> None:
        """Count it, and say it once in a while: a stranger's every attempt is not worth a line."""
        now = time.monotonic()
        with self._lock:
            self._refused[reason] += 1
            n_refused = self._refused[reason]
            if now < self._warned_at.get(reason, -math.inf) + WARN_AGAIN_S:
                return
            self._warned_at[reason] = now
        _log.warning("peer refused", peer=name, reason=reason, why=why, n_refused=n_refused)


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
        family = family_of(host, port)
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: takes IPv4 too, as the HTTP ports do
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise cannot_listen(error, host, port, names="node.peer") from None
