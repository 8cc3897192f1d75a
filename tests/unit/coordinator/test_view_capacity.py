"""Curves of several nodes put together, and what more or less room would buy by them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from coordinator.view.capacity import Capacity, Tier, capacities, capacity_of, distinct_blocks
from coordinator.view.snapshot import ClusterView, Readings, assemble
from coordinator.view.visible import view_of_tenant
from tests.unit.coordinator.builders import node_view, redis_usage
from tests.unit.curve.builders import ACME, name
from tiered.cluster.ledger import RedisUsage
from tiered.curve.sampler import Sampler
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockHash, NodeRates, NodeStats, NodeView, TenantCurve, TenantId, TenantStats

BLOCK_BYTES = 1 << 20
TOKENS = 16


def loop(first: int, n_blocks: int, *, rounds: int = 10, part: tuple[int, int] = (0, 1)) -> TenantCurve:
    """Blocks in turn, in requests of fifty; part (i, n): every n-th request from the i-th on."""
    sampler = Sampler(TOKENS)
    number = 0
    for _ in range(rounds):
        for at in range(first, first + n_blocks, 50):
            number += 1
            if number % part[1] == part[0]:
                hashes = [BlockHash(name(block)) for block in range(at, at + 50)]
                sampler.looked_up(ACME, hashes, prompt_tokens=800, now=0.0)
                sampler.counted(ACME, asked=800, own=0, hit=600, hot=400)
    return sampler.curves(now=3_600.0)[ACME]


def node(number: int, curve: TenantCurve | None, *, hot_blocks: int = 0, alive: bool = True) -> NodeView:
    tenants = {ACME: TenantStats(hot_blocks=hot_blocks, hot_bytes=hot_blocks * BLOCK_BYTES, curve=curve)}
    stats = NodeStats(block_bytes=BLOCK_BYTES, tenants=tenants, rates=NodeRates(prefill_tokens_per_s=1_000.0))
    return node_view(f"n{number}", stats=stats, alive=alive)


def view(*nodes: NodeView, redis: RedisUsage | None = None, **policy: object) -> ClusterView:
    return assemble(
        Readings(
            nodes=nodes,
            policies={ACME: TenantPolicy.model_validate({"tenant": ACME, **policy})},
            redis={} if redis is None else {ACME: redis},
        ),
        taken_at=0.0,
    )


def read(seen: ClusterView, more: Sequence[tuple[Tier, int]] = ()) -> Capacity:
    tenant = seen.tenant(ACME)
    assert tenant is not None
    found = capacity_of(seen, tenant, more=more)
    assert found is not None
    return found


def at(found: Capacity, n_blocks: int) -> float:
    """Straight between points, as a page would draw them."""
    below = [point for point in found.curve if point[0] <= n_blocks * BLOCK_BYTES]
    above = [point for point in found.curve if point[0] > n_blocks * BLOCK_BYTES]
    if not below or not above:
        return below[-1][1] if below else 0.0
    (size, ratio), (next_size, next_ratio) = below[-1], above[0]
    return ratio + (next_ratio - ratio) * (n_blocks * BLOCK_BYTES - size) / (next_size - size)


def test_room_that_crosses_the_cliff_is_worth_all_and_room_before_it_nothing() -> None:
    found = read(
        view(node(1, loop(0, 5_000), hot_blocks=1_000), redis=redis_usage(1_000 * BLOCK_BYTES, blocks=1_000)),
        more=[("redis", 1_000 * BLOCK_BYTES), ("redis", 6_000 * BLOCK_BYTES), ("redis", -(10**15))],
    )
    assert found.room_bytes == 2_000 * BLOCK_BYTES
    assert found.predicted.hit == pytest.approx(0.0, abs=0.01)
    short, enough, gone = found.what_if[-3:]
    assert short.points == pytest.approx(0.0, abs=1)
    assert enough.points == pytest.approx(90.0, abs=2)
    assert enough.tokens_per_hour == pytest.approx(found.asked_per_hour * enough.points / 100)
    assert enough.prefill_s_per_hour == pytest.approx(enough.tokens_per_hour / 1_000)
    assert (gone.more_bytes, gone.bytes) == (-1_000 * BLOCK_BYTES, 0)


def test_what_is_measured_stands_beside_what_is_predicted() -> None:
    found = read(view(node(1, loop(0, 5_000), hot_blocks=9_000)))
    assert found.measured is not None
    assert (found.measured.hit, found.measured.hot) == (pytest.approx(0.75, abs=0.001), pytest.approx(0.5, abs=0.001))
    assert found.predicted.hit == found.predicted.hot == pytest.approx(0.9, abs=0.02)
    assert found.since_s == 3_600


def test_nodes_of_different_blocks_share_room_and_add_their_cliffs() -> None:
    """Four nodes of 2,000 blocks each: together they need 8,000."""
    found = read(view(*(node(i, loop(10_000 * i, 2_000)) for i in range(4))))
    assert found.n_nodes == 4
    assert found.seen_bytes == pytest.approx(8_000 * BLOCK_BYTES, rel=0.15)
    assert at(found, 5_000) == pytest.approx(0.0, abs=0.15)
    assert at(found, 11_000) == pytest.approx(0.9, abs=0.02)


def test_nodes_of_the_same_blocks_share_them_too() -> None:
    """Four nodes that all go through the same 2,000 blocks: together they need 2,000."""
    found = read(view(*(node(i, loop(0, 2_000)) for i in range(4))))
    assert found.seen_bytes == pytest.approx(2_000 * BLOCK_BYTES, rel=0.15)
    assert at(found, 1_200) == pytest.approx(0.0, abs=0.02)
    assert at(found, 2_600) == pytest.approx(0.9, abs=0.02)


def test_hot_copies_of_the_same_blocks_are_one_block_of_room() -> None:
    same = read(view(*(node(i, loop(0, 2_000), hot_blocks=1_000) for i in range(4))))
    assert same.room_bytes == pytest.approx(1_000 * BLOCK_BYTES, rel=0.05)


def test_distinct_blocks_of_samples_of_different_rates_are_still_comparable() -> None:
    small, large = Sampler(TOKENS), Sampler(TOKENS, sample_max=100)
    for sampler, blocks in ((small, range(3_000)), (large, range(1_500, 9_000))):
        for start in range(blocks.start, blocks.stop, 100):
            hashes = [name(block) for block in range(start, start + 100)]
            sampler.looked_up(ACME, hashes, prompt_tokens=1_600, now=0.0)
    curves = [sampler.curves(now=1.0)[ACME] for sampler in (small, large)]
    assert distinct_blocks(curves) == pytest.approx(9_000, rel=0.25)
    assert distinct_blocks([]) == 0
    assert distinct_blocks(curves[:1]) == curves[0].seen_blocks


def test_compressed_blocks_get_more_for_a_byte_of_redis() -> None:
    stored = redis_usage(1_000 * BLOCK_BYTES // 2, blocks=1_000)
    found = read(view(node(1, loop(0, 3_000)), redis=stored), more=[("redis", 1_500 * BLOCK_BYTES)])
    assert found.room_bytes == 1_000 * BLOCK_BYTES
    assert found.what_if[-1].points == pytest.approx(90.0, abs=2)


def test_a_larger_hot_tier_says_what_moves_nearer_as_well() -> None:
    seen = view(node(1, loop(0, 3_000), hot_blocks=500), redis=redis_usage(4_000 * BLOCK_BYTES, blocks=4_000))
    change = read(seen, more=[("hot", 4_000 * BLOCK_BYTES)]).what_if[-1]
    assert change.points == pytest.approx(0.0, abs=0.5)
    assert change.hot_points == pytest.approx(90.0, abs=2)


def test_blocks_that_engines_had_themselves_are_no_hits_of_ours() -> None:
    curve = loop(0, 5_000)
    own = msgspec.structs.replace(curve, own_tokens=curve.looked_tokens // 2)
    found = read(view(node(1, own, hot_blocks=9_000)))
    assert found.asked_per_hour == pytest.approx(curve.looked_tokens / 2 / curve.weight_s * 3_600, rel=0.01)
    assert found.predicted.hit == pytest.approx(0.8, abs=0.02)  # of the half that was asked for, 0.1 of all is missed


def test_limits_are_those_in_force_over_all_nodes() -> None:
    seen = view(
        node(1, loop(0, 500)), node(2, None), hot_total_limit_bytes=9 * BLOCK_BYTES, redis_limit_bytes=7 * BLOCK_BYTES
    )
    found = read(seen)
    assert (found.hot.limit_bytes, found.redis.limit_bytes) == (9 * BLOCK_BYTES, 7 * BLOCK_BYTES)


def test_nodes_that_are_gone_or_say_nothing_are_left_out() -> None:
    seen = view(node(1, loop(0, 500), alive=False), node(2, None))
    tenant = seen.tenant(ACME)
    assert tenant is not None
    assert capacity_of(seen, tenant) is None
    assert capacities(seen) == []
    assert [each.policy.tenant for each in capacities(view(node(1, loop(0, 500))))] == [ACME]


def test_a_tenant_reads_of_itself_what_everybody_may_read_of_it() -> None:
    seen = view(node(1, loop(0, 500), hot_blocks=100), redis=redis_usage(BLOCK_BYTES, blocks=1))
    assert read(view_of_tenant(seen, ACME)) == read(seen)
    other = view_of_tenant(seen, TenantId("other"))
    assert capacities(other) == []


@pytest.mark.parametrize("wild", [0, 1, 1 << 53])
def test_numbers_of_a_broken_worker_divide_by_nothing(wild: int) -> None:
    curve = TenantCurve(0.0, 0.0, wild, wild, wild, 1 << 53, wild, wild, wild, wild, (wild,), ((wild, wild),))
    seen = view(node(1, curve, hot_blocks=wild), node(2, curve), redis=redis_usage(wild, blocks=1))
    found = read(seen, more=[("redis", 1 << 50), ("hot", -(1 << 50))])
    assert 0.0 <= found.predicted.hit <= 1.0
    assert len(found.curve) <= 64
