"""PeerTier against a peer that is played by hand: what a bad peer says is a miss, never a block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.redis_server import block_hash
from tiered.clock import ManualClock
from tiered.codec.frame import CODEC_NONE, BlockHeader, checksum_of, encode_header
from tiered.jobs import PeerAddress
from tiered.tiers.peer import REST_S, PeerTier
from tiered.wire.auth import NONCE_BYTES
from tiered.wire.framing import encode
from tiered.wire.messages import Challenge, Failure, Holding, Message, Welcome

N_BYTES = 256
SCOPE = b"s" * 32
HASHES = [block_hash(n) for n in range(3)]


def payload(n: int) -> bytes:
    return bytes([n + 1]) * N_BYTES


def value(n: int, *, as_hash: int | None = None, body: bytes | None = None, scope: bytes = SCOPE) -> bytes:
    """Block n as a peer sends it; the changes make it one that must be refused."""
    header = BlockHeader(
        block_hash=HASHES[n if as_hash is None else as_hash],
        scope_id=scope,
        codec=CODEC_NONE,
        raw_bytes=N_BYTES,
        stored_bytes=N_BYTES,
        checksum=checksum_of(memoryview(payload(n))),
    )
    return encode_header(header) + (payload(n) if body is None else body)


class HandPeer:
    """Welcomes whoever comes and answers each fetch with the next script: messages, raw bytes, None to hang up."""

    def __init__(self) -> None:
        self.scripts: list[Sequence[Message | bytes | None]] = []
        self.n_connections = 0
        self.welcome: Message = Welcome()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = PeerAddress("other", 1, "127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            with sock:
                try:
                    self._talk(sock)
                except OSError:
                    continue

    def _talk(self, sock: socket.socket) -> None:
        sock.settimeout(10)
        sock.sendall(encode(Challenge("other", 1, b"n" * NONCE_BYTES)))
        sock.recv(1 << 16)
        sock.sendall(encode(self.welcome))
        while sock.recv(1 << 16) and self.scripts:
            for part in self.scripts.pop(0):
                if part is None:
                    return
                sock.sendall(part if isinstance(part, bytes) else encode(part))

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def peer() -> Iterator[HandPeer]:
    peer = HandPeer()
    yield peer
    peer.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tier(clock: ManualClock, peer: HandPeer) -> Iterator[PeerTier]:
    """Closed before the peer stops, so that nobody waits for it."""
    tier = PeerTier("me", "secret", timeout_s=5.0, clock=clock)
    yield tier
    tier.close()


Fetch = Callable[[], tuple[list[bytes | None], list[bytes]]]


@pytest.fixture
def fetch(tier: PeerTier, peer: HandPeer) -> Fetch:
    def run() -> tuple[list[bytes | None], list[bytes]]:
        outs = [bytearray(N_BYTES) for _ in HASHES]
        checksums = tier.fetch(peer.address, HASHES, [memoryview(out) for out in outs], scope_id=SCOPE)
        return checksums, [bytes(out) for out in outs]

    return run


def test_what_a_peer_holds_arrives_verified_in_its_place(peer: HandPeer, fetch: Fetch) -> None:
    peer.scripts = [[Holding((0, 2), N_BYTES), value(0), value(2)]]
    checksums, outs = fetch()
    assert checksums == [checksum_of(memoryview(payload(0))), None, checksum_of(memoryview(payload(2)))]
    assert (outs[0], outs[2]) == (payload(0), payload(2))


@pytest.mark.parametrize(
    "bad",
    [
        value(1, body=payload(0)),
        value(1, as_hash=0),
        value(1, scope=b"x" * 32),
        b"\0" * len(value(1)),
        value(1)[:-1],
        b"",
    ],
    ids=["checksum", "hash", "scope", "header", "short", "gone"],
)
def test_a_bad_block_is_a_miss_with_all_after_it_and_the_connection_ends(
    peer: HandPeer, tier: PeerTier, fetch: Fetch, bad: bytes
) -> None:
    peer.scripts = [[Holding((0, 1, 2), N_BYTES), value(0), bad, value(2) if len(bad) == len(value(1)) else None]]
    checksums, _ = fetch()
    assert [checksum is not None for checksum in checksums] == [True, False, False]
    assert tier._idle == {}


def test_a_block_sent_twice_counts_only_if_its_last_bytes_are_good(peer: HandPeer, fetch: Fetch) -> None:
    peer.scripts = [[Holding((0, 0), N_BYTES), value(0), value(0, body=payload(1))]]
    checksums, _ = fetch()
    assert checksums == [None, None, None]


@pytest.mark.parametrize(
    "answer",
    [
        Holding((0,), N_BYTES + 1),
        Holding((0,), 0),
        Holding((3,), N_BYTES),
        Holding((-1,), N_BYTES),
        Failure("epoch", "it has ended"),
        Welcome(),
        b"\xff" * 40,
    ],
)
def test_an_answer_that_makes_no_sense_is_a_miss(peer: HandPeer, fetch: Fetch, answer: Message | bytes) -> None:
    peer.scripts = [[answer]]
    assert fetch()[0] == [None, None, None]


def test_a_peer_that_failed_rests_and_is_asked_again_later(
    peer: HandPeer, tier: PeerTier, clock: ManualClock, fetch: Fetch
) -> None:
    peer.scripts = [[Failure("epoch", "it has ended")], [Holding((0,), N_BYTES), value(0)]]
    fetch()
    assert fetch()[0] == [None, None, None]
    assert peer.n_connections == 1
    clock.advance(REST_S)
    assert fetch()[0][0] is not None
    assert dict(tier.counters().misses) == {"unavailable": 3, "resting": 3, "absent": 2}
    assert tier.counters().blocks == 1


def test_a_connection_is_used_again(peer: HandPeer, fetch: Fetch) -> None:
    peer.scripts = [[Holding((), 0)]] * 3
    for _ in range(3):
        assert fetch()[0] == [None, None, None]
    assert peer.n_connections == 1


def test_a_peer_that_does_not_welcome_us_gives_nothing(peer: HandPeer, fetch: Fetch) -> None:
    peer.welcome = Failure("secret", "the cluster secret does not match")
    assert fetch()[0] == [None, None, None]


def test_a_peer_that_is_not_there_is_a_miss(tier: PeerTier) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nobody = PeerAddress("nobody", 1, "127.0.0.1", port)
    assert tier.fetch(nobody, HASHES, [memoryview(bytearray(N_BYTES))] * 3, scope_id=SCOPE) == [None] * 3


def test_what_is_kept_for_lives_that_ended_is_closed(peer: HandPeer, tier: PeerTier, fetch: Fetch) -> None:
    peer.scripts = [[Holding((), 0)]]
    fetch()
    assert list(tier._idle) == [peer.address]
    tier.forget(frozenset())
    assert tier._idle == {}
