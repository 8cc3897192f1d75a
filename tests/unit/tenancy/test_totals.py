"""Bounds over all nodes together: what a policy may say, and what a pool makes of its share."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import DEFAULT_TENANT, Share, TenantPolicy
from tiered.types import TenantId

RED = TenantId("red")


@pytest.mark.parametrize(
    ("bounds", "field", "limit_field"),
    [
        (
            {"hot_total_reserved_bytes": 11, "hot_total_limit_bytes": 10},
            "hot_total_reserved_bytes",
            "hot_total_limit_bytes",
        ),
        ({"hot_reserved_bytes": 11, "hot_total_limit_bytes": 10}, "hot_reserved_bytes", "hot_total_limit_bytes"),
    ],
)
def test_what_is_reserved_is_within_the_total(bounds: dict[str, int], field: str, limit_field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TenantPolicy.model_validate({"tenant": "red", **bounds})
    assert f"{field} (11) is above {limit_field} (10)" in str(refused.value)


@pytest.mark.parametrize("bad", [-1, 1.5, "lots", None, (1 << 60) + 1])
def test_a_total_is_a_number_of_bytes(bad: object) -> None:
    with pytest.raises(ValidationError):
        TenantPolicy.model_validate({"tenant": "red", "hot_total_reserved_bytes": bad})


def test_an_unnamed_tenant_has_the_defaults_total_limit_and_none_of_its_reservation() -> None:
    default = TenantPolicy(tenant=DEFAULT_TENANT, hot_total_limit_bytes=9, hot_total_reserved_bytes=5)
    guest = default.of_unnamed(TenantId("guest"))
    assert (guest.hot_total_limit_bytes, guest.hot_total_reserved_bytes) == (9, 0)
    assert default.has_total
    assert not TenantPolicy(tenant="red", hot_limit_bytes=3).has_total


@pytest.mark.parametrize(
    ("per_node", "share", "in_force"),
    [(None, 40, 40), (30, 40, 30), (50, 40, 40), (None, 0, 0)],
)
def test_the_lower_of_limit_and_share_is_in_force(per_node: int | None, share: int, in_force: int) -> None:
    ledger = HotLedger(10)
    policy = TenantPolicy(tenant=RED, hot_limit_bytes=per_node, hot_total_limit_bytes=1_000)
    ledger.set_policies({RED: policy}, {RED: Share(share)})
    assert ledger.limit_bytes(RED) == in_force


def test_a_pool_that_is_the_only_one_has_the_total_to_itself() -> None:
    ledger = HotLedger(10)
    ledger.set_policies({RED: TenantPolicy(tenant=RED, hot_total_limit_bytes=70, hot_total_reserved_bytes=20)})
    assert (ledger.limit_bytes(RED), ledger.reserved_bytes(RED)) == (70, 20)


def test_without_a_share_the_limit_is_what_is_held_and_only_falls() -> None:
    ledger = HotLedger(10)
    for _ in range(3):
        ledger.charge(RED)
    policies = {RED: TenantPolicy(tenant=RED, hot_total_limit_bytes=1_000)}
    ledger.set_policies(policies, {})
    assert ledger.limit_bytes(RED) == 30
    ledger.release(RED)
    assert ledger.limit_bytes(RED) == 30, "within a policy's time it stays, or a block replaced would cost its place"
    ledger.set_policies(policies, {})
    assert ledger.limit_bytes(RED) == 20
    ledger.set_policies(policies, {RED: Share(50)})
    assert ledger.limit_bytes(RED) == 50
