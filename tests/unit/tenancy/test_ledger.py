from __future__ import annotations

import pytest

from tiered.errors import IllegalTransition
from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId

RED, BLUE = TenantId("red"), TenantId("blue")


def policies(*items: TenantPolicy) -> dict[TenantId, TenantPolicy]:
    return {TenantId(item.tenant): item for item in items}


def test_charges_and_releases_add_up() -> None:
    ledger = HotLedger()
    ledger.charge(RED, 10)
    ledger.charge(RED, 10)
    ledger.charge(BLUE, 5)
    ledger.release(RED, 10)
    assert dict(ledger.tenants()) == {RED: 10, BLUE: 5}
    assert ledger.total_bytes() == 15
    ledger.release(RED, 10)
    assert dict(ledger.tenants()) == {BLUE: 5}


def test_nobody_releases_more_than_was_charged() -> None:
    ledger = HotLedger()
    ledger.charge(RED, 10)
    with pytest.raises(IllegalTransition):
        ledger.release(RED, 11)
    assert ledger.used_bytes(RED) == 10
    with pytest.raises(IllegalTransition):
        ledger.release(BLUE, 1)


def test_excess_is_what_stands_above_the_limit() -> None:
    ledger = HotLedger()
    ledger.set_policies(policies(TenantPolicy(tenant=RED, hot_limit_bytes=100)))
    ledger.charge(RED, 90)
    assert ledger.excess_bytes(RED) == 0
    assert ledger.excess_bytes(RED, asked_bytes=10) == 0
    assert ledger.excess_bytes(RED, asked_bytes=11) == 1
    assert ledger.excess_bytes(BLUE, asked_bytes=1 << 60) == 0


def test_a_tenant_not_named_has_the_default_policy_under_its_own_name() -> None:
    ledger = HotLedger()
    ledger.set_policies(policies(TenantPolicy(tenant=DEFAULT_TENANT, hot_limit_bytes=7, weight=2.0)))
    assert ledger.policy(BLUE) == TenantPolicy(tenant=BLUE, hot_limit_bytes=7, weight=2.0)


def test_new_policies_replace_the_old_and_what_was_derived_from_them() -> None:
    ledger = HotLedger()
    ledger.set_policies(policies(TenantPolicy(tenant=DEFAULT_TENANT, hot_limit_bytes=7)))
    assert ledger.policy(RED).hot_limit_bytes == 7
    ledger.set_policies({})
    assert ledger.policy(RED).hot_limit_bytes is None
