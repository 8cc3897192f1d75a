"""Lookups at real workers become a curve that a real coordinator answers with."""

from __future__ import annotations

from typing import Any

from tests.support.content import LAYOUT, TENANT, prompt, save
from tests.support.coordinator_process import CoordinatorProcess
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient

N_PROMPTS, N_BLOCKS = 24, 32


def look(client: RemoteClient, seed: int) -> None:
    match = client.match(prompt(seed, N_BLOCKS), tenant=TENANT)
    client.release(match, used_tokens=len(match.block_ids) * LAYOUT.block_tokens)
    if len(match.block_ids) < N_BLOCKS:
        save(client, prompt(seed, N_BLOCKS))


def test_a_loop_over_more_than_fits_shows_what_more_memory_would_buy(cluster: SmallCluster) -> None:
    """Twenty-four prompts in turn, on a node that holds eight: five times as much more finds them."""
    block_bytes = LAYOUT.block_bytes
    cluster.start("w1", hot=str(8 * N_BLOCKS * block_bytes), settings=["pool.policy=lru", "pool.demote=never"])
    with cluster.attach("w1") as client:
        for _ in range(4):
            for seed in range(N_PROMPTS):
                look(client, seed)
    path = f"/v1/capacity?tenant={TENANT}&tier=hot&more_bytes={40 * N_BLOCKS * block_bytes}"
    coordinator = CoordinatorProcess(cluster.server, cluster.namespace, cluster.directory, "c1").wait_ready()
    try:

        def found() -> dict[str, Any]:
            (capacity,) = coordinator.get(path)["tenants"]
            assert isinstance(capacity, dict)
            return capacity

        def has_seen_all() -> bool:
            """A published curve may be ten seconds old."""
            what_if = found()["what_if"]
            return bool(what_if) and what_if[-1]["hit_ratio"] > 0.6

        until(has_seen_all, "the whole curve has reached the coordinator", within_s=40.0)
        capacity = found()
        assert capacity["nodes"] == 1
        assert capacity["measured"]["hit_ratio"] < 0.2
        assert capacity["predicted"]["hit_ratio"] < 0.3
        assert capacity["what_if"][-1]["points"] > 40
        assert capacity["what_if"][-1]["hot_points"] > 40
    finally:
        coordinator.process.terminate()
        coordinator.process.wait(10.0)
