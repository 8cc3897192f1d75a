"""How fast is a replay? Block accesses a second of ``tiered simulate`` on one core, LRU, on every shared trace.

At 1% and 5% of a trace's unique blocks most accesses are misses, each of which stores a block and evicts another; at
10% and more most are hits. Baseline: the one-pass LRU curve, which gives the same hits at every size at once. Times
are of this process's own CPU. Needs the traces, as ``make test-replay`` does; TIERED_TRACES names their folder.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _harness import Report, median

from tiered.simulate.curves import lru_curve
from tiered.simulate.replay import Setup, replay
from tiered.simulate.trace import Request, read_trace

TRACES = Path(os.environ.get("TIERED_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
NAMES = ("mooncake_conversation_A", "mooncake_synthetic", "ragpulse_A", "tau_airline_A", "weka_A")
SHARES = (1, 5, 10)
ROUNDS = 3
TARGET = 150_000
"""Block accesses a second."""


def per_second(n_accesses: int, work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        work()
        return n_accesses / (time.process_time() - start)

    return median([once() for _ in range(ROUNDS)])


def requests_of(name: str) -> list[Request]:
    return list(read_trace(TRACES / f"{name}.jsonl.gz", block_tokens=256 if name == "weka_A" else None))


def main() -> None:
    if not TRACES.is_dir():
        print(f"replay: the traces are not in {TRACES}; name their folder by TIERED_TRACES", file=sys.stderr)
        return
    report = Report("replay")
    slowest = float("inf")
    for name in NAMES:
        requests = requests_of(name)
        n_accesses = sum(len(request.blocks) for request in requests)
        unique = len({block for request in requests for block in request.blocks})
        gc.collect()
        gc.freeze()  # a trace is millions of objects that never become garbage
        curve = per_second(n_accesses, lambda requests=requests: lru_curve(requests))  # type: ignore[misc]
        for share in SHARES:
            setup = Setup("lru", max(1, unique * share // 100))
            speed = per_second(n_accesses, lambda requests=requests, setup=setup: replay(requests, setup))  # type: ignore[misc]
            slowest = min(slowest, speed)
            report.add(f"{name}, {share}%", speed, "block accesses/s", baseline=curve)
        gc.unfreeze()
    report.add("slowest", slowest, "block accesses/s", baseline=TARGET)
    report.finish()


if __name__ == "__main__":
    main()
