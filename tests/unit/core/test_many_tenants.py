"""There is no end of tenants' names: what is kept for those that hold nothing is bounded, and no count is lost."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import RED, World, chain
from tiered.core import core as core_module
from tiered.core.stats import node_stats
from tiered.tenancy.ledger import UNNAMED_MAX
from tiered.tenancy.policy import DEFAULT_TENANT as DEFAULT
from tiered.tenancy.policy import TenantPolicy
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
    assert len(world.core.policies) <= core_module.POLICIES_MAX + 2  # beside RED's and that of who is busy
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


def test_of_unnamed_tenants_with_a_total_each_is_counted_by_name() -> None:
    """What it was refused says how much of the total it is to be lent here."""
    world = World(8, lower_tier=False)
    world.core.set_policies({DEFAULT: TenantPolicy(tenant=DEFAULT, hot_total_limit_bytes=400)})
    for number in range(core_module.COUNTED_MAX + 1):
        world.core.count(TenantId(f"t{number}")).wanted += 1
    assert "other" not in world.core.counters
    assert world.core.counters[TenantId(f"t{core_module.COUNTED_MAX}")].wanted == 1


def test_what_a_tenant_with_a_policy_has_learned_outlives_made_up_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "POLICIES_MAX", 4)
    world = World(64, policy="hazard", lower_tier=False)
    world.limit(RED, 8)
    look_up(world, RED)
    known = world.core.policies[RED]
    busy = [TenantId(f"busy{number}") for number in range(6)]
    for number, tenant in enumerate(busy):
        world.save(chain(f"b{number}", 2), tenant=tenant)
    learners = {tenant: world.core.policies[tenant] for tenant in busy}
    for number in range(50):
        look_up(world, TenantId(f"t{number}"))
    assert world.core.policies[RED] is known
    assert all(world.core.policies[tenant] is policy for tenant, policy in learners.items())
    assert len(world.core.policies) <= len(busy) + 4


def test_of_tenants_that_hold_nothing_any_more_the_books_know_nothing() -> None:
    world = World(8, lower_tier=False)
    for number in range(20):
        world.save(chain(f"p{number}", 2), tenant=TenantId(f"t{number}"))
    assert len(world.core.ledger._n_blocks) == len(dict(world.core.ledger.tenants())) <= 8
