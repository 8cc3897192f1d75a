"""Real worker processes over an embedded server, for benchmarks. Not a benchmark itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from tiered.cli.api import CoordinatorClient
from tiered.cli.launcher import ClusterPlan, LocalCluster
from tiered.errors import TierTimeout

SETTLE_S = 30.0


def start_cluster(*, n_workers: int, hot_bytes: int, redis_bytes: int = 2 << 30) -> LocalCluster:
    cluster = LocalCluster(
        ClusterPlan(n_workers=n_workers, hot_bytes=hot_bytes, redis_bytes=redis_bytes), say=lambda line: None
    )
    cluster.start()
    return cluster


def evict_to_redis(api: CoordinatorClient, tenant: str) -> None:
    """Take the tenant's hot quota away until nothing of it is hot, then give it back."""
    api.change_tenant(tenant, {"hot_limit_bytes": 0})
    wait_until(lambda: api.tenant(tenant).hot.used_bytes == 0, "the hot tier to let go")
    settled: list[int] = []

    def quiet() -> bool:
        settled.append(api.tenant(tenant).redis.used_bytes)
        return len(settled) > 3 and len(set(settled[-3:])) == 1

    wait_until(quiet, "the writes to Redis to end", every_s=0.5)
    api.change_tenant(tenant, {"hot_limit_bytes": None})
    time.sleep(2.0)  # in which a changed quota is promised to be in force


def wait_until(holds: Callable[[], bool], what: str, *, every_s: float = 0.1) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TierTimeout(f"waited {SETTLE_S:g} s for {what}")
        time.sleep(every_s)
