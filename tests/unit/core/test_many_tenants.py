"""There is no end of tenants' names: what is kept for those that hold nothing is bounded, and no count is lost."""

from __future__ import annotations

from tests.unit.core.builders import RED, World, chain
from tiered.core import core as core_module
from tiered.core.stats import node_stats
from tiered.tenancy.ledger import UNNAMED_MAX
from tiered.types import TenantId

MANY = 1_200


def look_up(world: World, tenant: TenantId) -> None:
    """A prompt of two blocks that nobody has."""
    world.release(world.match(chain("nobody's", 2), tenant=tenant))


def test_lookups_under_ever_new_names_keep_a_bounded_number_of_policies_and_names() -> None:
    world = World(8, policy="hazard", lower_tier=False)
    world.save(chain("p", 2), tenant=RED)
    open_lease = world.match(chain("q", 2), tenant=TenantId("busy"))
    for number in range(MANY):
        look_up(world, TenantId(f"t{number}"))
    world.release(open_lease)
    assert len(world.core.policies) <= core_module.POLICIES_MAX
    assert RED in world.core.policies
    tenants = node_stats(world.core, engines=0, layout="").tenants
    assert len(tenants) <= core_module.COUNTED_MAX + 2  # with "other", and RED that only holds
    asked = sum(of.tokens.asked for of in tenants.values())
    assert asked == 4 * 2 * (MANY + 1)
    assert tenants["other"].tokens.asked == asked - sum(of.tokens.asked for t, of in tenants.items() if t != "other")


def test_a_tenant_with_a_policy_is_counted_by_name_however_many_others_there_are() -> None:
    world = World(8, lower_tier=False)
    for number in range(core_module.COUNTED_MAX):
        world.core.count(TenantId(f"t{number}"))
    world.limit(RED, 4)
    look_up(world, RED)
    assert world.core.counters[RED].tokens.asked == 8


def test_bounds_worked_out_for_names_that_hold_nothing_are_forgotten() -> None:
    world = World(8, lower_tier=False)
    world.limit(RED, 4)
    world.save(chain("p", 2), tenant=TenantId("holds"))
    ledger = world.core.ledger
    for number in range(3 * UNNAMED_MAX):
        assert ledger.limit_bytes(TenantId(f"t{number}")) is None
    assert len(ledger._derived) <= UNNAMED_MAX + 1
    assert len(ledger._limits) <= UNNAMED_MAX + 2
    assert ledger.limit_bytes(RED) == 400
