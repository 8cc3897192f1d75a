"""The real traces that the replay tests run, and sizes as shares of their unique blocks.

The traces are not part of the repository: where neither TIERED_TRACES names their folder nor ``shared/traces`` lies
beside it, the tests skip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tiered.simulate.trace import Request, read_trace

TRACES: Final = Path(os.environ.get("TIERED_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
NAMES: Final = ("mooncake_conversation_A", "mooncake_synthetic", "ragpulse_A", "tau_airline_A", "weka_A")
SHARES: Final = (1, 5, 10, 25, 50)


@cache
def requests_of(name: str) -> Sequence[Request]:
    path = TRACES / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return list(read_trace(path, block_tokens=256 if name == "weka_A" else None))


def room(requests: Sequence[Request], share: int) -> int:
    return max(1, len({block for request in requests for block in request.blocks}) * share // 100)


def accesses(requests: Sequence[Request]) -> int:
    return sum(len(request.blocks) for request in requests)
