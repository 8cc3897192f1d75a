from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import IllegalTransition
from tiered.tenancy.ledger import HotLedger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import TenantId

RED, BLUE = TenantId("red"), TenantId("blue")


def policies(*items: TenantPolicy) -> dict[TenantId, TenantPolicy]:
    return {TenantId(item.tenant): item for item in items}


def charged(*tenants: TenantId, block_bytes: int = 10) -> HotLedger:
    """A ledger with one block charged for each mention."""
    ledger = HotLedger(block_bytes)
    for tenant in tenants:
        ledger.charge(tenant)
    return ledger


def test_charges_and_releases_add_up() -> None:
    ledger = charged(RED, RED, BLUE)
    ledger.release(RED)
    assert dict(ledger.tenants()) == {RED: 10, BLUE: 10}
    assert ledger.total_bytes() == 20
    ledger.release(RED)
    assert dict(ledger.tenants()) == {BLUE: 10}
    assert (ledger.used_blocks(RED), ledger.used_blocks(BLUE)) == (0, 1)


def test_nobody_releases_more_than_was_charged() -> None:
    ledger = charged(RED)
    with pytest.raises(IllegalTransition):
        ledger.release(BLUE)
    ledger.release(RED)
    with pytest.raises(IllegalTransition):
        ledger.release(RED)
    assert dict(ledger.tenants()) == {}


@given(st.integers(1, 1000), st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=20))
def test_parts_sum_to_the_block_and_differ_by_a_byte_whoever_comes_and_goes(block_bytes: int, moves: str) -> None:
    ledger = HotLedger(block_bytes)
    users = [TenantId("z")]
    ledger.charge(users[0])
    for move in map(TenantId, moves):
        after = [user for user in users if user != move] or users
        ledger.recharge(users, users := after if move in users else [*users, move])
        paid = [ledger.used_bytes(user) for user in users]
        assert sum(paid) == ledger.total_bytes() == block_bytes
        assert max(paid) - min(paid) <= 1
        assert {user for user, _ in ledger.tenants()} <= set(users)
        assert all(ledger.used_blocks(user) == 1 for user in users)


def test_excess_is_what_stands_above_the_limit() -> None:
    ledger = charged(*[RED] * 9)
    ledger.set_policies(policies(TenantPolicy(tenant=RED, hot_limit_bytes=100)))
    assert ledger.excess_bytes(RED) == 0
    assert ledger.excess_bytes(RED, asked_bytes=10) == 0
    assert ledger.excess_bytes(RED, asked_bytes=11) == 1
    assert ledger.excess_bytes(BLUE, asked_bytes=1 << 60) == 0


@pytest.mark.parametrize(
    ("n_bytes", "n_blocks", "expected"), [(None, 5, 50), (30, 5, 30), (70, 5, 50), (70, None, 70), (None, 0, 0)]
)
def test_of_limits_in_bytes_and_in_blocks_the_lower_counts(
    n_bytes: int | None, n_blocks: int | None, expected: int
) -> None:
    ledger = HotLedger(10)
    ledger.set_policies(policies(TenantPolicy(tenant=RED, hot_limit_bytes=n_bytes, hot_limit_blocks=n_blocks)))
    assert ledger.limit_bytes(RED) == expected


def test_of_promises_in_bytes_and_in_blocks_the_higher_counts() -> None:
    ledger = HotLedger(10)
    ledger.set_policies(policies(TenantPolicy(tenant=RED, hot_reserved_bytes=30, hot_reserved_blocks=5)))
    assert ledger.reserved_bytes(RED) == 50
    ledger.set_policies(policies(TenantPolicy(tenant=RED, hot_reserved_bytes=70, hot_reserved_blocks=5)))
    assert ledger.reserved_bytes(RED) == 70


def test_a_tenant_not_named_has_the_default_policy_under_its_own_name() -> None:
    ledger = HotLedger(10)
    ledger.set_policies(policies(TenantPolicy(tenant=DEFAULT_TENANT, hot_limit_bytes=7, weight=2.0)))
    assert ledger.policy(BLUE) == TenantPolicy(tenant=BLUE, hot_limit_bytes=7, weight=2.0)


def test_new_policies_replace_the_old_and_what_was_derived_from_them() -> None:
    ledger = HotLedger(10)
    ledger.set_policies(policies(TenantPolicy(tenant=DEFAULT_TENANT, hot_limit_bytes=7)))
    assert ledger.policy(RED).hot_limit_bytes == 7
    ledger.set_policies({})
    assert ledger.policy(RED).hot_limit_bytes is None
