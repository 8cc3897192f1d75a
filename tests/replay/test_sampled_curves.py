"""Sampled miss-ratio curves of real traces against the exact ones: the error of what `tiered capacity` says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from tests.replay.traces import NAMES, requests_of
from tiered.curve.histogram import hits_at
from tiered.curve.sampler import Sampler
from tiered.simulate.curves import lru_curve
from tiered.simulate.replay import Setup, replay
from tiered.simulate.trace import Request
from tiered.types import BlockHash, TenantCurve, TenantId

TENANT = TenantId("all")
ERROR_MAX = 0.02
"""Mean over a hundred sizes, of the hit ratio."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def sampled(requests: Sequence[Request], salt: str) -> TenantCurve:
    names: dict[int, BlockHash] = {}
    sampler = Sampler(1)
    for served in requests:
        for block in served.blocks:
            if block not in names:
                names[block] = BlockHash(hashlib.sha256(f"{salt}{block}".encode()).digest())
        sampler.looked_up(
            TENANT, [names[block] for block in served.blocks], prompt_tokens=len(served.blocks), now=0.0
        )
    return sampler.curves(now=1.0)[TENANT]


@pytest.mark.parametrize("salt", ["", "1", "2", "3"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sampled_curve_is_near_the_exact_one_at_every_size(name: str, salt: str) -> None:
    requests = requests_of(name)
    exact, curve = lru_curve(requests), sampled(requests, salt)
    unique = len({block for served in requests for block in served.blocks})
    errors = [
        abs(
            hits_at(curve.points, unique * share / 100) / curve.looked_tokens
            - exact.ratio_at(unique * share // 100) / 100
        )
        for share in range(1, 101)
    ]
    print(f"{name}: mean {sum(errors) / 100:.4f}, largest {max(errors):.4f}, {curve.sampled_blocks} blocks sampled")
    assert sum(errors) / len(errors) <= ERROR_MAX


@pytest.mark.parametrize("share", [5, 25])
def test_what_more_room_is_said_to_buy_is_what_a_replay_of_the_core_gains(share: int) -> None:
    requests = requests_of("mooncake_conversation_A")
    curve = sampled(requests, "")
    n_blocks = len({block for served in requests for block in served.blocks}) * share // 100
    before, after = (replay(requests, Setup("lru", size)).total for size in (n_blocks, 2 * n_blocks))
    gained = (after.hits - before.hits) / before.accesses
    said = (hits_at(curve.points, 2 * n_blocks) - hits_at(curve.points, n_blocks)) / curve.looked_tokens
    assert said == pytest.approx(gained, abs=0.02)
