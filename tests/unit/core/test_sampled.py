"""What the sample of lookups is told by the core's verbs, and by which it is not."""

from __future__ import annotations

from tests.unit.core.builders import BLOCK_TOKENS, BLUE, RED, SCOPE, World, chain
from tiered.core.release import release
from tiered.core.requests import saving
from tiered.core.stats import node_stats
from tiered.curve.sampler import Sampler
from tiered.types import NO_HINTS, TenantCurve, TenantId


def sampled_world(n_blocks: int = 64) -> World:
    world = World(n_blocks)
    world.core.sampler = Sampler(BLOCK_TOKENS)
    return world


def curve_of(world: World, tenant: TenantId = RED) -> TenantCurve | None:
    return node_stats(world.core, engines=1, layout="").tenants[tenant].curve


def test_hits_and_misses_are_looked_up_alike_and_counted_when_they_end() -> None:
    world = sampled_world()
    hashes = chain("a", 8)
    world.release(world.match(hashes))
    world.save(hashes)
    lease = world.match(hashes, asked_tokens=8 * BLOCK_TOKENS + 1)
    release(world.core, lease, used_tokens=6 * BLOCK_TOKENS, own_tokens=2 * BLOCK_TOKENS)
    curve = curve_of(world)
    assert curve is not None
    assert (curve.looked_tokens, curve.prompt_tokens) == (64, 65)
    assert (curve.counted_tokens, curve.own_tokens) == (32 + 25, 8)
    assert (curve.hit_tokens, curve.hot_tokens) == (16, 16)


def test_what_the_curve_counts_is_what_the_counters_count() -> None:
    world = sampled_world()
    for name in ("a", "b", "a"):
        lease = world.match(chain(name, 5))
        world.release(lease, used_tokens=len(lease.pinned) * BLOCK_TOKENS)
        world.save(chain(name, 5))
    curve, tokens = curve_of(world), world.core.counters[RED].tokens
    assert curve is not None
    assert (curve.counted_tokens, curve.hit_tokens) == (tokens.asked, tokens.hot) == (60, 20)


def test_a_lookup_that_is_not_counted_is_not_drawn() -> None:
    world = sampled_world()
    world.save(chain("a", 8))
    world.release(world.match(chain("a", 8), asked_tokens=0))
    assert curve_of(world) is None


def test_a_tenant_sees_nothing_of_another_in_its_curve() -> None:
    world = sampled_world()
    for _ in range(3):
        world.release(world.match(chain("a", 8), tenant=RED))
    world.release(world.match(chain("b", 3), tenant=BLUE))
    world.save(chain("b", 3), tenant=BLUE)
    world.save(chain("a", 3), tenant=RED)
    red, blue = curve_of(world), curve_of(world, BLUE)
    assert red is not None
    assert blue is not None
    assert (red.looked_tokens, blue.looked_tokens) == (96, 12)


def test_a_save_tells_the_sample_its_chain() -> None:
    world = sampled_world()
    world.release(world.match(chain("a", 200)))
    before = world.core.sampler.n_sampled if world.core.sampler else 0
    lease = world.open(chain("b", 400))
    saving(world.core, lease, now=0.0, hints=NO_HINTS)
    assert world.core.sampler is not None
    assert world.core.sampler.n_sampled > before
    assert lease.scope_id == SCOPE


def test_a_core_without_a_sample_publishes_no_curve() -> None:
    world = World(16)
    world.release(world.match(chain("a", 3)))
    assert node_stats(world.core, engines=1, layout="").tenants[RED].curve is None
