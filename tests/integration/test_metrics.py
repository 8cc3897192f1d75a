"""docs/metrics.md against real processes: each row is shown, each series has a row, and the numbers add up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.content import LAYOUT, hashes_of, prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.served import scripted
from tests.support.shown import differences, growing, shown, sums, text_of, total, unseen
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer
from tiered.metrics.coordinator import COORDINATOR
from tiered.metrics.serving import SERVING
from tiered.metrics.worker import WORKER
from tiered.types import TenantId

RED, GREEN, BLUE, GOLD = (TenantId(name) for name in ("red", "green", "blue", "gold"))
N_BLOCKS = 32
B = LAYOUT.block_bytes
IDLE_S = 3.0


class Busy:
    """Two workers and a coordinator that have had something of everything to do."""

    def __init__(self, cluster: SmallCluster, coordinator: CoordinatorProcess) -> None:
        self.cluster = cluster
        self.coordinator = coordinator

    def workers(self) -> list[str]:
        return [text_of(self.cluster.node(name).info.metrics_port) for name in self.cluster.workers]

    def cluster_wide(self) -> str:
        answer = httpx.get(f"{self.coordinator.url}/metrics", timeout=5.0, trust_env=False)
        answer.raise_for_status()
        return answer.text

    def work(self) -> None:
        cluster = self.cluster
        with cluster.attach("w1") as one, cluster.attach("w2") as two:
            one.note_prefill(n_tokens=2_000, took_s=2.0)
            two.note_prefill(n_tokens=2_000, took_s=2.0)
            for turn in range(6):
                for tenant in (RED, GREEN, BLUE):
                    save(one, prompt(turn, 8), tenant=tenant)
                    take(one, prompt(turn, 10), tenant=tenant)
            cluster.wait_announced("w1", cluster.blocks("w1")["ready"])
            until(self._is_quiet, "all copies are made")
            for turn in range(6):
                for tenant in (RED, GREEN, BLUE):
                    take(two, prompt(turn, 8), tenant=tenant)
            until(lambda: total(self.workers(), "tiered_second_blocks") > 0, "second copies were looked for")
        until(self._is_quiet, "all copies are made")

    def spoil(self) -> None:
        """A value in Redis is damaged, and found to be so by whoever reads it next."""
        cluster = self.cluster
        with cluster.attach("w2") as two:
            for turn in range(6):
                for block_hash in hashes_of(prompt(turn, 8), tenant=BLUE):
                    key = cluster.keys.block(block_hash)
                    if cluster.client.exists(key):
                        cluster.client.setrange(key, 2_000, b"\0spoilt\0")
                take(two, prompt(turn, 8), tenant=BLUE)

    def _is_quiet(self) -> bool:
        for name in self.cluster.workers:
            metrics = self.cluster.metrics(name)
            puts = sum(n for key, n in metrics.items() if key[0] == "tiered_redis_puts_total")
            copied = sum(n for key, n in metrics.items() if key[0] == "tiered_demoted_blocks_total")
            if self.cluster.blocks(name)["leaving"] or puts < copied:
                return False
        return True


@pytest.fixture(scope="module")
def busy(redis_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    directory: Path = tmp_path_factory.mktemp("coordinator")
    with (
        small_cluster(redis_server) as cluster,
        coordinators(1, redis_server, cluster.namespace, directory, "cluster.snapshot_interval_s=0.1") as replicas,
    ):
        cluster.set_policy(RED, hot_limit_bytes=12 * B, hot_reserved_bytes=4 * B, redis_limit_bytes=1 << 20)
        cluster.set_policy(GREEN, copies=2, hot_reserved_bytes=8 * B, redis_reserved_bytes=1 << 16)
        cluster.set_policy(GOLD, hot_total_limit_bytes=40 * B)
        cluster.tenants.set_capacity(64 << 20)
        cluster.start("w1", "w2", hot=str(N_BLOCKS * B), settings=["cluster.heartbeat_s=0.2"])
        cluster.wait_acquainted()
        found = Busy(cluster, replicas[0])
        found.work()
        yield found


def test_every_series_of_a_worker_has_a_row_and_every_row_a_series(busy: Busy) -> None:
    found = shown(*busy.workers())
    assert differences(found, WORKER) == []
    assert unseen(found) == set()


def test_every_series_of_a_coordinator_has_a_row_and_every_row_a_series(busy: Busy) -> None:
    def audited() -> bool:
        return "tiered_redis_difference_bytes" in busy.cluster_wide()

    until(audited, "an audit found nobody writing", within_s=30.0)
    found = shown(busy.cluster_wide())
    assert differences(found, COORDINATOR) == []
    assert unseen(found) == set()


def test_every_series_of_a_server_has_a_row_and_every_row_a_series() -> None:
    with scripted() as (server, _):
        server.chat()
        found = shown(server.http.get("/metrics").text)
    assert differences(found, SERVING) == []
    assert unseen(found) == set()


def test_tokens_found_and_missed_are_those_asked_for_and_the_cluster_has_as_many_as_its_workers(busy: Busy) -> None:
    workers = busy.workers()
    outcomes: set[str] = set()
    by_tenant: dict[tuple[str, ...], float] = {}
    by_outcome: dict[tuple[str, ...], float] = {}
    for text in workers:
        tokens = sums(text, "tiered_tokens_total", "tenant", "outcome")
        asked = sums(text, "tiered_asked_tokens_total", "tenant")
        assert sums(text, "tiered_tokens_total", "tenant") == asked
        outcomes |= {outcome for (_, outcome), n in tokens.items() if n}
        for key, n in tokens.items():
            by_outcome[key] = by_outcome.get(key, 0) + n
        for key, n in asked.items():
            by_tenant[key] = by_tenant.get(key, 0) + n
    assert outcomes == {"hot", "peer", "redis", "missed"}

    def told() -> bool:
        text = busy.cluster_wide()
        whole = sums(text, "tiered_tenant_tokens_total", "tenant", "outcome")
        asked = sums(text, "tiered_tenant_asked_tokens_total", "tenant")
        return {k: n for k, n in whole.items() if n} == {k: n for k, n in by_outcome.items() if n} and {
            k: n for k, n in asked.items() if n
        } == {k: n for k, n in by_tenant.items() if n}

    until(told, "the coordinator has read what the workers published")


def test_what_must_agree_differs_by_nothing(busy: Busy) -> None:
    workers = busy.workers()
    for text in workers:
        assert sums(text, "tiered_pool_difference_blocks") == {(): 0}
        assert sums(text, "tiered_hot_difference_bytes") == {(): 0}
        caused = sums(text, "tiered_evictions_caused_blocks_total")
        assert caused == sums(text, "tiered_evictions_suffered_blocks_total")
    assert total(workers, "tiered_evictions_caused_blocks_total") > 0
    assert sums(busy.cluster_wide(), "tiered_cluster_hot_difference_bytes") == {(): 0}

    def audited() -> bool:
        return bool(sums(busy.cluster_wide(), "tiered_redis_difference_bytes", "between"))

    until(audited, "an audit found nobody writing", within_s=30.0)
    found = sums(busy.cluster_wide(), "tiered_redis_difference_bytes", "between")
    assert found == {("records",): 0, ("books",): 0, ("stored",): 0}


def test_everything_that_takes_time_was_timed_and_prefill_was_saved(busy: Busy) -> None:
    workers = busy.workers()
    for name in ("match", "load", "save", "demote", "peer_fetch", "redis_call"):
        assert total(workers, f"tiered_{name}_duration_seconds_count") > 0, name
        assert total(workers, f"tiered_{name}_duration_seconds_sum") > 0, name
    kinds = sums(workers[0], "tiered_redis_call_duration_seconds_count", "kind")
    assert {kind for (kind,), n in kinds.items() if n} >= {"lookup", "put", "control"}
    found = total(workers, "tiered_tokens_total") - sum(
        n for text in workers for (o,), n in sums(text, "tiered_tokens_total", "outcome").items() if o == "missed"
    )
    rate = min(sums(text, "tiered_prefill_tokens_per_second")[()] for text in workers)
    assert total(workers, "tiered_saved_prefill_seconds_total") == pytest.approx(found / rate)


def test_no_counter_moves_while_engines_are_attached_and_ask_for_nothing(busy: Busy) -> None:
    def all_of_them() -> list[dict[tuple[str, ...], float]]:
        return [growing(busy.cluster_wide(), COORDINATOR), *(growing(text, WORKER) for text in busy.workers())]

    with busy.cluster.attach("w1"), busy.cluster.attach("w2"):
        since, seen = time.monotonic(), all_of_them()

        def still() -> bool:
            nonlocal since, seen
            before, seen = seen, all_of_them()
            if seen != before:
                since = time.monotonic()
            return time.monotonic() - since > IDLE_S

        until(still, "what had begun before is done", within_s=30.0)
        before, ends_at = all_of_them(), time.monotonic() + IDLE_S
        until(lambda: time.monotonic() > ends_at, "some renewals, reports, audits and comparisons later")
        after = all_of_them()
        moved = [key for was, now in zip(before, after, strict=True) for key in now if now[key] != was.get(key)]
        assert moved == []
        heartbeats = [sums(text, "tiered_worker_heartbeat_age_seconds")[()] for text in busy.workers()]
        assert max(heartbeats) < IDLE_S  # leases were renewed meanwhile


def test_a_block_that_redis_gave_back_damaged_is_counted(busy: Busy) -> None:
    busy.spoil()
    assert sums(busy.workers()[1], "tiered_damaged_blocks_total", "source")["redis",] > 0


def test_a_worker_that_is_killed_is_lost_to_the_coordinator_within_its_lease(busy: Busy) -> None:
    assert sums(busy.cluster_wide(), "tiered_nodes_lost_total") == {(): 0}
    busy.cluster.workers["w2"].kill()

    def down() -> bool:
        return sums(busy.cluster_wide(), "tiered_node_up", "node").get(("w2",), 0.0) == 0.0

    until(down, "its lease has lapsed", within_s=10.0)
    until(lambda: sums(busy.cluster_wide(), "tiered_nodes_lost_total") == {(): 1}, "it is struck off", within_s=10.0)
