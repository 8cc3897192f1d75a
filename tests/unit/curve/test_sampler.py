"""Curves of tenants, by made-up streams whose true curves are plain; and what hostile tenants may cost."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.curve.builders import ACME, look, name, ratio_at, spread
from tests.unit.simulate.builders import request
from tiered.curve.sampler import (
    FORGOTTEN_S,
    FRESH_S,
    NOTED_MAX,
    PUBLISHED_MAX,
    SAMPLE_MAX,
    SAMPLES_MAX,
    STEP_S,
    TENANTS_MAX,
    Sampler,
)
from tiered.simulate.curves import lru_curve
from tiered.types import BlockHash, TenantCurve, TenantId, TenantStats


def curve_of(sampler: Sampler, *, now: float = 0.0) -> TenantCurve:
    return sampler.curves(now=now)[ACME]


def test_a_loop_shows_the_cliff_of_lru() -> None:
    """Ten thousand blocks in turn: with less room than that LRU finds nothing, with that much everything."""
    sampler = Sampler(16)
    for _ in range(10):
        for first in range(0, 10_000, 100):
            look(sampler, range(first, first + 100))
    curve = curve_of(sampler)
    assert ratio_at(curve, 8_000) == pytest.approx(0.0, abs=0.01)
    assert ratio_at(curve, 12_000) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("salt", ["", "a", "b"])
def test_conversations_are_drawn_as_the_exact_curve_has_them(salt: str) -> None:
    """A thousand conversations that grow by eight blocks a turn behind one system prompt."""
    requests = []
    for turn in range(1, 7):
        for talk in range(1_000):
            own = [1_000 * (talk + 1) + block for block in range(8 * turn)]
            requests.append(request(*range(24), *own))
    sampler = Sampler(16)
    for served in requests:
        look(sampler, list(served.blocks), salt=salt)
    exact, curve = lru_curve(requests), curve_of(sampler)
    unique = len({block for served in requests for block in served.blocks})
    errors = [
        abs(ratio_at(curve, unique * share / 100) - exact.hits_at(unique * share // 100) / exact.accesses)
        for share in range(1, 101)
    ]
    assert sum(errors) / len(errors) <= 0.025  # near half of all accesses are to 24 blocks, which is hard to sample


def test_notes_that_are_folded_late_make_the_same_curve() -> None:
    at_once, late = Sampler(16), Sampler(16)
    for turn in range(40):
        for sampler in (at_once, late):
            look(sampler, range(100 * (turn % 7), 100 * (turn % 7) + 300), now=20.0 * turn)
            sampler.counted(ACME, asked=4_800, own=0, hit=1_600, hot=800)
            sampler.saved(ACME, [name(block) for block in range(50 * turn, 50 * turn + 200)])
        at_once.fold()
    assert curve_of(late, now=800.0) == curve_of(at_once, now=800.0)
    assert curve_of(late, now=800.0).counted_tokens > 0


def test_a_lookup_is_noted_and_not_folded_while_there_is_room() -> None:
    sampler = Sampler(16)
    look(sampler, range(100))
    look(sampler, range(100))
    assert sampler.fold(1)  # the first note is folded whole; the second is left
    assert not sampler.fold(1)


def test_notes_are_bounded_however_long_nobody_folds_them() -> None:
    sampler = Sampler(16)
    for _ in range(10 * NOTED_MAX // 1_000):
        look(sampler, range(999))
    n_notes = 1
    while sampler.fold(1):
        n_notes += 1
    assert n_notes == NOTED_MAX // 1_000


def test_what_was_saved_is_there_for_the_next_lookup() -> None:
    told, untold = Sampler(16), Sampler(16)
    for talk in range(400):
        prompt, whole = range(64 * talk, 64 * talk + 32), range(64 * talk, 64 * talk + 64)
        for sampler in (told, untold):
            look(sampler, prompt)
        told.saved(ACME, [name(block) for block in whole])
        for sampler in (told, untold):
            look(sampler, whole)
    assert ratio_at(curve_of(told), 200) == pytest.approx(2 / 3, abs=0.03)
    assert ratio_at(curve_of(untold), 200) == pytest.approx(1 / 3, abs=0.03)


def test_a_tenant_with_one_block_has_a_curve_or_is_absent_but_never_wrong() -> None:
    sampler = Sampler(16)
    for number in range(64):
        tenant = TenantId(f"t{number}")
        for _ in range(10):
            look(sampler, [number], tenant=tenant)
    for curve in sampler.curves(now=0.0).values():
        assert (curve.looked_tokens, curve.prompt_tokens) == (160, 160)
        assert curve.sampled_blocks in (0, 1)
        assert ratio_at(curve, 1) in (0.0, pytest.approx(1.0), pytest.approx(0.9, abs=0.11))


def test_millions_of_unique_blocks_keep_a_bounded_sample() -> None:
    sampler = Sampler(16, sample_max=500)
    for first in range(0, 2_000_000, 2_000):
        hashes = [
            BlockHash((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * 4) for n in range(first, first + 2_000)
        ]
        sampler.looked_up(ACME, hashes, prompt_tokens=32_000, now=first / 1e4)
        assert sampler.n_sampled <= 500
    curve = curve_of(sampler, now=200.0)
    assert curve.seen_blocks == pytest.approx(2_000_000, rel=0.15)
    assert ratio_at(curve, 10**9) < 0.02


def test_all_tenants_together_keep_a_bounded_sample_and_the_last_ones_none() -> None:
    sampler = Sampler(16)
    for number in range(TENANTS_MAX + 20):
        for first in range(0, 8_000, 2_000):
            hashes = spread(range(number << 20 | first, (number << 20 | first) + 2_000))
            sampler.looked_up(TenantId(f"t{number:03}"), hashes, prompt_tokens=32_000, now=float(number))
    assert sampler.n_sampled <= SAMPLES_MAX
    published = sampler.curves(now=float(TENANTS_MAX + 20))
    assert len(published) == PUBLISHED_MAX
    assert max(published) < TenantId(f"t{TENANTS_MAX}")
    assert all(len(msgspec.msgpack.encode(curve)) < 1_024 for curve in published.values())
    later = FORGOTTEN_S + TENANTS_MAX + STEP_S
    look(sampler, range(100), tenant=TenantId("late"), now=later)
    assert set(sampler.curves(now=later)) == {TenantId("late")}


def test_hostile_hashes_cost_their_own_tenant_its_curve_and_nothing_else() -> None:
    sampler = Sampler(16)
    for first in range(0, 20_000, 500):
        zeros = [BlockHash(bytes(28) + n.to_bytes(4, "big")) for n in range(first, first + 500)]
        sampler.looked_up(TenantId("mallory"), zeros + zeros[::-1], prompt_tokens=16_000, now=0.0)
        look(sampler, range(500))
    curves = sampler.curves(now=0.0)
    assert curves[TenantId("mallory")].sampled_blocks <= SAMPLE_MAX
    assert ratio_at(curves[ACME], 1_000) == pytest.approx(0.975, abs=0.01)
    msgspec.msgpack.encode(curves)


def test_huge_claims_and_huge_blocks_stay_numbers_that_can_be_sent() -> None:
    sampler = Sampler(1 << 40)
    for _ in range(3):
        sampler.looked_up(ACME, [name(number) for number in range(100)], prompt_tokens=1 << 100, now=0.0)
        sampler.counted(ACME, asked=1 << 90, own=1 << 90, hit=1 << 90, hot=1 << 90)
    curve = msgspec.msgpack.decode(msgspec.msgpack.encode(curve_of(sampler)), type=TenantCurve)
    assert max(curve.prompt_tokens, curve.looked_tokens, curve.hot_tokens) <= 1 << 53


def test_time_without_requests_fades_what_was_seen_and_at_last_forgets_the_tenant() -> None:
    sampler = Sampler(16)
    for _ in range(10):
        look(sampler, range(1_000))
    fresh = curve_of(sampler, now=1.0)
    later = curve_of(sampler, now=3_600.0)
    assert later.looked_tokens == pytest.approx(fresh.looked_tokens / 2.718, rel=0.05)
    assert ratio_at(later, 2_000) == pytest.approx(ratio_at(fresh, 2_000), abs=0.001)
    assert sampler.curves(now=FORGOTTEN_S + STEP_S) == {}
    assert sampler.n_sampled == 0
    assert sampler.curves(now=1e12) == {}


def test_rates_are_those_of_the_time_the_weights_stand_for() -> None:
    sampler = Sampler(16)
    for second in range(0, 20_000, 10):
        look(sampler, range(100), now=float(second))
    curve = curve_of(sampler, now=20_000.0)
    assert curve.looked_tokens / curve.weight_s == pytest.approx(160, rel=0.03)
    assert curve.age_s == 20_000


def test_a_block_comes_back_from_beyond_memory_as_a_new_one() -> None:
    sampler = Sampler(16)
    look(sampler, range(1_000))
    for minute in range(1, 500):
        look(sampler, [10**6], now=60.0 * minute)
    curve = curve_of(sampler, now=30_000.0)
    assert curve.seen_blocks <= 16
    look(sampler, range(1_000), now=30_000.0)
    again = curve_of(sampler, now=30_000.0 + FRESH_S)
    assert again.looked_tokens - curve.looked_tokens == pytest.approx(16_000, rel=0.01)
    assert ratio_at(again, 10**6) < 0.15


def test_a_sample_that_a_rush_made_thin_is_succeeded_by_a_fuller_one() -> None:
    sampler = Sampler(16, sample_max=400)
    for first in range(0, 400_000, 1_000):
        hashes = [
            BlockHash((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * 4) for n in range(first, first + 1_000)
        ]
        sampler.looked_up(ACME, hashes, prompt_tokens=16_000, now=0.0)
    thin = curve_of(sampler, now=0.0)
    assert thin.seen_blocks / thin.sampled_blocks > 500
    minutes = int(2.2 * FORGOTTEN_S / 60)
    for minute in range(1, minutes):
        look(sampler, range(3_000), now=60.0 * minute)
    full = curve_of(sampler, now=60.0 * minutes)
    assert full.seen_blocks / full.sampled_blocks == pytest.approx(16)
    assert full.seen_blocks == pytest.approx(3_000, rel=0.25)
    assert ratio_at(full, 4_000) == pytest.approx(1.0, abs=0.02)


def test_one_that_was_not_asked_anything_publishes_nothing() -> None:
    sampler = Sampler(16)
    sampler.saved(ACME, [name(1)])
    sampler.counted(ACME, asked=10, own=0, hit=5, hot=5)
    assert sampler.curves(now=5.0) == {}
    sampler.looked_up(ACME, [], prompt_tokens=3, now=5.0)
    assert sampler.curves(now=6.0) == {}


def test_a_curve_is_drawn_again_only_when_it_is_not_fresh() -> None:
    sampler = Sampler(16)
    look(sampler, range(100))
    first = curve_of(sampler, now=0.0)
    look(sampler, range(100))
    assert curve_of(sampler, now=FRESH_S - 1) is first
    assert curve_of(sampler, now=FRESH_S).looked_tokens == 3_200


def test_stats_of_an_older_and_of_a_newer_worker_decode() -> None:
    sampler = Sampler(16)
    look(sampler, range(500))
    stats = TenantStats(curve=curve_of(sampler))
    packed = msgspec.msgpack.encode(stats)
    assert msgspec.msgpack.decode(packed, type=TenantStats) == stats
    fields = msgspec.msgpack.decode(packed)
    newer = {**fields, "curve": [*fields["curve"], "a field of a later version"]}
    assert msgspec.convert(newer, TenantStats) == stats
    del fields["curve"]
    assert msgspec.convert(fields, TenantStats).curve is None
