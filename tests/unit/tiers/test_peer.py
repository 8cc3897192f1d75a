"""PeerTier against a peer that is played by hand: what a bad peer says is a miss, never a block."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.redis_server import block_hash
from tiered.clock import ManualClock
from tiered.codec.frame import CODEC_NONE, HEADER_BYTES, BlockHeader, checksum_of, encode_header
from tiered.errors import TieredError
from tiered.jobs import PeerAddress
from tiered.tiers.peer import REST_S, WARN_AGAIN_S, PeerTier
from tiered.wire.auth import NONCE_BYTES, Handshake, Side, new_nonce, prove
from tiered.wire.connection import Connection
from tiered.wire.framing import PEER_REQUESTS, PREFIX, encode
from tiered.wire.messages import (
    WIRE_VERSION,
    Challenge,
    Failure,
    Holding,
    Message,
    PeerRequest,
    Proof,
    Welcome,
)

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
    """Welcomes whoever comes and answers each fetch with the next script: messages, raw bytes, None to hang up.

    At once for each connection. challenge, welcome: said instead of the right words.
    """

    def __init__(self) -> None:
        self.scripts: list[Sequence[Message | bytes | None]] = []
        self.n_connections = 0
        self.secret = "secret"
        self.challenge: Message | bytes | None = None
        self.welcome: Message | None = None
        self.proofs: list[Proof] = []
        self.crawl_s: float | None = None
        """Between one byte of an answer and the next, where it crawls."""
        self._over = threading.Event()
        self._talks: list[threading.Thread] = []
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
            self._talks.append(threading.Thread(target=self._talk, args=(sock,)))
            self._talks[-1].start()

    def _talk(self, sock: socket.socket) -> None:
        connection: Connection[PeerRequest] = Connection(sock, PEER_REQUESTS, name="asker")
        try:
            self._answer(connection)
        except (TieredError, OSError):
            return  # the tier has hung up
        finally:
            connection.close()

    def _answer(self, connection: Connection[PeerRequest]) -> None:
        nonce = new_nonce()
        challenge = self.challenge or Challenge("other", 1, nonce)
        self._say(connection.sock, challenge if isinstance(challenge, bytes) else encode(challenge))
        proof = connection.receive(timeout_s=10)
        assert isinstance(proof, Proof)
        self.proofs.append(proof)
        handshake = Handshake(proof.node, "other", asking_nonce=proof.nonce, serving_nonce=nonce)
        connection.send(self.welcome or Welcome(prove(self.secret, handshake, Side.SERVING)), timeout_s=10)
        while connection.receive(timeout_s=10) and self.scripts:
            for part in self.scripts.pop(0):
                if part is None:
                    return
                self._say(connection.sock, part if isinstance(part, bytes) else encode(part))

    def _say(self, sock: socket.socket, data: bytes) -> None:
        if self.crawl_s is None:
            sock.sendall(data)
            return
        for byte in data:
            sock.sendall(bytes([byte]))
            if self._over.wait(self.crawl_s):
                return

    def stop(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in [self._thread, *self._talks]:
            thread.join(10)
            assert not thread.is_alive()


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
        Failure("a kind that a later version may know", "no"),
        Welcome(b"d" * 32),
        b"\xff" * 40,
    ],
)
def test_an_answer_that_makes_no_sense_is_a_miss_with_its_reason(
    peer: HandPeer, tier: PeerTier, fetch: Fetch, answer: Message | bytes
) -> None:
    peer.scripts = [[answer]]
    assert fetch()[0] == [None, None, None]
    [(reason, n)] = tier.counters().misses.items()
    expected = {Failure: ("epoch", "refused"), Welcome: ("protocol",), bytes: ("protocol",)}
    assert n == 3
    assert reason in expected.get(type(answer), ("length", "protocol"))
    assert tier._idle == {}


def test_a_peer_that_failed_rests_and_is_asked_again_later(
    peer: HandPeer, tier: PeerTier, clock: ManualClock, fetch: Fetch
) -> None:
    peer.scripts = [[Failure("epoch", "it has ended")], [Holding((0,), N_BYTES), value(0)]]
    fetch()
    assert fetch()[0] == [None, None, None]
    assert peer.n_connections == 1
    clock.advance(REST_S)
    assert fetch()[0][0] is not None
    assert dict(tier.counters().misses) == {"epoch": 3, "resting": 3, "absent": 2}
    assert tier.counters().blocks == 1


def test_a_connection_is_used_again(peer: HandPeer, fetch: Fetch) -> None:
    peer.scripts = [[Holding((), 0)]] * 3
    for _ in range(3):
        assert fetch()[0] == [None, None, None]
    assert peer.n_connections == 1


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (Failure("secret", "the cluster secret does not match"), "secret"),
        (Failure("busy", "all places are taken"), "busy"),
        (Failure("x" * 100, "?"), "refused"),
        (Welcome(b""), "secret"),
        (Welcome(bytes(32)), "secret"),
        (Holding((), 0), "protocol"),
    ],
)
def test_a_peer_that_does_not_welcome_us_gives_nothing_and_is_counted(
    peer: HandPeer, tier: PeerTier, fetch: Fetch, welcome: Message, reason: str
) -> None:
    peer.welcome = welcome
    assert fetch()[0] == [None, None, None]
    assert dict(tier.counters().misses) == {reason: 3}


def test_a_peer_that_does_not_know_the_secret_is_not_asked_for_a_block(
    peer: HandPeer, tier: PeerTier, fetch: Fetch
) -> None:
    """Whoever may choose header and bytes may choose a checksum that fits them."""
    peer.secret = "another"
    peer.scripts = [[Holding((0,), N_BYTES), value(0)]]
    assert fetch()[0] == [None, None, None]
    assert dict(tier.counters().misses) == {"secret": 3}
    assert len(peer.scripts) == 1


def test_our_own_proof_sent_back_is_no_welcome(peer: HandPeer, tier: PeerTier, fetch: Fetch) -> None:
    peer.scripts = [[Holding((), 0)]]
    fetch()
    peer.welcome = Welcome(peer.proofs[0].digest)
    tier.forget(frozenset())
    assert fetch()[0] == [None, None, None]
    assert tier.counters().misses["secret"] == 3


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (Challenge("another", 1, bytes(NONCE_BYTES)), "node"),
        (Challenge("other", 2, bytes(NONCE_BYTES)), "epoch"),
        (Challenge("other", 0, bytes(NONCE_BYTES)), "epoch"),
        (Challenge("other", 1, b""), "protocol"),
        (Challenge("other", 1, bytes(NONCE_BYTES + 1)), "protocol"),
        (Challenge("other", 1, bytes(1 << 16)), "protocol"),
        (Welcome(b""), "protocol"),
        (Failure("busy", "all places are taken"), "busy"),
        (PREFIX.pack(100, WIRE_VERSION + 1) + bytes(99), "version"),
    ],
)
def test_whoever_is_not_the_life_that_is_meant_gets_no_proof_of_ours(
    peer: HandPeer, tier: PeerTier, fetch: Fetch, challenge: Message | bytes, reason: str
) -> None:
    peer.challenge = challenge
    assert fetch()[0] == [None, None, None]
    assert dict(tier.counters().misses) == {reason: 3}
    assert peer.proofs == []


@pytest.mark.parametrize("said", [b"", encode(Holding((0, 1, 2), N_BYTES)), value(0)[:100]])
def test_a_peer_that_crawls_byte_by_byte_holds_nobody_beyond_the_time_granted(
    peer: HandPeer, tier: PeerTier, said: bytes
) -> None:
    """Each of its bytes comes well within the deadline of a step."""
    peer.scripts = [[said + value(1) * 3]]
    peer.crawl_s = 0.02
    outs = [memoryview(bytearray(N_BYTES)) for _ in HASHES]
    began = time.monotonic()
    assert tier.fetch(peer.address, HASHES, outs, scope_id=SCOPE, within_s=0.3) == [None] * 3
    assert time.monotonic() - began < 2.0
    assert tier._idle == {}


def test_a_peer_that_never_says_a_word_is_given_up(tier: PeerTier) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PeerAddress("other", 1, "127.0.0.1", silent.getsockname()[1])
        began = time.monotonic()
        outs = [memoryview(bytearray(N_BYTES)) for _ in HASHES]
        assert tier.fetch(address, HASHES, outs, scope_id=SCOPE, within_s=0.2) == [None] * 3
        assert time.monotonic() - began < 2.0
    assert dict(tier.counters().misses) == {"unavailable": 3}


def test_what_had_arrived_when_the_time_was_over_counts(peer: HandPeer, tier: PeerTier) -> None:
    peer.scripts = [[Holding((0, 1, 2), N_BYTES), value(0), value(1)]]
    outs = [memoryview(bytearray(N_BYTES)) for _ in HASHES]
    checksums = tier.fetch(peer.address, HASHES, outs, scope_id=SCOPE, within_s=0.3)
    assert [checksum is not None for checksum in checksums] == [True, True, False]
    assert dict(tier.counters().misses) == {"unavailable": 1}


def test_no_blocks_are_fetched_without_a_word(peer: HandPeer, tier: PeerTier) -> None:
    assert tier.fetch(peer.address, [], [], scope_id=SCOPE) == []
    assert peer.n_connections == 0


def test_a_kept_connection_that_ends_as_it_is_used_costs_no_miss(
    peer: HandPeer, tier: PeerTier, fetch: Fetch
) -> None:
    """The peer may close it in the very moment in which it is asked: it had been quiet when we looked."""
    peer.scripts = [[Holding((0,), N_BYTES), value(0)], [None], [Holding((1,), N_BYTES), value(1)]]
    assert fetch()[0][0] is not None
    assert fetch()[0][1] is not None
    assert peer.n_connections == 2
    assert dict(tier.counters().misses) == {"absent": 4}


def test_several_fetches_run_side_by_side_each_on_its_own_connection_and_both_are_kept(
    peer: HandPeer, tier: PeerTier
) -> None:
    together = threading.Barrier(2, timeout=10)
    peer.scripts = [[Holding((0,), N_BYTES), value(0)]] * 4
    say = peer._say

    def at_once(sock: socket.socket, data: bytes) -> None:
        if len(data) == N_BYTES + HEADER_BYTES:
            together.wait()
        say(sock, data)

    peer._say = at_once  # type: ignore[method-assign]
    got: list[list[bytes | None]] = []

    def run() -> None:
        outs = [memoryview(bytearray(N_BYTES)) for _ in HASHES]
        got.append(tier.fetch(peer.address, HASHES, outs, scope_id=SCOPE))

    for _ in range(2):
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert [checksums[0] is not None for checksums in got] == [True] * 4
    assert peer.n_connections == 2
    assert len(tier._idle[peer.address]) == 2


def test_what_a_fetch_does_is_counted(peer: HandPeer, tier: PeerTier, fetch: Fetch) -> None:
    peer.scripts = [[Holding((0, 1, 2), N_BYTES), value(0), value(1), value(2, body=payload(0))]]
    began = time.monotonic()
    fetch()
    counters = tier.counters()
    assert (counters.blocks, dict(counters.misses), counters.received_bytes) == (2, {"checksum": 1}, 3 * N_BYTES)
    assert counters.took.n == 1
    assert 0 < counters.took.sum_s <= time.monotonic() - began


def test_a_peer_that_goes_on_failing_is_told_of_once_in_a_while(
    peer: HandPeer, clock: ManualClock, fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    peer.welcome = Failure("secret", "the cluster secret does not match")
    for _ in range(5):
        fetch()
        clock.advance(REST_S)
    peer.welcome = Failure("busy", "all places are taken")
    fetch()
    clock.advance(WARN_AGAIN_S)
    peer.welcome = Failure("secret", "the cluster secret does not match")
    fetch()
    said = [record.getMessage() for record in caplog.records if "peer fetch failed" in record.getMessage()]
    assert [("secret" in line, "4" in line.rpartition("unsaid_before")[2]) for line in said] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_nothing_is_kept_once_the_tier_is_closed(peer: HandPeer, tier: PeerTier, fetch: Fetch) -> None:
    peer.scripts = [[Holding((), 0)]]
    tier.close()
    fetch()
    assert tier._idle[peer.address] == []


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
