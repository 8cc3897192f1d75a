"""python -m tests.sim SEED [SEED ...], or FIRST-LAST: run those, say how each went, and end with 1 if one failed.

A run depends on its seed alone where hashes of strings do not change from process to process: PYTHONHASHSEED=0.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback

from tests.sim.cluster import Cluster
from tests.sim.plan import plan_of


def seeds_of(words: list[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        first, dash, last = word.partition("-")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return found


def main() -> int:
    failed = 0
    gc.freeze()  # what was imported is no run's garbage
    gc.disable()
    for seed in seeds_of(sys.argv[1:]):
        gc.collect()  # between runs: within one it would cost more than it brings
        began = time.process_time()
        try:
            report = Cluster(plan_of(seed)).run()
        except Exception:
            failed += 1
            print(f"seed {seed} failed\n{traceback.format_exc()}", flush=True)
        else:
            print(f"{report} cpu {time.process_time() - began:.2f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
