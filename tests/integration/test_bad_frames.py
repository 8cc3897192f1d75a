"""Both sockets of a worker under fire: connections are dropped within a bound, memory stays bounded, the process
lives, and serves honest engines and peers meanwhile."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.content import TENANT, hashes_of, large_scope, prompt, right_bytes, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import WorkerProcess, until
from tiered.errors import TieredError, TierUnavailable
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import PeerAddress
from tiered.tiers.peer import PeerTier
from tiered.types import Source
from tiered.wire.connection import connect_unix
from tiered.wire.framing import PREFIX, encode
from tiered.wire.messages import (
    FRAME_BYTES_MAX,
    WIRE_VERSION,
    Attach,
    Commit,
    Fetch,
    Load,
    Match,
    Message,
    Proof,
    Release,
    Sharing,
)
from worker.engine_frames import FIRST_S
from worker.local_server import SILENT_MAX
from worker.peer_server import HANDSHAKE_S
from worker.peer_slots import STRANGERS_MAX

SCOPE = large_scope(64)
BLOCK = SCOPE.layout.block_bytes
N = 4
ROOT = scope_id(SCOPE, label=tenant_label(TENANT))
HONEST_S = 5.0
"""An honest engine or peer is served within this time whatever goes on beside it, on a busy machine too."""

DOORS = ("engine", "peer")
every_door = pytest.mark.parametrize("door", DOORS)


@pytest.fixture
def one(cluster: SmallCluster) -> SmallCluster:
    """w1 holds prompt(1)."""
    cluster.start("w1", hot=str(32 * BLOCK), settings=["pool.demote=never", "cluster.secret=s3"])
    with cluster.attach("w1", scope=SCOPE) as client:
        assert save(client, prompt(1, N), scope=SCOPE).n_stored == N
    return cluster


def knock(cluster: SmallCluster, door: str) -> socket.socket:
    if door == "peer":
        return socket.create_connection(("127.0.0.1", cluster.node("w1").info.peer_port), timeout=20)
    sock = connect_unix(cluster.socket_path("w1"), timeout_s=20)
    sock.settimeout(20)
    return sock


def ends(sock: socket.socket) -> bool:
    """Whether the other side closes within the socket's timeout, whatever it says before."""
    with suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


def throw(sock: socket.socket, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)


class Honest:
    """Engines and peers that come all the while; each has to be served in time, with the right bytes.

    In a flood of strangers from the same address one may be shut out as they are; the next attempt is another's.
    """

    def __init__(self, cluster: SmallCluster) -> None:
        self._cluster = cluster
        self._node = cluster.node("w1")
        self._over = threading.Event()
        self.errors: list[BaseException] = []
        self.slowest_s = 0.0
        self.n_rounds = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._timed(self._as_engine)
                self._timed(self._as_peer)
                self.n_rounds += 1
        except BaseException as error:
            self.errors.append(error)

    def _timed(self, is_served: Callable[[], bool]) -> None:
        began = time.monotonic()
        until(is_served, f"{is_served.__name__}", within_s=HONEST_S)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _as_engine(self) -> bool:
        try:
            with self._cluster.attach("w1", scope=SCOPE) as client:
                return take(client, prompt(1, N), scope=SCOPE) == Counter({Source.HOT: N})
        except TieredError:
            return False

    def _as_peer(self) -> bool:
        address = PeerAddress("w1", self._node.epoch, "127.0.0.1", self._node.info.peer_port)
        hashes = hashes_of(prompt(1, N), scope=SCOPE)
        with closing(PeerTier("w2", "s3", timeout_s=HONEST_S)) as tier:
            outs = [memoryview(bytearray(BLOCK)) for _ in hashes]
            checksums = tier.fetch(address, hashes, outs, scope_id=ROOT)
        for checksum, out, block_hash in zip(checksums, outs, hashes, strict=True):
            assert checksum is None or out == right_bytes(block_hash, BLOCK)
        return None not in checksums

    def __enter__(self) -> Honest:
        self._thread.start()
        until(lambda: self.n_rounds > 0 or self.errors, "they have begun")
        return self

    def __exit__(self, *_: object) -> None:
        n_before = self.n_rounds
        until(lambda: self.n_rounds > n_before + 1 or self.errors, "they are served still", within_s=4 * HONEST_S)
        self._over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        assert self.errors == []
        assert self.slowest_s < HONEST_S


@contextmanager
def unharmed(cluster: SmallCluster, *, memory_bytes: int = 64 << 20) -> Iterator[None]:
    """What happens within it leaves the worker alive, serving, hardly larger, and without a stack in its log."""
    worker = cluster.workers["w1"]
    with Honest(cluster):
        before = worker.peak_bytes()
        yield
    assert worker.process.is_alive()
    assert worker.peak_bytes() - before < memory_bytes
    assert "Traceback" not in worker.log


def framed(body: bytes) -> bytes:
    return PREFIX.pack(len(body) + 1, WIRE_VERSION) + body


_ATTACH = Attach(scope=SCOPE, engine="e", pid=1)
_REQUESTS: tuple[Message, ...] = (
    _ATTACH,
    Sharing("acme"),
    Match("acme", ROOT, bytes(64), 32),
    Load(1, 0.1),
    Commit(1, bytes(16)),
    Release(1, 0),
    Proof("w2", bytes(32), bytes(32)),
    Fetch(1, ROOT, bytes(64)),
)


def damaged(rng: random.Random) -> bytes:
    """Something that begins like an honest conversation, or does not."""
    kind = rng.randrange(6)
    good = bytearray(b"".join(encode(rng.choice(_REQUESTS)) for _ in range(rng.randint(1, 4))))
    if kind == 0:
        return rng.randbytes(rng.randint(1, 2_000))
    if kind == 1:
        return bytes(good[: rng.randrange(len(good))])
    if kind == 2:
        for _ in range(rng.randint(1, 4)):
            good[rng.randrange(len(good))] ^= rng.randint(1, 255)
        return bytes(good)
    if kind == 3:
        return PREFIX.pack(rng.choice((0, 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 2**32 - 1)), WIRE_VERSION)
    if kind == 4:
        return framed(rng.choice((b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")) * 50)
    return framed(msgspec.msgpack.encode([rng.choice(_REQUESTS).__class__.__name__, *[rng.choice(_VALUES)] * 5]))


_VALUES = (None, -1, 2**63, 1.5, float("inf"), "", "x" * 500, b"\0" * 31, [], {}, [[[]]], {"a": {"a": {}}})


@every_door
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_thrown_at_it_the_connection_ends_and_nothing_else(
    one: SmallCluster, door: str, seed: int
) -> None:
    rng = random.Random(seed)
    with unharmed(one):
        for _ in range(60):
            with knock(one, door) as sock:
                throw(sock, damaged(rng))
                with suppress(OSError):  # it may have hung up already
                    sock.shutdown(socket.SHUT_WR)
                assert ends(sock)


@every_door
def test_random_bodies_in_whole_frames_end_the_connection_alone(one: SmallCluster, door: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(bodies=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5))
    def attempt(bodies: list[bytes]) -> None:
        with knock(one, door) as sock:
            throw(sock, b"".join(map(framed, bodies)))
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            assert ends(sock)

    with unharmed(one):
        attempt()


BOMBS = {
    "lists": b"\x92\xa5Match" + b"\x91" * 1_000_000,
    "maps": b"\x92\xa6Attach" + b"\x81\xa1a" * 1_000_000,
    "a list of 4 Gi": b"\xdd\xff\xff\xff\xff" + b"\xc0" * 1_000,
    "text of 4 GiB": b"\x92\xa5Match\xdb\xff\xff\xff\xff" + b"x" * 1_000,
    "bytes of 4 GiB": b"\x92\xa5Fetch\xc6\xff\xff\xff\xff" + b"x" * 1_000,
    "an extension": b"\xc9\xff\xff\xff\xff\x01" + b"x" * 1_000,
}


@every_door
@pytest.mark.parametrize("bomb", list(BOMBS))
def test_a_body_that_is_larger_inside_than_outside_is_refused(one: SmallCluster, door: str, bomb: str) -> None:
    with unharmed(one):
        for _ in range(5):
            with knock(one, door) as sock:
                throw(sock, framed(BOMBS[bomb]))
                assert ends(sock)


@every_door
def test_requests_of_the_other_socket_are_not_understood(one: SmallCluster, door: str) -> None:
    foreign = _REQUESTS[6:] if door == "engine" else _REQUESTS[:6]
    with unharmed(one):
        for message in foreign:
            with knock(one, door) as sock:
                throw(sock, encode(message))
                assert ends(sock)


def test_a_length_that_an_engine_announces_costs_memory_only_as_it_comes(one: SmallCluster) -> None:
    with unharmed(one), ExitStack() as stack:
        sockets = [stack.enter_context(knock(one, "engine")) for _ in range(SILENT_MAX)]
        for sock in sockets:
            throw(sock, PREFIX.pack(FRAME_BYTES_MAX, WIRE_VERSION) + bytes(1_000))
        for sock in sockets:
            sock.settimeout(FIRST_S + 10)
            assert ends(sock)


@every_door
def test_bytes_that_come_one_at_a_time_for_ever_are_given_up(one: SmallCluster, door: str) -> None:
    """Strangers that say a little now and then; each byte is welcome, a request never comes of them."""
    within_s = FIRST_S if door == "engine" else HANDSHAKE_S
    with unharmed(one), ExitStack() as stack:
        began = time.monotonic()
        sockets = [stack.enter_context(knock(one, door)) for _ in range(STRANGERS_MAX // 2)]
        slow, pace = framed(b"\x94" + bytes(1_000)), threading.Event()
        alive = set(sockets)
        for byte in slow:
            for sock in list(alive):
                try:
                    sock.send(bytes([byte]))
                except OSError:
                    alive.discard(sock)
            if not alive:
                break
            pace.wait(0.05)
            assert time.monotonic() - began < within_s + 10
        assert not alive


def test_an_attached_engine_that_sends_half_a_request_is_dropped_with_all_it_held(one: SmallCluster) -> None:
    with unharmed(one), knock(one, "engine") as sock:
        sock.settimeout(30)
        throw(sock, encode(_ATTACH))
        assert sock.recv(1 << 16)
        throw(sock, encode(Match("acme", ROOT, b"".join(hashes_of(prompt(1, N), scope=SCOPE)), 64)))
        assert sock.recv(1 << 16)
        engines = one.metrics("w1")[("tiered_worker_engines",)]
        throw(sock, encode(Release(1, 0))[:-1])
        assert ends(sock)
        until(lambda: one.metrics("w1")[("tiered_worker_engines",)] == engines - 1, "it is detached")


def test_an_engine_that_never_reads_its_replies_does_not_hold_up_the_others(one: SmallCluster) -> None:
    with unharmed(one), knock(one, "engine") as sock:
        throw(sock, encode(_ATTACH))
        assert sock.recv(1 << 16)
        sock.settimeout(1.0)
        with pytest.raises(TimeoutError):  # at last it is not read any more either
            sock.sendall(encode(Sharing("acme")) * 1_000_000)


@every_door
def test_thousands_of_connections_that_say_nothing_shut_nobody_out(one: SmallCluster, door: str) -> None:
    with unharmed(one), ExitStack() as stack:
        for _ in range(3_000):
            try:
                stack.enter_context(knock(one, door))
            except (OSError, TierUnavailable):  # the backlog is full for a moment
                continue


def n_descriptors(worker: WorkerProcess) -> int:
    return len(os.listdir(f"/proc/{worker.pid}/fd"))


@every_door
def test_connections_that_come_and_go_at_once_leave_nothing_behind(one: SmallCluster, door: str) -> None:
    worker = one.workers["w1"]
    with unharmed(one):
        n_before = n_descriptors(worker)
        for _ in range(2_000):
            knock(one, door).close()
        until(lambda: n_descriptors(worker) <= n_before + 8, "they are closed here as well")


def test_strangers_at_the_peer_port_hold_no_place_beyond_their_handshake(one: SmallCluster) -> None:
    with unharmed(one), ExitStack() as stack:
        sockets = [stack.enter_context(knock(one, "peer")) for _ in range(4 * STRANGERS_MAX)]
        for sock in sockets:
            assert ends(sock)
    until(lambda: refusals(one)["unproven"] == 4 * STRANGERS_MAX, "they are counted")
    assert refusals(one)["busy"] == 0


def refusals(cluster: SmallCluster) -> dict[str, int]:
    metrics = cluster.metrics("w1")
    return {key[1]: int(n) for key, n in metrics.items() if key[0] == "tiered_peer_refused_total"}
