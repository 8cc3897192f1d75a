"""Another worker's memory as a tier: blocks over plain TCP, straight into place, verified on arrival.

The holder decides what it still has (I7). Whatever goes wrong with a peer is a miss for the blocks that had not
arrived; the connection is dropped and the next fetch makes a new one. Several fetches from one peer run side by side,
each on a connection of its own, which is kept for the next.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.codec.frame import HEADER_BYTES, decode_header, verify
from tiered.errors import IntegrityError, ProtocolError, TieredError, TierUnavailable, VersionMismatch
from tiered.hashing.chain import join_hashes
from tiered.jobs import PeerAddress
from tiered.log import get_logger
from tiered.metrics.timing import Timing
from tiered.tracing import here
from tiered.types import BlockHash
from tiered.wire.connection import Connection, connect_tcp
from tiered.wire.framing import PEER_REPLIES
from tiered.wire.handshake import PeerRefused, introduce, left_until, refusal
from tiered.wire.messages import Fetch, Holding, PeerReply

IDLE_CONNECTIONS_MAX: Final = 2
"""Kept open per peer: as many as fetches from one run at once (``FetchLimits.one_peer``)."""

REST_S: Final = 1.0
"""A peer that could not be reached is not tried again for this long: its blocks are asked of the next origin."""

WARN_AGAIN_S: Final = 30.0
"""A peer that goes on failing for one reason is told of in the log once in so long; the counters have every block."""

_log = get_logger("tiered.peer")


class _RestingError(TierUnavailable):
    """The peer failed a moment ago; said once, then not asked for a while."""


@dataclass(frozen=True, slots=True)
class PeerCounters:
    """Totals over all peers. received_bytes: payload of blocks that arrived whole, good or not. took: the fetches,
    whatever came of them.

    Misses are by reason: absent, resting (it failed within REST_S), unavailable, busy, secret, epoch, node (another
    node answers at its address), refused, version (another one of the wire, or of a block), protocol, or what was
    wrong with a block.
    """

    blocks: int
    misses: Mapping[str, int]
    received_bytes: int = 0
    took: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class _Fetch:
    """One fetch under way. answered: whether the peer has said what it holds."""

    peer: PeerAddress
    hashes: Sequence[BlockHash]
    outs: Sequence[memoryview]
    scope_id: bytes
    ends_at: float
    checksums: list[bytes | None]
    answered: bool = False
    received_bytes: int = 0


@dataclass(slots=True)
class _Warned:
    at: float
    n_since: int = field(default=0)


class PeerTier:
    """Fetches from any number of peers; several threads may call it at once. timeout_s: of one step of a fetch."""

    def __init__(self, node: str, secret: str, *, timeout_s: float, clock: Clock | None = None) -> None:
        self._node = node
        self._secret = secret
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._idle: dict[PeerAddress, list[Connection[PeerReply]]] = {}
        self._resting: dict[PeerAddress, float] = {}
        self._warned: dict[tuple[PeerAddress, str], _Warned] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._blocks = 0
        self._received_bytes = 0
        self._took = Timing()
        self._misses: Counter[str] = Counter()

    def counters(self) -> PeerCounters:
        with self._lock:
            return PeerCounters(self._blocks, dict(self._misses), self._received_bytes, self._took.copy())

    def fetch(
        self,
        peer: PeerAddress,
        hashes: Sequence[BlockHash],
        outs: Sequence[memoryview],
        *,
        scope_id: bytes,
        within_s: float = math.inf,
    ) -> list[bytes | None]:
        """Per block its verified checksum, or None; an out whose block is None may hold garbage.

        within_s: of all of it, however well each step keeps its own deadline; what has not come by then is a miss.
        """
        if not hashes:
            return []
        began = time.monotonic()
        fetch = _Fetch(peer, hashes, outs, scope_id, began + within_s, [None] * len(hashes))
        try:
            connection = self._run(fetch)
        except _RestingError:
            reason = "resting"
        except TieredError as error:
            reason = _reason_of(error)
            self._rest(peer)
            self._warn(peer, reason, error)
        else:
            reason = "absent"
            self._give_back(peer, connection)
        self._count(fetch, reason, time.monotonic() - began)
        return fetch.checksums

    def forget(self, live: frozenset[PeerAddress]) -> None:
        """Close what is kept for lives that have ended."""
        with self._lock:
            for peer in [peer for peer in self._idle if peer not in live]:
                for connection in self._idle.pop(peer):
                    connection.close()
            self._resting = {peer: until for peer, until in self._resting.items() if peer in live}
            self._warned = {key: warned for key, warned in self._warned.items() if key[0] in live}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _run(self, fetch: _Fetch) -> Connection[PeerReply]:
        """Returns the connection, which may be used again. Errors: TieredError; the connection is closed then."""
        kept = self._borrow(fetch.peer)
        if kept is not None:
            try:
                self._stream(kept, fetch)
                return kept
            except TierUnavailable:
                if fetch.answered:
                    raise
                # It lay idle until the peer closed it, perhaps as we spoke: only a fresh one says how things are.
        connection = self._connect(fetch)
        self._stream(connection, fetch)
        return connection

    def _stream(self, connection: Connection[PeerReply], fetch: _Fetch) -> None:
        try:
            self._receive(connection, fetch)
        except BaseException:
            connection.close()  # more of the answer may be on its way
            raise

    def _receive(self, connection: Connection[PeerReply], fetch: _Fetch) -> None:
        outs, checksums = fetch.outs, fetch.checksums
        hashes = join_hashes(fetch.hashes)
        request = Fetch(epoch=fetch.peer.epoch, scope_id=fetch.scope_id, hashes=hashes, trace=here())
        connection.send(request, timeout_s=self._step_s(connection, fetch))
        reply = connection.receive(timeout_s=self._step_s(connection, fetch))
        fetch.answered = True
        if not isinstance(reply, Holding):
            raise refusal(connection.name, reply)
        if not all(0 <= index < len(outs) for index in reply.indices):
            raise ProtocolError(f"{connection.name}: it holds blocks that were not asked for")
        if reply.indices and reply.block_bytes != outs[0].nbytes:
            raise IntegrityError("length", f"blocks of {reply.block_bytes} bytes, expected {outs[0].nbytes}")
        header_bytes = memoryview(bytearray(HEADER_BYTES))
        for index in reply.indices:
            out, checksums[index] = outs[index], None  # a block sent twice is good only if its last bytes are
            connection.receive_into(header_bytes, out, timeout_s=self._step_s(connection, fetch))
            fetch.received_bytes += out.nbytes
            header = decode_header(header_bytes)
            block_hash = fetch.hashes[index]
            verify(header, block_hash=block_hash, scope_id=fetch.scope_id, raw_bytes=out.nbytes, payload=out)
            checksums[index] = header.checksum

    def _step_s(self, connection: Connection[PeerReply], fetch: _Fetch) -> float:
        return min(self._timeout_s, left_until(fetch.ends_at, connection.name))

    def _connect(self, fetch: _Fetch) -> Connection[PeerReply]:
        peer = fetch.peer
        name = f"peer {peer.node} at {peer.host}:{peer.port}"
        ends_at = min(fetch.ends_at, time.monotonic() + self._timeout_s)
        sock = connect_tcp(peer.host, peer.port, timeout_s=left_until(ends_at, name))
        connection = Connection(sock, PEER_REPLIES, name=name)
        introduce(
            connection,
            secret=self._secret,
            asking=self._node,
            serving=peer.node,
            epoch=peer.epoch,
            ends_at=ends_at,
        )
        return connection

    def _borrow(self, peer: PeerAddress) -> Connection[PeerReply] | None:
        """One that is kept, or None if there is none. Errors: _RestingError."""
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
        return None

    def _give_back(self, peer: PeerAddress, connection: Connection[PeerReply]) -> None:
        with self._lock:
            self._resting.pop(peer, None)
            idle = self._idle.setdefault(peer, [])
            if len(idle) < IDLE_CONNECTIONS_MAX and not self._closed:
                idle.append(connection)
                return
        connection.close()

    def _rest(self, peer: PeerAddress) -> None:
        with self._lock:
            self._resting[peer] = self._clock.now() + REST_S
            for connection in self._idle.pop(peer, []):
                connection.close()

    def _warn(self, peer: PeerAddress, reason: str, error: TieredError) -> None:
        now = self._clock.now()
        with self._lock:
            warned = self._warned.get((peer, reason))
            if warned is not None and now < warned.at + WARN_AGAIN_S:
                warned.n_since += 1
                return
            n_since = 0 if warned is None else warned.n_since
            self._warned[peer, reason] = _Warned(now)
        _log.warning("peer fetch failed", peer=peer.node, reason=reason, error=str(error), unsaid_before=n_since)

    def _count(self, fetch: _Fetch, reason: str, took_s: float) -> None:
        n_missing = sum(checksum is None for checksum in fetch.checksums)
        with self._lock:
            self._blocks += len(fetch.checksums) - n_missing
            self._received_bytes += fetch.received_bytes
            self._took.note(took_s)
            if n_missing:
                self._misses[reason] += n_missing


def _reason_of(error: TieredError) -> str:
    """One of a small fixed set, fit for a metric label."""
    if isinstance(error, IntegrityError | PeerRefused):
        return error.reason
    if isinstance(error, VersionMismatch):
        return "version"
    return "protocol" if isinstance(error, ProtocolError) else "unavailable"


def _is_quiet(connection: Connection[PeerReply]) -> bool:
    """Whether an idle connection may be used again: not when the peer has closed it, or says what nobody asked."""
    try:
        connection.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
