"""The peer server's own edges, in this process: what real workers cannot be made to show."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

import worker.peer_server
from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt, right_bytes
from tests.support.worker_process import until
from tiered.errors import ConfigError, ProtocolError, TierUnavailable
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import PeerAddress
from tiered.pool.pool import BlockPool
from tiered.tiers.peer import PeerTier
from tiered.types import NO_EPOCH, BlockHash, BlockId, Epoch, Happening, LeaseId, Told
from tiered.wire.auth import Handshake, Side, new_nonce, prove
from tiered.wire.connection import Connection, connect_tcp
from tiered.wire.framing import PEER_REPLIES, PREFIX, FrameReader
from tiered.wire.handshake import PeerRefused, introduce
from tiered.wire.messages import (
    FRAME_BYTES_MAX,
    WIRE_VERSION,
    Challenge,
    Explain,
    Explained,
    Failure,
    Fetch,
    Holding,
    PeerReply,
    Proof,
    Recent,
    Welcome,
)
from worker.hot_tier import Lent
from worker.peer_server import REQUEST_BYTES_MAX, PeerServer
from worker.peer_slots import PROVEN_MAX

N = 4
HASHES = hashes_of(prompt(1, N))
ROOT = scope_id(SCOPE, label=tenant_label(TENANT))


class Lending:
    """A pool that holds HASHES, in order."""

    def __init__(self) -> None:
        self.lent = 0
        self._pool = BlockPool(LAYOUT, N)
        for index, block_hash in enumerate(HASHES):
            self._pool.host_view(BlockId(index))[:] = right_bytes(block_hash, LAYOUT.block_bytes)

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        self.lent += 1
        return Lent(LeaseId(1), tuple((index, BlockId(HASHES.index(h)), None) for index, h in enumerate(hashes)))

    def take_back(self, lent: Lent) -> None:
        self.lent -= 1

    def epoch(self) -> int:
        return 3

    def pool(self) -> BlockPool | None:
        return self._pool

    def explain(self, request: Explain | Recent) -> Explained:
        if isinstance(request, Recent):
            raise ProtocolError("it makes no sense")
        return Explained((Told(7, 1.5, Happening("stored", HASHES[0], "acme")),), 7, 0)


@contextmanager
def serving() -> Iterator[tuple[PeerServer, Lending, PeerTier, PeerAddress]]:
    lending = Lending()
    server = PeerServer("127.0.0.1", 0, lending, node="w1", secrets=("s",), timeout_s=5.0)
    try:
        with closing(PeerTier("w2", "s", timeout_s=5.0)) as tier:
            yield server, lending, tier, PeerAddress("w1", Epoch(3), "127.0.0.1", server.port)
    finally:
        server.stop()


def fetch(tier: PeerTier, address: PeerAddress) -> list[bytes | None]:
    outs = [memoryview(bytearray(LAYOUT.block_bytes)) for _ in HASHES]
    return tier.fetch(address, HASHES, outs, scope_id=ROOT)


class Listener:
    """A listener that for a while has no descriptor left for another connection."""

    def __init__(self, inner: socket.socket, n_failures: int) -> None:
        self._inner = inner
        self.n_failures = n_failures

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.n_failures:
            self.n_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_a_want_of_descriptors_passes() -> None:
    with serving() as (server, _, tier, address):
        listener = Listener(server._listener, 2)
        server._listener = listener  # type: ignore[assignment]
        server.start()
        assert None not in fetch(tier, address)
        assert listener.n_failures == 0


def test_a_want_of_threads_passes_and_costs_that_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    start, n_failures = threading.Thread.start, 1

    def start_late(thread: threading.Thread) -> None:
        nonlocal n_failures
        if thread.name.startswith("peer-127") and n_failures:
            n_failures -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    with serving() as (server, _, tier, address):
        server.start()
        with closing(opened(server.port)) as connection, pytest.raises(TierUnavailable):
            connection.receive(timeout_s=5.0)
        assert n_failures == 0
        assert server._slots._open == set()
        until(lambda: server.counters().refused["busy"] == 1, "counted")
        assert None not in fetch(tier, address)


def test_it_listens_on_ipv6_too_and_then_on_every_address_of_either_kind() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    for host, reached_at in (("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])):
        server = PeerServer(host, 0, Lending(), node="w1", secrets=("s",), timeout_s=5.0)
        server.start()
        try:
            for at in reached_at:
                with closing(PeerTier("w2", "s", timeout_s=5.0)) as tier:
                    assert None not in fetch(tier, PeerAddress("w1", Epoch(3), at, server.port)), (host, at)
        finally:
            server.stop()


def test_where_it_cannot_listen_it_says_which_setting_and_why() -> None:
    def refusal(host: str, port: int) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            PeerServer(host, port, Lending(), node="w1", secrets=("s",), timeout_s=5.0)
        return caught.value

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = refusal("127.0.0.1", port)
    elsewhere, nowhere = refusal("192.0.2.1", 0), refusal("." * 3, 0)
    assert (in_use.field, elsewhere.field, nowhere.field) == ("node.peer_port", "node.peer_host", "node.peer_host")
    assert str(in_use) == (
        f"node.peer_port: cannot listen on 127.0.0.1:{port}: Address already in use; stop what listens there, or "
        "choose a free port, or 0 for any"
    )
    assert str(elsewhere) == (
        "node.peer_host: cannot listen on 192.0.2.1:0: Cannot assign requested address; "
        "use an address of this machine"
    )


def test_no_block_is_sent_after_the_lease_it_was_lent_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.peer_server, "STREAM_S", 0.0)
    with serving() as (server, lending, tier, address):
        server.start()
        started = time.monotonic()
        assert fetch(tier, address) == [None] * N
        assert time.monotonic() - started < 4.0
        until(lambda: lending.lent == 0, "what was lent is taken back")
        assert server.counters().sent_blocks == 0


def test_counters_are_a_snapshot() -> None:
    with serving() as (server, lending, tier, address):
        server.start()
        before, before_here = server.counters(), tier.counters()
        assert None not in fetch(tier, address)
        until(lambda: server.counters().sent_blocks == N, "counted")
        assert (before.sent_blocks, before_here.blocks, tier.counters().blocks) == (0, 0, N)
        server.stop()
        assert fetch(tier, address) == [None] * N
        assert tier.counters().misses == {"unavailable": N}
        assert fetch(tier, address) == [None] * N  # asked again at once, the peer is left alone for a while
        assert tier.counters().misses == {"unavailable": N, "resting": N}
        assert before_here.misses == {}
        assert lending.lent == 0


def opened(port: int) -> Connection[PeerReply]:
    return Connection(connect_tcp("127.0.0.1", port, timeout_s=5.0), PEER_REPLIES, name="coordinator")


def proven(connection: Connection[PeerReply], secret: str) -> None:
    ends_at = time.monotonic() + 5.0
    introduce(connection, secret=secret, asking="coordinator", serving="w1", epoch=3, ends_at=ends_at)


def test_who_knows_the_secret_may_ask_why_and_who_does_not_gets_no_word() -> None:
    with serving() as (server, *_):
        server.start()
        with closing(opened(server.port)) as connection:
            proven(connection, "s")
            for _ in range(2):  # one connection answers many questions
                told = connection.call(Explain(HASHES[0]), timeout_s=5.0)
                assert isinstance(told, Explained)
                assert told.events[0].happening == Happening("stored", HASHES[0], "acme")
        with closing(opened(server.port)) as connection, pytest.raises(PeerRefused):
            proven(connection, "wrong")
        with closing(opened(server.port)) as connection:
            assert isinstance(connection.call(Explain(HASHES[0]), timeout_s=5.0), Challenge)
            with pytest.raises(TierUnavailable):
                connection.receive(timeout_s=5.0)


def test_a_question_that_makes_no_sense_ends_the_connection_alone() -> None:
    with serving() as (server, _, tier, address):
        server.start()
        with closing(opened(server.port)) as connection:
            proven(connection, "s")
            connection.send(Recent(0, 0), timeout_s=5.0)
            with pytest.raises(TierUnavailable):
                connection.receive(timeout_s=5.0)
        assert None not in fetch(tier, address)


@pytest.mark.parametrize("secret", ["wrong", "", "s\0"])
def test_a_wrong_secret_is_refused_and_counted_on_both_sides(secret: str) -> None:
    with serving() as (server, lending, _, address), closing(PeerTier("w2", secret, timeout_s=5.0)) as tier:
        server.start()
        assert fetch(tier, address) == [None] * N
        assert tier.counters().misses == {"secret": N}
        until(lambda: server.counters().refused["secret"] == 1, "counted")
        assert sum(server.counters().refused.values()) == 1
        assert (server.counters().sent_blocks, lending.lent) == (0, 0)


def test_either_of_two_secrets_is_answered_by_a_proof_of_the_same() -> None:
    server = PeerServer("127.0.0.1", 0, Lending(), node="w1", secrets=("new", "old"), timeout_s=5.0)
    address = PeerAddress("w1", Epoch(3), "127.0.0.1", server.port)
    server.start()
    try:
        for secret, n_good in (("old", N), ("new", N), ("newold", 0), ("", 0)):
            with closing(PeerTier("w2", secret, timeout_s=5.0)) as tier:
                assert sum(checksum is not None for checksum in fetch(tier, address)) == n_good, secret
        assert server.counters().refused["secret"] == 2
    finally:
        server.stop()


def test_who_speaks_another_version_is_told_ours_and_counted() -> None:
    with serving() as (server, *_):
        server.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as sock:
            sock.sendall(PREFIX.pack(10, WIRE_VERSION + 1) + bytes(9))
            said = b"".join(iter(lambda: sock.recv(4096), b""))
        challenge, parting = FrameReader(PEER_REPLIES).feed(said)
        assert isinstance(challenge, Challenge)
        assert isinstance(parting, Failure)
        assert parting.kind == "version"
        assert f"wire version {WIRE_VERSION + 1}, this side {WIRE_VERSION}" in parting.message
        until(lambda: server.counters().refused["version"] == 1, "counted")
        assert sum(server.counters().refused.values()) == 1


def test_many_wrong_secrets_are_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as (server, *_):
        server.start()
        for _ in range(5):
            with closing(opened(server.port)) as connection, pytest.raises(PeerRefused):
                proven(connection, "wrong")
        until(lambda: server.counters().refused["secret"] == 5, "counted")
    assert sum("peer refused" in record.getMessage() for record in caplog.records) == 1


def overheard(port: int) -> tuple[Challenge, Proof]:
    """An honest handshake, seen from the middle."""
    with closing(opened(port)) as connection:
        challenge = connection.receive(timeout_s=5.0)
        assert isinstance(challenge, Challenge)
        handshake = Handshake("w2", "w1", asking_nonce=new_nonce(), serving_nonce=challenge.nonce)
        proof = Proof("w2", prove("s", handshake, Side.ASKING), handshake.asking_nonce)
        assert isinstance(connection.call(proof, timeout_s=5.0), Welcome)
        return challenge, proof


def test_a_proof_that_was_overheard_opens_nothing() -> None:
    with serving() as (server, *_):
        server.start()
        challenge, proof = overheard(server.port)
        with closing(opened(server.port)) as connection:
            again = connection.receive(timeout_s=5.0)
            assert isinstance(again, Challenge)
            assert again.nonce != challenge.nonce
            assert isinstance(connection.call(proof, timeout_s=5.0), Failure)
            with pytest.raises(TierUnavailable):
                connection.receive(timeout_s=5.0)


def test_the_servers_own_words_sent_back_open_nothing() -> None:
    """Reflection: its challenge is put to another node of the cluster, or to itself, and the answer handed in."""
    with serving() as (server, *_):
        server.start()
        with closing(opened(server.port)) as victim:
            challenge = victim.receive(timeout_s=5.0)
            assert isinstance(challenge, Challenge)
            # What w1 would say as the asker of a node that shows it w1's own nonce under another name.
            handshake = Handshake("w1", "w9", asking_nonce=new_nonce(), serving_nonce=challenge.nonce)
            stolen = Proof("w1", prove("s", handshake, Side.ASKING), handshake.asking_nonce)
            assert isinstance(victim.call(stolen, timeout_s=5.0), Failure)
        with closing(opened(server.port)) as victim:
            challenge = victim.receive(timeout_s=5.0)
            assert isinstance(challenge, Challenge)
            # What w1 proves as the server of another connection, on which its nonce was played back to it.
            handshake = Handshake("w2", "w1", asking_nonce=challenge.nonce, serving_nonce=challenge.nonce)
            stolen = Proof("w2", prove("s", handshake, Side.SERVING), challenge.nonce)
            assert isinstance(victim.call(stolen, timeout_s=5.0), Failure)
        until(lambda: server.counters().refused["secret"] == 2, "counted")


def test_an_epoch_of_another_life_is_refused_and_counted() -> None:
    """The asker does not even prove itself to a life it does not mean; one that does is told with each request."""
    with serving() as (server, lending, tier, address):
        server.start()
        for epoch in (2, 4):
            assert fetch(tier, PeerAddress("w1", Epoch(epoch), "127.0.0.1", address.port)) == [None] * N
        assert tier.counters().misses == {"epoch": 2 * N}
        with closing(opened(server.port)) as connection:
            proven(connection, "s")
            request = Fetch(epoch=2, scope_id=ROOT, hashes=b"".join(HASHES))
            reply = connection.call(request, timeout_s=5.0)
            assert isinstance(reply, Failure)
            assert reply.kind == "epoch"
            good = connection.call(Fetch(epoch=3, scope_id=ROOT, hashes=b""), timeout_s=5.0)
            assert good == Holding((), LAYOUT.block_bytes)
        assert server.counters().refused["epoch"] == 1
        until(lambda: lending.lent == 0, "taken back")


def test_a_fenced_node_says_that_it_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (server, lending, tier, address):
        server.start()
        assert None not in fetch(tier, address)
        monkeypatch.setattr(lending, "epoch", lambda: NO_EPOCH)
        fenced = pytest.raises(PeerRefused, match="the node is fenced: its lease has lapsed")
        with closing(opened(server.port)) as connection, fenced as fresh:
            proven(connection, "s")
        assert fresh.value.reason == "epoch"
        kept = tier._borrow(address)
        assert kept is not None
        reply = kept.call(Fetch(epoch=3, scope_id=ROOT, hashes=HASHES[0]), timeout_s=5.0)
        kept.close()
        assert reply == Failure("epoch", "the node is fenced: its lease has lapsed")


def test_an_address_that_serves_another_node_now_gives_nothing() -> None:
    with serving() as (server, _, tier, address):
        server.start()
        assert fetch(tier, PeerAddress("w7", Epoch(3), "127.0.0.1", address.port)) == [None] * N
        assert tier.counters().misses == {"node": N}


def test_a_handshake_that_is_never_finished_ends_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.peer_server, "HANDSHAKE_S", 0.2)
    with serving() as (server, _, tier, address):
        server.start()
        with closing(opened(server.port)) as silent, closing(opened(server.port)) as slow:
            began = time.monotonic()
            for connection in (silent, slow):
                connection.receive(timeout_s=5.0)
            for byte in PREFIX.pack(200, WIRE_VERSION):
                slow.sock.sendall(bytes([byte]))
            for connection in (silent, slow):
                with pytest.raises(TierUnavailable):
                    connection.receive(timeout_s=5.0)
            assert time.monotonic() - began < 3.0
        until(lambda: server.counters().refused["unproven"] == 2, "counted")
        assert None not in fetch(tier, address)


def test_half_a_request_is_waited_for_no_longer_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (server, _, tier, address):
        server._timeout_s = 0.2
        server.start()
        with closing(opened(server.port)) as connection:
            proven(connection, "s")
            connection.sock.sendall(PREFIX.pack(1000, WIRE_VERSION) + b"\x94")
            with pytest.raises(TierUnavailable):
                connection.receive(timeout_s=5.0)
        assert None not in fetch(tier, address)


@pytest.mark.parametrize("length", [REQUEST_BYTES_MAX + 2, FRAME_BYTES_MAX])
def test_a_request_longer_than_any_honest_one_is_refused_before_it_comes(length: int) -> None:
    with serving() as (server, *_):
        server.start()
        with closing(opened(server.port)) as connection:
            proven(connection, "s")
            connection.sock.sendall(PREFIX.pack(length, WIRE_VERSION))
            with pytest.raises(TierUnavailable):
                connection.receive(timeout_s=5.0)
        until(lambda: server.counters().refused["protocol"] == 1, "counted")


def test_peers_that_keep_connections_do_not_shut_out_the_next() -> None:
    """As many as a large cluster keeps: each answered once, then idle."""
    with serving() as (server, _, tier, address), ExitStack() as stack:
        server.start()
        for _ in range(PROVEN_MAX + 5):
            connection = stack.enter_context(closing(opened(server.port)))
            proven(connection, "s")
            until(lambda: len(server._slots._quiet) > 0, "it is known to be idle")
        assert None not in fetch(tier, address)
        assert server.counters().refused["busy"] == 0
