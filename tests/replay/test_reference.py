"""Our replay of real traces equals an independent simulator's figures, to 0.05 points.

The traces are not part of the repository: where neither TIERED_TRACES names their folder nor ``shared/traces`` lies
beside it, these tests skip. The figures are
prefix-aware block hit ratios in percent, at 1, 5, 10, 25 and 50% of a trace's unique blocks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tiered.simulate.ceiling import min_hits
from tiered.simulate.replay import Setup, replay
from tiered.simulate.trace import Request, read_trace

TRACES = Path(os.environ.get("TIERED_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
SHARES = (1, 5, 10, 25, 50)
TOLERANCE = 0.051  # the figures are rounded to one decimal

LRU = {
    "mooncake_conversation_A": (4.3, 11.3, 20.9, 30.1, 34.2),
    "mooncake_synthetic": (3.8, 15.7, 26.2, 44.4, 58.9),
    "ragpulse_A": (30.9, 31.3, 31.3, 31.3, 31.3),
    "tau_airline_A": (56.7, 88.9, 94.2, 94.3, 94.3),
    "weka_A": (14.8, 82.1, 93.3, 96.1, 96.4),
}
MIN = {
    "mooncake_conversation_A": (18.9, 32.9, 34.6, 34.6, 34.6),
    "mooncake_synthetic": (18.5, 39.6, 50.6, 62.6, 64.0),
    "ragpulse_A": (31.3, 31.3, 31.3, 31.3, 31.3),
    "tau_airline_A": (59.5, 92.4, 94.3, 94.3, 94.3),
    "weka_A": (44.0, 89.1, 95.4, 96.4, 96.4),
}
CASES = [(name, share) for name in LRU for share in SHARES]


@cache
def requests_of(name: str) -> Sequence[Request]:
    path = TRACES / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return list(read_trace(path, block_tokens=256 if name == "weka_A" else None))


def room(requests: Sequence[Request], share: int) -> int:
    return max(1, len({block for request in requests for block in request.blocks}) * share // 100)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "share"), CASES)
def test_lru_replay_agrees_with_the_reference(name: str, share: int) -> None:
    requests = requests_of(name)
    outcome = replay(requests, Setup("lru", room(requests, share)))
    assert outcome.total.hit_ratio == pytest.approx(LRU[name][SHARES.index(share)], abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "share"), CASES)
def test_the_ceiling_agrees_with_the_reference(name: str, share: int) -> None:
    requests = requests_of(name)
    accesses = sum(len(request.blocks) for request in requests)
    ratio = 100 * min_hits(requests, n_blocks=room(requests, share)) / accesses
    assert ratio == pytest.approx(MIN[name][SHARES.index(share)], abs=TOLERANCE)
