"""The codec in force when a block leaves goes with its copy; who shares its blocks reads exact values only."""

from __future__ import annotations

import pytest

from tests.unit.core.builders import BLUE, RED, REDIS, World, chain
from tiered.core.demote import tend
from tiered.tenancy.policy import TenantPolicy


def test_a_copy_carries_the_codec_that_its_tenant_has_when_it_leaves() -> None:
    world = World(8)
    world.save(chain("red", 2), tenant=RED)
    world.save(chain("blue", 1), tenant=BLUE)
    world.core.ledger.set_policies(
        {
            RED: TenantPolicy(tenant=RED, redis_codec="fp8", hot_limit_bytes=0),
            BLUE: TenantPolicy(tenant=BLUE, hot_limit_bytes=0),
        }
    )
    tend(world.core)
    world.turn()
    assert {(job.tenant, job.codec) for job in world.seam.copies} == {(RED, "fp8"), (BLUE, "none")}


@pytest.mark.parametrize(("sharing", "exact_only"), [("private", False), ("group:lab", True), ("public", True)])
def test_who_shares_its_blocks_asks_for_exact_values_only(sharing: str, exact_only: bool) -> None:
    world = World(8)
    world.core.ledger.set_policies({RED: TenantPolicy(tenant=RED, sharing=sharing)})
    world.load(world.match(chain("p", 2), below=[REDIS]))
    assert [job.exact_only for job in world.seam.fetches] == [exact_only]
