"""Blocks from another worker: what arrived whole counts, the rest comes from Redis or is missed, no byte is wrong."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import msgspec
import pytest

from tests.support.content import TENANT, hashes_of, large_scope, prompt, right_bytes, save, take
from tests.support.faulty_relay import Fault, FaultyRelay
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.cluster.directory import Directory
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import PeerAddress
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier, ToStore
from tiered.types import Epoch, NodeId, Source
from tiered.wire.framing import PREFIX
from tiered.wire.messages import FRAME_BYTES_MAX, WIRE_VERSION

SCOPE = large_scope()
BLOCK = SCOPE.layout.block_bytes
N = 8
POOL = str(32 * BLOCK)
SETTINGS = ("pool.demote=never", "cluster.heartbeat_s=0.1", "cluster.secret=s3")
CUT_AT = 3 * (HEADER_BYTES + BLOCK) + HEADER_BYTES + BLOCK // 2
"""Bytes of answer: about the middle of the fourth block."""

ROOT = scope_id(SCOPE, label=tenant_label(TENANT))


def put_into_redis(cluster: SmallCluster, tokens: Sequence[int]) -> None:
    """Store a prompt's blocks in the lower tier, as their demotion would have."""
    settings = RedisSettings(url=cluster.server.url, namespace=cluster.namespace)
    blocks = [
        ToStore(block_hash, TENANT, depth, memoryview(right_bytes(block_hash, BLOCK)), None)
        for depth, block_hash in enumerate(hashes_of(tokens, scope=SCOPE))
    ]
    with closing(RedisTier(settings)) as tier:
        answers = tier.put(blocks, scope_id=ROOT, layout=SCOPE.layout)
    assert {answer.value for answer in answers} == {"stored"}


@contextmanager
def relayed(cluster: SmallCluster, name: str, fault: Fault, *, after_bytes: int = CUT_AT) -> Iterator[FaultyRelay]:
    """All others reach the node through a relay: its entry in the shared state says so."""
    view = cluster.node(name)
    with FaultyRelay(view.info.peer_port, fault, after_bytes=after_bytes) as relay:
        info = msgspec.structs.replace(view.info, peer_port=relay.port)
        cluster.client.hset(cluster.keys.nodes(), name, msgspec.msgpack.encode((info, view.epoch)))
        yield relay


@pytest.fixture
def two(cluster: SmallCluster) -> SmallCluster:
    """w1 holds prompt(1) hot and announced; w2 is empty."""
    cluster.start("w1", hot=POOL, settings=SETTINGS)
    with cluster.attach("w1", scope=SCOPE) as client:
        assert save(client, prompt(1, N), scope=SCOPE).n_stored == N
    cluster.wait_announced("w1", N)
    return cluster


def missed(cluster: SmallCluster, name: str) -> dict[str, int]:
    metrics = cluster.metrics(name)
    return {key[1]: int(n) for key, n in metrics.items() if key[0] == "tiered_peer_missed_blocks_total" and n}


def refused(cluster: SmallCluster, name: str) -> dict[str, int]:
    metrics = cluster.metrics(name)
    return {key[1]: int(n) for key, n in metrics.items() if key[0] == "tiered_peer_refused_total" and n}


def test_blocks_come_from_the_peer_bit_equal_and_are_hot_afterwards(two: SmallCluster) -> None:
    two.start("w2", hot=POOL, settings=SETTINGS)
    with two.attach("w2", scope=SCOPE) as client:
        match = client.match(prompt(1, N + 2), tenant=TENANT)
        assert (len(match.block_ids), match.n_peer, match.n_redis) == (0, N, 0)
        client.release(match, used_tokens=0)
        assert take(client, prompt(1, N + 2), scope=SCOPE) == Counter({Source.PEER: N})
        assert take(client, prompt(1, N), scope=SCOPE) == Counter({Source.HOT: N})
    asker = two.metrics("w2")
    assert asker[("tiered_peer_fetched_blocks_total",)] == N
    assert asker[("tiered_peer_received_bytes_total",)] == N * BLOCK
    assert 0 < asker[("tiered_peer_fetch_duration_seconds_sum",)] < 60
    assert two.metrics("w1")[("tiered_peer_sent_bytes_total",)] == N * BLOCK
    assert two.blocks("w1")["ready"] == N
    two.wait_announced("w2", N)


@pytest.mark.parametrize("below", ["redis", "nothing"])
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.CORRUPT, Fault.STALL])
def test_a_transfer_that_fails_in_its_middle_keeps_what_arrived(two: SmallCluster, fault: Fault, below: str) -> None:
    if below == "redis":
        put_into_redis(two, prompt(1, N))
    with relayed(two, "w1", fault) as relay:
        two.start("w2", hot=POOL, settings=[*SETTINGS, "cluster.peer_timeout_s=0.3"])
        with two.attach("w2", scope=SCOPE) as client:
            got = take(client, prompt(1, N), scope=SCOPE)
            assert relay.reached.is_set()
            # A reset may take with it what the receiver had not read yet.
            assert got[Source.PEER] <= 3 if fault is Fault.RESET else got[Source.PEER] == 3
            assert got[Source.REDIS] == (N - got[Source.PEER] if below == "redis" else 0)
            reason = "checksum" if fault is Fault.CORRUPT else "unavailable"
            assert missed(two, "w2") == {reason: N - got[Source.PEER]}
            # What could not be had is not there by halves, and all of it can be saved and found again.
            assert take(client, prompt(1, N), scope=SCOPE)[Source.HOT] == got.total()
            save(client, prompt(1, N), scope=SCOPE)
            assert take(client, prompt(1, N), scope=SCOPE) == Counter({Source.HOT: N})
            assert two.blocks("w2")["filling"] == 0


def test_a_peer_killed_in_the_middle_of_a_transfer_costs_only_the_rest_of_it(two: SmallCluster) -> None:
    put_into_redis(two, prompt(1, N))
    with relayed(two, "w1", Fault.STALL) as relay:
        two.start("w2", hot=POOL, settings=SETTINGS)
        with two.attach("w2", scope=SCOPE) as client:
            match = client.match(prompt(1, N), tenant=TENANT)
            assert match.n_peer == N
            client.release(match, used_tokens=0)
            killer = _Killer(two, relay)
            assert take(client, prompt(1, N), scope=SCOPE) == Counter({Source.PEER: 3, Source.REDIS: N - 3})
            killer.join()
            # Its entries in the directory still name it; they cost nobody anything.
            save(client, prompt(2, 24), scope=SCOPE)
            assert take(client, prompt(2, 24), scope=SCOPE) == Counter({Source.HOT: 24})


class _Killer:
    """Kills w1 once the relay has stalled, and ends the relayed connections as the kernel would."""

    def __init__(self, cluster: SmallCluster, relay: FaultyRelay) -> None:
        self._thread = threading.Thread(target=self._run, args=(cluster, relay))
        self._thread.start()

    def _run(self, cluster: SmallCluster, relay: FaultyRelay) -> None:
        assert relay.reached.wait(10)
        cluster.workers["w1"].kill()
        relay.drop()

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("below", ["redis", "nothing"])
def test_a_peer_that_does_not_know_the_secret_gets_nothing_and_is_counted(two: SmallCluster, below: str) -> None:
    if below == "redis":
        put_into_redis(two, prompt(1, N))
    two.start("w2", hot=POOL, settings=[*SETTINGS, "cluster.secret=other"])
    with two.attach("w2", scope=SCOPE) as client:
        expected = Counter({Source.REDIS: N}) if below == "redis" else Counter()
        assert take(client, prompt(1, N), scope=SCOPE) == expected
    assert missed(two, "w2") == {"secret": N}
    assert refused(two, "w1") == {"secret": 1}
    assert two.metrics("w1")[("tiered_peer_sent_blocks_total",)] == 0


def test_a_directory_that_names_a_block_the_peer_has_let_go_of_is_no_harm(two: SmallCluster) -> None:
    """The directory is a hint (I7): the holder says what it still has."""
    two.start("w2", hot=POOL, settings=SETTINGS)
    hashes = hashes_of(prompt(2, 4), scope=SCOPE)
    Directory(two.client, two.keys).announce(NodeId("w1"), two.node("w1").epoch, stored=hashes, removed=())
    with two.attach("w2", scope=SCOPE) as client:
        assert take(client, prompt(2, 4), scope=SCOPE) == Counter()
        assert missed(two, "w2") == {"absent": 4}
        assert take(client, prompt(1, N), scope=SCOPE) == Counter({Source.PEER: N})  # and the peer is not shunned


class Asking:
    """A worker's peer side, in this process."""

    def __init__(self, cluster: SmallCluster, *, epoch_offset: int = 0, secret: str = "s3") -> None:
        view = cluster.node("w1")
        self.tier = PeerTier("asker", secret, timeout_s=2.0)
        self.address = PeerAddress(
            "w1", type(view.epoch)(view.epoch + epoch_offset), "127.0.0.1", view.info.peer_port
        )

    def fetch(self, seed: int, n_blocks: int, *, root: bytes = ROOT) -> list[bytes | None]:
        hashes = hashes_of(prompt(seed, n_blocks), scope=SCOPE)
        outs = [memoryview(bytearray(BLOCK)) for _ in hashes]
        checksums = self.tier.fetch(self.address, hashes, outs, scope_id=root)
        for checksum, out, block_hash in zip(checksums, outs, hashes, strict=True):
            assert checksum is None or out == right_bytes(block_hash, BLOCK)
        return checksums


def test_a_fetch_of_an_earlier_epoch_is_refused(two: SmallCluster) -> None:
    for offset, n_good in ((-1, 0), (1, 0), (0, 2)):
        asking = Asking(two, epoch_offset=offset)
        with closing(asking.tier):
            assert sum(checksum is not None for checksum in asking.fetch(1, 2)) == n_good


def test_blocks_are_lent_in_their_own_scope_only(two: SmallCluster) -> None:
    foreign = scope_id(SCOPE, label="tenant:globex")
    asking = Asking(two)
    with closing(asking.tier):
        assert asking.fetch(1, 2, root=foreign) == [None, None]
        assert None not in asking.fetch(1, 2)


def test_a_connection_that_lay_idle_until_the_peer_closed_it_costs_no_miss(two: SmallCluster) -> None:
    asking = Asking(two)
    with closing(asking.tier), relayed(two, "w1", Fault.NONE) as relay:
        asking.address = PeerAddress("w1", asking.address.epoch, "127.0.0.1", relay.port)
        assert None not in asking.fetch(1, 2)
        relay.drop()
        assert None not in asking.fetch(1, 2)


def renamed(cluster: SmallCluster, name: str, *, epoch: int, like: str) -> None:
    """The shared state as a node would leave it whose address another one has now."""
    info = msgspec.structs.replace(cluster.node(like).info, node=name)
    cluster.client.hset(cluster.keys.nodes(), name, msgspec.msgpack.encode((info, epoch)))
    cluster.client.set(cluster.keys.node_lease(NodeId(name)), epoch, px=60_000)


def test_an_address_that_serves_another_node_now_is_a_miss_with_its_reason(two: SmallCluster) -> None:
    """The node that is meant is gone, its entries are not, and its port is another worker's by now."""
    put_into_redis(two, prompt(3, 4))
    hashes = hashes_of(prompt(3, 4), scope=SCOPE)
    renamed(two, "w0", epoch=1_000, like="w1")
    Directory(two.client, two.keys).announce(NodeId("w0"), Epoch(1_000), stored=hashes, removed=())
    two.start("w2", hot=POOL, settings=SETTINGS)
    with two.attach("w2", scope=SCOPE) as client:
        assert take(client, prompt(3, 4), scope=SCOPE) == Counter({Source.REDIS: 4})
    assert missed(two, "w2") == {"node": 4}
    assert refused(two, "w1") == {"unproven": 1}  # it was not even shown a proof


def test_a_node_that_came_back_under_a_new_epoch_is_not_taken_for_its_old_self(two: SmallCluster) -> None:
    asking = Asking(two)
    with closing(asking.tier):
        assert None not in asking.fetch(1, 2)
        two.workers["w1"].kill()
        two.restart("w1")
        new = two.node("w1")
        old = asking.address
        assert new.epoch > old.epoch
        # At its old address nobody is left; where it is now, it is not the one that is meant.
        assert asking.fetch(1, 2) == [None, None]
        asking.address = PeerAddress("w1", old.epoch, "127.0.0.1", new.info.peer_port)
        assert asking.fetch(1, 2) == [None, None]
        asking.address = PeerAddress("w1", new.epoch, "127.0.0.1", new.info.peer_port)
        asking.fetch(1, 2)
        misses = asking.tier.counters().misses
        assert (misses["unavailable"], misses["epoch"]) == (2, 2)
        assert set(misses) <= {"unavailable", "epoch", "absent"}  # absent: until an engine has attached again


def test_a_fetch_ends_when_its_time_is_over_though_a_step_may_take_longer(two: SmallCluster) -> None:
    with relayed(two, "w1", Fault.STALL, after_bytes=CUT_AT) as relay:
        asking = Asking(two)
        with closing(asking.tier):
            asking.address = PeerAddress("w1", asking.address.epoch, "127.0.0.1", relay.port)
            hashes = hashes_of(prompt(1, N), scope=SCOPE)
            outs = [memoryview(bytearray(BLOCK)) for _ in hashes]
            began = time.monotonic()
            checksums = asking.tier.fetch(asking.address, hashes, outs, scope_id=ROOT, within_s=0.5)
            assert time.monotonic() - began < 1.9  # a step is granted two seconds
            assert sum(checksum is not None for checksum in checksums) == 3


def framed(body: bytes) -> bytes:
    return PREFIX.pack(len(body) + 1, WIRE_VERSION) + body


_LAYOUT = {"n_layers": -1, "n_kv_heads": 1, "head_dim": 1, "dtype": "float32"}
GARBAGE = {
    "nothing": b"",
    "noise": random.Random(7).randbytes(4096),
    "text": b"GET / HTTP/1.1\r\nHost: w1\r\n\r\n",
    "a frame cut short": PREFIX.pack(100, WIRE_VERSION) + b"\x93",
    "a foreign version": PREFIX.pack(10, WIRE_VERSION + 1) + bytes(9),
    "an absurd length": PREFIX.pack(FRAME_BYTES_MAX + 1, WIRE_VERSION),
    "no message": framed(b"\xc1\xc1"),
    "an unknown message": framed(msgspec.msgpack.encode(["Nobody"])),
    "a field of another type": framed(msgspec.msgpack.encode(["Match", 1, 2, 3, 4])),
    "a layout out of bounds": framed(
        msgspec.msgpack.encode(["Attach", {"model": "m", "weights_version": "1", "layout": _LAYOUT}, "e", 1])
    ),
    "a proof that is none": framed(msgspec.msgpack.encode(["Proof", "w2", bytes(32)])),
    "a fetch without a proof": framed(msgspec.msgpack.encode(["Fetch", 1, bytes(32), bytes(32)])),
}


@pytest.mark.parametrize("door", ["peer", "engine"])
def test_garbage_is_dropped_and_everybody_else_is_served_on(two: SmallCluster, door: str) -> None:
    worker = two.workers["w1"]
    for data in GARBAGE.values():
        with _knock(two, door) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert _ends(sock)
    assert worker.process.is_alive()
    with two.attach("w1", scope=SCOPE) as client:
        assert take(client, prompt(1, N), scope=SCOPE) == Counter({Source.HOT: N})
    asking = Asking(two)
    with closing(asking.tier):
        assert None not in asking.fetch(1, 2)


def test_the_length_that_a_stranger_claims_costs_no_memory(two: SmallCluster) -> None:
    """Before it has proven itself, a connection could otherwise have 16 MiB made ready by sending five bytes."""
    before = two.workers["w1"].peak_bytes()
    sockets = [_knock(two, "peer") for _ in range(48)]
    try:
        for sock in sockets:
            sock.sendall(PREFIX.pack(FRAME_BYTES_MAX, WIRE_VERSION))
        for sock in sockets:
            assert _ends(sock)
        assert two.workers["w1"].peak_bytes() - before < 64 << 20
    finally:
        for sock in sockets:
            sock.close()


def test_more_connections_than_it_serves_are_turned_away_and_room_comes_back(two: SmallCluster) -> None:
    sockets = [_knock(two, "peer") for _ in range(70)]
    until(lambda: refused(two, "w1").get("unproven", 0) >= 6, "some are turned away")
    for sock in sockets:
        sock.close()

    def served() -> bool:
        asking = Asking(two)
        with closing(asking.tier):
            return None not in asking.fetch(1, 1)

    until(served, "there is room again")


def _knock(cluster: SmallCluster, door: str) -> socket.socket:
    if door == "peer":
        return socket.create_connection(("127.0.0.1", cluster.node("w1").info.peer_port), timeout=10)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(cluster.socket_path("w1"))
    return sock


def _ends(sock: socket.socket) -> bool:
    """Whether the other side closes within the socket's timeout, whatever it says before."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True
