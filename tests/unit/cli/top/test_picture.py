"""What is remembered from one sample to the next: rates only against numbers that were true."""

from __future__ import annotations

from tests.unit.cli.top.builders import counts, sample, tenant
from tiered.cli.top.picture import first_picture, seen


def test_a_start_on_stale_numbers_gives_no_rates_against_them() -> None:
    empty = sample(0.0, stats={"stale": True})
    now = seen(first_picture(empty, now=0.0), sample(5.0, tenants=[tenant("red", counts(hot=10**9))]), now=5.0)
    assert now.flow.tokens == counts()


def test_a_replica_that_cannot_read_redis_does_not_replace_what_was_read() -> None:
    before = sample(1.0, tenants=[tenant("red", counts(hot=3))])
    after = seen(first_picture(before, now=1.0), sample(2.0, stats={"stale": True}), now=2.0)
    assert after.sample == before
    assert "cannot read Redis" in after.failure
