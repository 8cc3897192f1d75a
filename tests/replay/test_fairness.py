"""Promises to eight real tenants: nobody is worse off than with a cache of its own, and little is lost in all.

The tenants are the clients of ``weka_A`` by the size of their tool list, which tells a client build: the seven lists
with most requests are a tenant each, all others the eighth. Each is promised an equal part of the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.replay.traces import accesses, requests_of, room
from tiered.simulate.curves import lru_curve
from tiered.simulate.outcome import Outcome
from tiered.simulate.replay import Setup, replay
from tiered.simulate.tenants import Tenants, read_tenants
from tiered.simulate.trace import Request
from tiered.types import TenantId

TRACE = "weka_A"
N_TENANTS = 8
DEAL = f"""
by = "tool_tokens"
deal = {N_TENANTS}
rule = "most"
[default]
hot_reserved = "12.5%"
"""
KEPT = 0.95
"""Of the hits of one LRU that all share."""

POINTS_MAX = 0.05
"""By which a tenant may miss its promise: the figures' own rounding."""

# What the reference has for this deal: all in one LRU, and eight caches of an equal part each.
SHARED = {5: (82.1, 61.2), 10: (93.3, 89.6)}
SPLIT = {5: (42.4, 20.1), 10: (63.4, 43.9)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    path: Path = tmp_path_factory.mktemp("deal") / "tenants.toml"
    path.write_text(DEAL)
    return read_tenants(path, requests_of(TRACE))


def own_requests(tenants: Tenants) -> Mapping[TenantId, Sequence[Request]]:
    by_tenant: dict[TenantId, list[Request]] = {}
    for request in requests_of(TRACE):
        by_tenant.setdefault(tenants.of(request), []).append(request)
    return by_tenant


@cache
def promised(tenants: Tenants, share: int) -> Mapping[TenantId, int]:
    """Hits of each tenant in a private LRU of its equal part."""
    part = room(requests_of(TRACE), share) // N_TENANTS
    return {tenant: lru_curve(own).hits_at(part) for tenant, own in own_requests(tenants).items()}


@cache
def served(tenants: Tenants, share: int) -> Outcome:
    requests = requests_of(TRACE)
    return replay(requests, Setup("lru", room(requests, share), tenants=tenants))


@pytest.mark.parametrize("share", SHARED)
def test_the_deal_is_the_references(tenants: Tenants, share: int) -> None:
    requests = requests_of(TRACE)
    size, all_accesses = room(requests, share), accesses(requests)
    assert 100 * lru_curve(requests).hits_at(size) / all_accesses == pytest.approx(SHARED[share][0], abs=0.051)
    private = promised(tenants, share)
    own = {tenant: accesses(their) for tenant, their in own_requests(tenants).items()}
    assert len(own) == N_TENANTS
    assert 100 * Counter(private).total() / all_accesses == pytest.approx(SPLIT[share][0], abs=0.051)
    assert min(100 * private[tenant] / own[tenant] for tenant in own) == pytest.approx(SPLIT[share][1], abs=0.051)


@pytest.mark.parametrize("share", SHARED)
def test_sharing_fairly_keeps_most_hits_of_one_shared_cache(tenants: Tenants, share: int) -> None:
    requests = requests_of(TRACE)
    shared = lru_curve(requests).hits_at(room(requests, share))
    assert served(tenants, share).total.hot_hits >= KEPT * shared


@pytest.mark.parametrize("share", SHARED)
def test_no_tenant_hits_less_than_a_cache_of_its_own_would(tenants: Tenants, share: int) -> None:
    outcome = served(tenants, share)
    below = {
        tenant: f"{tally.hit_ratio} of {100 * promised(tenants, share)[tenant] / tally.accesses:.2f}"
        for tenant, tally in outcome.tenants.items()
        if 100 * (promised(tenants, share)[tenant] - tally.hot_hits) / tally.accesses > POINTS_MAX
    }
    assert below == {}
