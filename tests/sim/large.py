"""python -m tests.sim.large [NODES BLOCKS_PER_NODE SPAN_S]: one large cluster under an hour of a real trace, and
what it cost.

The trace is one of those in ``shared/traces``, or where TIERED_TRACES says. What happens often in a small run
happens less often here, in proportion to a lease; what is checked is the same, but for the books of a tier that holds
nothing.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from pathlib import Path

from tests.sim.cluster import Cluster
from tests.sim.engine import EnginePace
from tests.sim.node import Pace
from tests.sim.plan import Plan
from tests.sim.traffic import Multiplied

TRACES = Path(os.environ.get("TIERED_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
TRACE = TRACES / "mooncake_conversation_A.jsonl.gz"

TELL_S = 300.0

UNIQUE_BLOCKS = 100_000
"""In the trace, about."""


def large_plan(n_nodes: int, pool_blocks: int, span_s: float) -> Plan:
    copies = 4
    parts = max(1, round(1.6 * n_nodes * pool_blocks / UNIQUE_BLOCKS / copies))  # enough to fill every pool
    return Plan(
        seed=0,
        n_nodes=n_nodes,
        n_coordinators=2,
        pool_blocks=pool_blocks,
        partitions=4,
        demote="never",
        faults_s=span_s,
        calm_s=0.0,
        n_faults=max(10, round(span_s / 20)),
        sample_s=5.0,
        engine=EnginePace(block_s=0.001, window_blocks=64),
        pace=Pace(lease_s=120.0, heartbeat_s=40.0, announce_s=2.0),
        rounds_s=20.0,
        idle_s=15.0,
        page=2_000,
        audits=False,
        quiet_s=150.0,
        compare_s=100.0,
        settle_s=900.0,
        empty_s=1_800.0,
        trace=Multiplied(TRACE, copies=copies, parts=parts, span_s=span_s),
    )


class LargeCluster(Cluster):
    """Says on stderr how far it is."""

    told_s = 0.0

    def check(self, *, everything: bool) -> None:
        super().check(everything=everything)
        if self.loop.time() >= self.told_s + TELL_S:
            self.told_s = self.loop.time()
            n_blocks = sum(len(node.hot.core.index) for node in self.running())
            print(
                f"{self.told_s:.0f} s: {n_blocks} blocks hot, {self.served.requests} requests, {_peak_gib():.1f} GiB",
                file=sys.stderr,
                flush=True,
            )


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> int:
    n_nodes, pool_blocks, span_s = (int(word) for word in (sys.argv[1:] or ("200", "10000", "3600")))
    gc.freeze()
    gc.set_threshold(200_000, 50, 20)
    began, began_cpu = time.monotonic(), time.process_time()
    report = LargeCluster(large_plan(n_nodes, pool_blocks, span_s)).run()
    took_s, cpu_s = time.monotonic() - began, time.process_time() - began_cpu
    print(report)
    print(
        f"{n_nodes} nodes, {n_nodes * pool_blocks} blocks of capacity, {report.hot_blocks} hot at the end, "
        f"{report.simulated_s:.0f} s simulated in {took_s:.0f} s ({cpu_s:.0f} s of CPU), {_peak_gib():.1f} GiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
