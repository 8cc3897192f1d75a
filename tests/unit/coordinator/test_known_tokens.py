"""What a replica remembers of tokens: how soon it hears of changes, and for how long it goes by what it knew."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from coordinator.server.known_tokens import BOUND_S, FRESH_S, RETRY_S, KnownTokens
from tests.support.redis_server import eventually
from tiered.clock import ManualClock
from tiered.cluster.access import NO_GRANTS, TOKEN_PREFIX, AccessTokens, Grant, Grants, digest_of
from tiered.errors import TierUnavailable
from tiered.types import TenantId

TOKEN = TOKEN_PREFIX + "t" * 43
OTHER = TOKEN_PREFIX + "o" * 43


class FakeRecord(AccessTokens):
    """The shared record as the test says it is; its clock goes with the replica's."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.grants: dict[str, Grant] = {}
        self.is_away = False
        self.reads = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self, known: Grants = NO_GRANTS) -> Grants:
        self.reads += 1
        assert self.may_answer.wait(10.0)
        if self.is_away:
            raise TierUnavailable("redis: away")
        return Grants(int(self.clock.now() * 1000), b"", dict(self.grants))

    def give(self, token: str, *, expires_s: float | None = None, token_id: str = "1") -> None:
        ends = None if expires_s is None else int((self.clock.now() + expires_s) * 1000)
        self.grants[digest_of(token)] = Grant(token_id, "acme", "", 0, ends)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def record(clock: ManualClock) -> FakeRecord:
    return FakeRecord(clock)


@pytest.fixture
def known(record: FakeRecord, clock: ManualClock) -> KnownTokens:
    return KnownTokens(record, clock)


def test_a_token_made_elsewhere_a_moment_ago_is_known_at_once(known: KnownTokens, record: FakeRecord) -> None:
    assert known.find(TOKEN) is None
    record.give(TOKEN)
    found = known.find(TOKEN)
    assert found is not None
    assert found.tenant == "acme"


def test_a_known_token_costs_no_round_trip_while_it_is_fresh(
    known: KnownTokens, record: FakeRecord, clock: ManualClock
) -> None:
    record.give(TOKEN)
    for _ in range(100):
        assert known.find(TOKEN)
        assert not known.needs_redis(TOKEN)
    assert record.reads == 1
    clock.advance(FRESH_S)
    assert known.needs_redis(TOKEN)
    assert known.find(TOKEN)
    assert record.reads == 2


def test_what_was_revoked_elsewhere_ends_within_the_bound(
    known: KnownTokens, record: FakeRecord, clock: ManualClock
) -> None:
    record.give(TOKEN)
    assert known.find(TOKEN)
    record.grants.clear()
    clock.advance(FRESH_S)
    assert known.find(TOKEN) is None


def test_what_is_no_token_is_never_asked_for(known: KnownTokens, record: FakeRecord) -> None:
    for text in ("", "s3cret", "x" * 100_000, "tiered_", "\udc80"):
        assert known.find(text) is None
        assert not known.needs_redis(text)
    assert record.reads == 0


def test_with_redis_away_a_known_token_goes_on_and_an_unknown_one_cannot_be_told(
    known: KnownTokens, record: FakeRecord, clock: ManualClock
) -> None:
    record.give(TOKEN)
    assert known.find(TOKEN)
    record.is_away = True
    clock.advance(BOUND_S - 1)
    assert known.find(TOKEN)
    with pytest.raises(TierUnavailable):
        known.find(OTHER)
    clock.advance(1)
    with pytest.raises(TierUnavailable):
        known.find(TOKEN)
    record.is_away = False
    clock.advance(RETRY_S)
    assert known.find(TOKEN)
    assert known.find(OTHER) is None


def test_a_token_expires_with_redis_away_too(known: KnownTokens, record: FakeRecord, clock: ManualClock) -> None:
    record.give(TOKEN, expires_s=10.0)
    assert known.find(TOKEN)
    record.is_away = True
    clock.advance(9.9)
    assert known.find(TOKEN)
    clock.advance(0.1)
    with pytest.raises(TierUnavailable):
        known.find(TOKEN)


def test_after_a_failure_nobody_waits_for_redis_for_a_while(
    known: KnownTokens, record: FakeRecord, clock: ManualClock
) -> None:
    record.is_away = True
    for _ in range(10):
        with pytest.raises(TierUnavailable):
            known.find(TOKEN)
    assert record.reads == 1
    clock.advance(RETRY_S)
    with pytest.raises(TierUnavailable):
        known.find(TOKEN)
    assert record.reads == 2


def test_what_is_revoked_here_ends_here_even_if_redis_goes_away_then(known: KnownTokens, record: FakeRecord) -> None:
    record.give(TOKEN, token_id="1")
    record.give(OTHER, token_id="2")
    assert known.find(TOKEN)
    record.is_away = True
    known.forget(TenantId("acme"), "1")
    assert known.find(OTHER)
    known.forget(TenantId("globex"))
    assert known.find(OTHER)
    known.forget(TenantId("acme"))
    with pytest.raises(TierUnavailable):
        known.find(OTHER)


class TickingClock(ManualClock):
    """No two looks at it show the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self._looking = threading.Lock()

    def now(self) -> float:
        with self._looking:
            self.looks += 1
            self.advance(1e-6)
            return super().now()


def test_many_who_ask_during_one_reading_share_the_next() -> None:
    clock = TickingClock()
    record = FakeRecord(clock)
    known = KnownTokens(record, clock)
    record.may_answer.clear()
    with ThreadPoolExecutor(16) as threads:
        first = threads.submit(known.find, TOKEN)
        eventually(lambda: record.reads == 1, within_s=10.0)
        looks = clock.looks
        others = [threads.submit(known.find, TOKEN) for _ in range(15)]
        eventually(lambda: clock.looks == looks + 15, within_s=10.0)
        record.may_answer.set()
        first.result(10.0)
        for other in others:
            other.result(10.0)
    assert record.reads == 2


def test_a_server_whose_clock_is_years_off_expires_tokens_all_the_same(
    known: KnownTokens, record: FakeRecord, clock: ManualClock
) -> None:
    record.give(TOKEN, expires_s=10.0)
    read = record.read

    def far_ahead(known_grants: Grants = NO_GRANTS) -> Grants:
        grants, years_ms = read(known_grants), 10 * 366 * 86_400_000
        moved = {
            digest: Grant(grant.id, grant.tenant, grant.label, 0, (grant.expires_ms or 0) + years_ms)
            for digest, grant in grants.by_digest.items()
        }
        return replace(grants, server_ms=grants.server_ms + years_ms, by_digest=moved)

    record.read = far_ahead  # type: ignore[method-assign]
    assert known.find(TOKEN)
    clock.advance(10.0)
    assert known.find(TOKEN) is None
