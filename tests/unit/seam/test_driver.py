"""The movers: every job is answered, whatever the tiers do, and only bytes that are what was committed are stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.support.redis_server import eventually
from tests.unit.core.builders import PEER, REDIS
from tiered.codec.frame import checksum_of
from tiered.core.why import WhyLog
from tiered.jobs import Completion, CopyDone, DemoteJob, FetchDone, FetchJob, Origin, PeerAddress
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.seam import driver as driver_module
from tiered.seam.driver import Driver
from tiered.seam.handoff import FetchLimits, Handoff
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import ToStore, Wanted
from tiered.types import BlockHash, BlockId, Happening, Source, TenantId, Ticket

LAYOUT = KvLayout(n_layers=1, n_kv_heads=1, head_dim=8, dtype="float32", block_tokens=4)
RED = TenantId("red")
GOOD = b"\x11" * LAYOUT.block_bytes


@dataclass
class FakeRedis:
    """on_get and on_put run first: they may wait or raise."""

    on_get: Callable[[], object] = lambda: None
    on_put: Callable[[], object] = lambda: None
    stored: dict[BlockHash, tuple[bytes, bytes]] = field(default_factory=dict)
    within_s: float | None = None

    def get(
        self,
        wanted: Sequence[Wanted],
        *,
        scope_id: bytes,
        tenant: TenantId,
        layout: KvLayout,
        exact_only: bool = False,
        first_depth: int = 0,
        before: Sequence[BlockHash] = (),
        within_s: float | None = None,
    ) -> list[bytes | None]:
        self.within_s = within_s
        self.on_get()
        for item in wanted:
            item.out[:] = GOOD
        return [checksum_of(item.out) for item in wanted]

    def put(self, blocks: Sequence[ToStore], *, scope_id: bytes, layout: KvLayout) -> list[PutAnswer]:
        self.on_put()
        for block in blocks:
            self.stored[block.block_hash] = scope_id, bytes(block.payload)
        return [PutAnswer.STORED] * len(blocks)


@dataclass
class FakePeers:
    """on_fetch runs first, with the peer that is asked."""

    on_fetch: Callable[[PeerAddress], object] = lambda peer: None
    within_s: float | None = None

    def fetch(
        self,
        peer: PeerAddress,
        hashes: Sequence[BlockHash],
        outs: Sequence[memoryview],
        *,
        scope_id: bytes,
        within_s: float,
    ) -> list[bytes | None]:
        self.within_s = within_s
        self.on_fetch(peer)
        return [b"p" * 16, *[None] * (len(hashes) - 1)]


def hash_of(n: int) -> BlockHash:
    return BlockHash(n.to_bytes(32, "big"))


def fetch(n: int, *, origin: Origin = REDIS, n_blocks: int = 1) -> FetchJob:
    hashes = tuple(hash_of(n + i) for i in range(n_blocks))
    return FetchJob(Ticket(n), origin, b"s" * 32, RED, tuple(BlockId(i) for i in range(n_blocks)), hashes)


def demote(n: int, *, checksum: bytes | None = None, scope_id: bytes = b"s" * 32) -> DemoteJob:
    return DemoteJob(Ticket(n), BlockId(n % 8), hash_of(n), scope_id, RED, 0, checksum)


@dataclass
class Rig:
    pool: BlockPool
    handoff: Handoff
    driver: Driver
    done: list[Completion] = field(default_factory=list)

    def answers(self, n: int) -> list[Completion]:
        """Wait for n completions in all; they come in the order of their tickets, a fetch's without its time."""

        def enough() -> bool:
            self.done.extend(map(_timeless, self.handoff.poll()))
            return len(self.done) >= n

        eventually(enough)
        assert len(self.done) == n
        return sorted(self.done, key=lambda completion: completion.ticket)


def _timeless(done: Completion) -> Completion:
    return replace(done, took_s=0.0) if isinstance(done, FetchDone) else done


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    rigs: list[Rig] = []

    def make(
        redis: FakeRedis | None = None,
        *,
        peers: FakePeers | None = None,
        limits: FetchLimits | None = None,
        **options: object,
    ) -> Rig:
        pool = BlockPool(LAYOUT, 8)
        handoff = Handoff(queue_jobs_max=64, notify=lambda: None, limits=limits)
        rig = Rig(pool, handoff, Driver(pool, handoff, redis=redis, peers=peers, **options))  # type: ignore[arg-type]
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.driver.close(timeout_s=5)
        rig.pool.close()


def test_a_fetch_fills_its_slots_and_says_their_checksums(make_rig: MakeRig) -> None:
    rig = make_rig(FakeRedis())
    rig.handoff.submit([fetch(1, n_blocks=3)])
    good = checksum_of(memoryview(GOOD))
    assert rig.answers(1) == [FetchDone(Ticket(1), (good, good, good))]
    assert all(bytes(rig.pool.host_view(BlockId(i))) == GOOD for i in range(3))


def test_a_fetch_goes_to_the_origin_it_names(make_rig: MakeRig) -> None:
    rig = make_rig(FakeRedis(), peers=FakePeers())
    rig.handoff.submit([fetch(1, origin=PEER, n_blocks=2)])
    assert rig.answers(1) == [FetchDone(Ticket(1), (b"p" * 16, None))]


@pytest.mark.parametrize("origin", [REDIS, PEER])
def test_an_origin_that_is_not_there_has_nothing(make_rig: MakeRig, origin: Origin) -> None:
    rig = make_rig()
    rig.handoff.submit([fetch(1, origin=origin, n_blocks=2)])
    assert rig.answers(1) == [FetchDone(Ticket(1), (None, None))]


def test_a_fetch_says_how_long_its_mover_had_it(make_rig: MakeRig) -> None:
    may_get, is_running = threading.Event(), threading.Event()

    def wait() -> None:
        is_running.set()
        may_get.wait(10)

    rig = make_rig(FakeRedis(on_get=wait), n_fetchers=1)
    submitted = time.monotonic()
    rig.handoff.submit([fetch(1), fetch(2)])
    assert is_running.wait(10)
    running_since = time.monotonic()
    eventually(lambda: time.monotonic() - running_since > 0.05)
    held_s = time.monotonic() - running_since
    may_get.set()
    done: list[Completion] = []
    eventually(lambda: len(done.extend(rig.handoff.poll()) or done) == 2)
    first, second = (each.took_s for each in done if isinstance(each, FetchDone))
    assert held_s <= first <= time.monotonic() - submitted
    assert 0 < second < first  # the time it waited for a mover is not its own


def test_a_job_is_granted_its_time_wherever_it_goes(make_rig: MakeRig) -> None:
    redis, peers = FakeRedis(), FakePeers()
    rig = make_rig(redis, peers=peers, fetch_s=1.25)
    rig.handoff.submit([fetch(1), fetch(2, origin=PEER)])
    rig.answers(2)
    assert (redis.within_s, peers.within_s) == (1.25, 1.25)


def other_peer(n: int) -> Origin:
    return Origin(Source.PEER, PeerAddress(f"other-{n}", 1, "127.0.0.1", n))


def test_peers_that_hang_keep_neither_redis_nor_another_peer_waiting(make_rig: MakeRig) -> None:
    """With as many movers and as many fetches of one origin as there are in a worker."""
    may_end = threading.Event()
    peers = FakePeers(on_fetch=lambda peer: peer.port in (1, 2) and may_end.wait(10))
    rig = make_rig(FakeRedis(), peers=peers)
    rig.handoff.submit([fetch(100 + n, origin=other_peer(1 + n % 2)) for n in range(12)])
    rig.handoff.submit([fetch(1), fetch(2), fetch(3, origin=other_peer(3))])
    assert [answer.ticket for answer in rig.answers(3)] == [1, 2, 3]
    may_end.set()
    rig.answers(15)


def test_a_redis_that_hangs_keeps_no_peer_waiting(make_rig: MakeRig) -> None:
    may_end = threading.Event()
    rig = make_rig(FakeRedis(on_get=lambda: may_end.wait(10)), peers=FakePeers())
    rig.handoff.submit([fetch(100 + n) for n in range(12)])
    rig.handoff.submit([fetch(n, origin=other_peer(n)) for n in range(1, 5)])
    assert [answer.ticket for answer in rig.answers(4)] == [1, 2, 3, 4]
    may_end.set()
    rig.answers(16)


def fail() -> None:
    raise RuntimeError("a defect")


def test_a_tier_that_raises_is_a_miss_and_the_lane_lives_on(make_rig: MakeRig) -> None:
    redis = FakeRedis(on_get=fail)
    rig = make_rig(redis, n_fetchers=1)
    rig.handoff.submit([fetch(1, n_blocks=2)])
    assert rig.answers(1) == [FetchDone(Ticket(1), (None, None))]
    redis.on_get = lambda: None
    rig.handoff.submit([fetch(2)])
    assert rig.answers(2)[1] == FetchDone(Ticket(2), (checksum_of(memoryview(GOOD)),))


def test_a_job_for_a_slot_that_is_not_there_is_answered(make_rig: MakeRig) -> None:
    rig = make_rig(FakeRedis())
    job = FetchJob(Ticket(1), REDIS, b"s" * 32, RED, (BlockId(99),), (hash_of(1),))
    rig.handoff.submit([job, DemoteJob(Ticket(2), BlockId(99), hash_of(2), b"s" * 32, RED, 0, None)])
    assert rig.answers(2) == [FetchDone(Ticket(1), (None,)), CopyDone(Ticket(2), copied=False)]


def test_a_copy_is_free_of_the_slot_before_it_is_stored(make_rig: MakeRig) -> None:
    may_store = threading.Event()
    redis = FakeRedis(on_put=lambda: may_store.wait(10))
    rig = make_rig(redis)
    rig.pool.host_view(BlockId(1))[:] = GOOD
    rig.handoff.submit([demote(1, checksum=checksum_of(memoryview(GOOD)))])
    assert rig.answers(1) == [CopyDone(Ticket(1), copied=True)]
    rig.pool.host_view(BlockId(1))[:] = b"\x22" * LAYOUT.block_bytes
    may_store.set()
    eventually(lambda: hash_of(1) in redis.stored)
    assert redis.stored[hash_of(1)] == (b"s" * 32, GOOD)


def test_a_torn_copy_is_not_stored(make_rig: MakeRig) -> None:
    redis = FakeRedis()
    rig = make_rig(redis)
    rig.pool.host_view(BlockId(1))[:] = b"\x22" * LAYOUT.block_bytes
    rig.pool.host_view(BlockId(2))[:] = GOOD
    checksum = checksum_of(memoryview(GOOD))
    rig.handoff.submit([demote(1, checksum=checksum), demote(2, checksum=checksum)])
    eventually(lambda: hash_of(2) in redis.stored)
    assert hash_of(1) not in redis.stored
    assert rig.driver.counters.torn_copies == 1


def test_a_torn_copy_is_told_to_who_asks_why(make_rig: MakeRig) -> None:
    log = WhyLog()
    rig = make_rig(FakeRedis(), why=log)
    rig.handoff.submit([demote(1, checksum=b"\0" * 16)])
    eventually(lambda: rig.driver.counters.torn_copies == 1)
    eventually(lambda: log.take() == [Happening("torn", hash_of(1), "red", "hot", 1, {"depth": 0})])


def test_blocks_of_several_scopes_are_stored_each_in_its_own(make_rig: MakeRig) -> None:
    redis = FakeRedis()
    rig = make_rig(redis)
    rig.handoff.submit([demote(n, scope_id=bytes([n % 2]) * 32) for n in range(6)])
    eventually(lambda: len(redis.stored) == 6)
    assert {h[-1]: scope[0] for h, (scope, _) in redis.stored.items()} == {n: n % 2 for n in range(6)}


def test_how_long_a_copy_took_counts_from_when_it_was_handed_over_and_only_if_it_was_stored(
    make_rig: MakeRig,
) -> None:
    may_store = threading.Event()
    redis = FakeRedis(on_put=lambda: may_store.wait(10))
    rig = make_rig(redis)
    began = time.monotonic()
    rig.handoff.submit([demote(n) for n in range(3)])
    submitted = time.monotonic()
    rig.answers(3)
    assert rig.driver.counters.demoted.n == 0
    waited_s = time.monotonic() - submitted
    may_store.set()
    eventually(lambda: rig.driver.counters.demoted.n == 3 and rig.driver.counters.demoted.sum_s >= 3 * waited_s)
    assert rig.driver.counters.demoted.sum_s <= 3 * (time.monotonic() - began)
    redis.on_put = fail
    rig.handoff.submit([demote(9)])
    rig.answers(4)
    rig.driver.close(timeout_s=5.0)
    assert rig.driver.counters.demoted.n == 3


def test_without_redis_a_block_leaves_without_a_copy(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handoff.submit([demote(1)])
    assert rig.answers(1) == [CopyDone(Ticket(1), copied=False)]
    assert rig.driver.counters.copies_dropped == 1


def test_a_redis_that_hangs_costs_copies_and_not_the_lane(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "STAGING_WAIT_S", 0.01)
    may_store = threading.Event()
    redis = FakeRedis(on_put=lambda: may_store.wait(10))
    rig = make_rig(redis, staging_blocks=2)
    rig.handoff.submit([demote(n) for n in range(6)])
    answers = rig.answers(6)
    assert [done for done in answers if isinstance(done, CopyDone) and done.copied] == answers[:2]
    assert rig.driver.counters.copies_dropped == 4
    may_store.set()
    eventually(lambda: set(redis.stored) == {hash_of(0), hash_of(1)})
    rig.handoff.submit([demote(7)])
    assert rig.answers(7)[-1] == CopyDone(Ticket(7), copied=True)


def test_a_put_that_raises_gives_its_buffers_back(make_rig: MakeRig) -> None:
    redis = FakeRedis(on_put=fail)
    rig = make_rig(redis, staging_blocks=1)
    for n in range(4):
        rig.handoff.submit([demote(n)])
        assert rig.answers(n + 1)[-1] == CopyDone(Ticket(n), copied=True)


def test_close_answers_all_that_waits_and_lets_what_runs_end(make_rig: MakeRig) -> None:
    may_get, n_running = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        n_running.release()
        may_get.wait(10)

    rig = make_rig(FakeRedis(on_get=hang), n_fetchers=2)
    rig.handoff.submit([fetch(n) for n in range(7)])
    for _ in range(2):
        assert n_running.acquire(timeout=10)
    rig.driver.close(timeout_s=0.01)
    waiting = rig.answers(5)
    assert waiting == [FetchDone(Ticket(n), (None,)) for n in range(2, 7)]
    may_get.set()
    assert {done.ticket for done in rig.answers(7)} == set(range(7))


def test_close_takes_its_time_in_all_and_not_per_lane(make_rig: MakeRig) -> None:
    may_get, n_running = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        n_running.release()
        may_get.wait(10)

    rig = make_rig(FakeRedis(on_get=hang), n_fetchers=8, limits=FetchLimits(redis=8))
    rig.handoff.submit([fetch(n) for n in range(8)])
    for _ in range(8):
        assert n_running.acquire(timeout=10)
    began = time.monotonic()
    rig.driver.close(timeout_s=0.1)
    took = time.monotonic() - began
    may_get.set()
    assert took < 0.5


def test_what_is_staged_at_the_end_is_still_written(make_rig: MakeRig) -> None:
    may_store = threading.Event()
    redis = FakeRedis(on_put=lambda: may_store.wait(10))
    rig = make_rig(redis)
    rig.handoff.submit([demote(n) for n in range(5)])
    rig.answers(5)
    may_store.set()
    rig.driver.close(timeout_s=10)
    assert len(redis.stored) == 5
