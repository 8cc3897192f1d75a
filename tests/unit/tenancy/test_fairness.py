from __future__ import annotations

from collections.abc import Mapping

import pytest

from tiered.blocks.record import NO_TENANT
from tiered.tenancy.fairness import giving_order
from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
BLOCK = 10


def order(
    used: Mapping[TenantId, int],
    *,
    asking: TenantId,
    reserved: Mapping[TenantId, int] | None = None,
    weight: Mapping[TenantId, float] | None = None,
    leaving: Mapping[TenantId, int] | None = None,
    asked: int = BLOCK,
) -> list[TenantId]:
    ledger = HotLedger(1)  # so that bytes can be charged one by one
    ledger.set_policies(
        {
            t: TenantPolicy(
                tenant=t, hot_reserved_bytes=(reserved or {}).get(t, 0), weight=(weight or {}).get(t, 1.0)
            )
            for t in (A, B, C)
        }
    )
    for tenant, n_bytes in used.items():
        for _ in range(n_bytes):
            ledger.charge(tenant)
    return list(
        giving_order(ledger, asking=asking, asked_bytes=asked, block_bytes=BLOCK, leaving_bytes=leaving or {})
    )


def test_the_tenant_furthest_above_its_share_gives_first() -> None:
    assert order({A: 20, B: 50, C: 40}, asking=A) == [B, C, A]


def test_standing_is_by_weight() -> None:
    assert order({A: 10, B: 66, C: 40}, asking=A, weight={B: 3.0}) == [C, B, A]


def test_between_equals_the_asker_gives() -> None:
    assert order({A: 30, B: 40}, asking=A)[0] == A


def test_nobody_below_the_asker_gives_to_it() -> None:
    assert order({A: 60, B: 40, C: 80}, asking=A) == [C, A]


@pytest.mark.parametrize("reserved", [30, 31, 39, 60])
def test_what_a_reservation_covers_is_not_given(reserved: int) -> None:
    """Not even the part of a block that lies within it."""
    assert B not in order({A: 0, B: 39}, asking=C, reserved={B: reserved})


def test_what_is_above_a_reservation_is_given() -> None:
    assert B in order({B: 40}, asking=C, reserved={B: 30})


def test_a_tenant_within_its_reservation_comes_before_all_that_borrow() -> None:
    assert order({A: 80, B: 10}, asking=A, reserved={A: 100}) == [B, A]


def test_what_is_on_its_way_out_was_given_already() -> None:
    assert order({A: 10, B: 50, C: 40}, asking=A, leaving={B: 20}) == [C, B, A]
    assert B not in order({B: 40}, asking=C, reserved={B: 30}, leaving={B: 10})


def test_room_ahead_of_need_is_given_by_all_that_borrow() -> None:
    assert order({A: 10, B: 30, C: 20}, asking=NO_TENANT, reserved={A: 10}) == [B, C]
