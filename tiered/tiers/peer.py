"""Another worker's memory as a tier: blocks over plain TCP, straight into place, verified on arrival.

The holder decides what it still has (I7). Whatever goes wrong with a peer is a miss for the blocks that had not
arrived; the connection is dropped and the next fetch makes a new one.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.codec.frame import HEADER_BYTES, decode_header, verify
from tiered.errors import IntegrityError, ProtocolError, TieredError, TierUnavailable
from tiered.hashing.chain import join_hashes
from tiered.jobs import PeerAddress
from tiered.log import get_logger
from tiered.types import BlockHash
from tiered.wire.auth import prove
from tiered.wire.connection import Connection, connect_tcp
from tiered.wire.framing import PEER_REPLIES
from tiered.wire.messages import Challenge, Failure, Fetch, Holding, PeerReply, Proof, Welcome

IDLE_CONNECTIONS_MAX: Final = 4
"""Kept open per peer; as many as fetches usually run at once."""

REST_S: Final = 1.0
"""A peer that could not be reached is not tried again for this long: its blocks are asked of the next origin."""

_log = get_logger("tiered.peer")


class _RestingError(TierUnavailable):
    """The peer failed a moment ago; said once, then not asked for a while."""


@dataclass(frozen=True, slots=True)
class PeerCounters:
    """Totals over all peers. Misses are by reason: absent, unavailable, resting, or what was wrong with a block."""

    blocks: int
    misses: Mapping[str, int]


class PeerTier:
    """Fetches from any number of peers; several threads may call it at once."""

    def __init__(self, node: str, secret: str, *, timeout_s: float, clock: Clock | None = None) -> None:
        self._node = node
        self._secret = secret
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._idle: dict[PeerAddress, list[Connection[PeerReply]]] = {}
        self._resting: dict[PeerAddress, float] = {}
        self._lock = threading.Lock()
        self._blocks = 0
        self._misses: Counter[str] = Counter()

    def counters(self) -> PeerCounters:
        with self._lock:
            return PeerCounters(blocks=self._blocks, misses=dict(self._misses))

    def fetch(
        self, peer: PeerAddress, hashes: Sequence[BlockHash], outs: Sequence[memoryview], *, scope_id: bytes
    ) -> list[bytes | None]:
        """Per block its verified checksum, or None; an out whose block is None may hold garbage."""
        checksums: list[bytes | None] = [None] * len(hashes)
        try:
            connection = self._borrow(peer)
            self._stream(connection, peer, hashes, outs, scope_id, checksums)
        except _RestingError:
            self._count("resting", checksums)
            return checksums
        except TieredError as error:
            self._rest(peer)
            reason = error.reason if isinstance(error, IntegrityError) else "unavailable"
            self._count(reason, checksums)
            _log.warning("peer fetch failed", peer=peer.node, error=str(error))
            return checksums
        self._give_back(peer, connection)
        self._count("absent", checksums)
        return checksums

    def close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _stream(
        self,
        connection: Connection[PeerReply],
        peer: PeerAddress,
        hashes: Sequence[BlockHash],
        outs: Sequence[memoryview],
        scope_id: bytes,
        checksums: list[bytes | None],
    ) -> None:
        request = Fetch(epoch=peer.epoch, scope_id=scope_id, hashes=join_hashes(hashes))
        reply = connection.call(request, timeout_s=self._timeout_s)
        if not isinstance(reply, Holding):
            connection.close()
            raise ProtocolError(f"{connection.name}: {_said(reply)}")
        if not reply.indices:
            return
        if reply.block_bytes != outs[0].nbytes or not all(0 <= i < len(outs) for i in reply.indices):
            connection.close()
            raise IntegrityError("length", f"blocks of {reply.block_bytes} bytes, expected {outs[0].nbytes}")
        header_bytes = bytearray(HEADER_BYTES)
        for index in reply.indices:
            out, checksums[index] = outs[index], None  # a block sent twice is good only if its last bytes are
            connection.receive_into(memoryview(header_bytes), timeout_s=self._timeout_s)
            connection.receive_into(out, timeout_s=self._timeout_s)
            try:
                header = decode_header(header_bytes)
                verify(header, block_hash=hashes[index], scope_id=scope_id, raw_bytes=out.nbytes, payload=out)
            except IntegrityError:
                connection.close()
                raise
            checksums[index] = header.checksum

    def _borrow(self, peer: PeerAddress) -> Connection[PeerReply]:
        with self._lock:
            idle = self._idle.get(peer, [])
            while idle:
                connection = idle.pop()
                if _is_quiet(connection):
                    return connection
                connection.close()
            rests_until = self._resting.get(peer)
        if rests_until is not None and self._clock.now() < rests_until:
            raise _RestingError
        return self._connect(peer)

    def _connect(self, peer: PeerAddress) -> Connection[PeerReply]:
        sock = connect_tcp(peer.host, peer.port, timeout_s=self._timeout_s)
        connection = Connection(sock, PEER_REPLIES, name=f"peer {peer.node} at {peer.host}:{peer.port}")
        challenge = connection.receive(timeout_s=self._timeout_s)
        if not isinstance(challenge, Challenge) or challenge.node != peer.node:
            connection.close()
            raise ProtocolError(f"{connection.name}: {_said(challenge)}")
        digest = prove(self._secret, challenge.nonce, asking=self._node, serving=peer.node)
        welcome = connection.call(Proof(node=self._node, digest=digest), timeout_s=self._timeout_s)
        if not isinstance(welcome, Welcome):
            connection.close()
            raise ProtocolError(f"{connection.name}: {_said(welcome)}")
        return connection

    def _give_back(self, peer: PeerAddress, connection: Connection[PeerReply]) -> None:
        with self._lock:
            self._resting.pop(peer, None)
            idle = self._idle.setdefault(peer, [])
            if len(idle) < IDLE_CONNECTIONS_MAX:
                idle.append(connection)
                return
        connection.close()

    def _rest(self, peer: PeerAddress) -> None:
        with self._lock:
            self._resting[peer] = self._clock.now() + REST_S
            for connection in self._idle.pop(peer, []):
                connection.close()

    def forget(self, live: frozenset[PeerAddress]) -> None:
        """Close what is kept for lives that have ended."""
        with self._lock:
            for peer in [peer for peer in self._idle if peer not in live]:
                for connection in self._idle.pop(peer):
                    connection.close()
            for peer in [peer for peer in self._resting if peer not in live]:
                del self._resting[peer]

    def _count(self, reason: str, checksums: Sequence[bytes | None]) -> None:
        n_missing = sum(checksum is None for checksum in checksums)
        with self._lock:
            self._blocks += len(checksums) - n_missing
            if n_missing:
                self._misses[reason] += n_missing


def _is_quiet(connection: Connection[PeerReply]) -> bool:
    """Whether an idle connection may be used again: not when the peer has closed it, or says what nobody asked."""
    connection.sock.setblocking(False)
    try:
        connection.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _said(reply: object) -> str:
    return reply.message if isinstance(reply, Failure) else f"unexpected {type(reply).__name__}"
