"""GET /metrics of a worker: true while it works, still while it does not, and never in anybody's way."""

from __future__ import annotations

import threading

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.shown import growing, text_of
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import scrape, until
from tiered.metrics.worker import WORKER
from tiered.types import TenantId

T = LAYOUT.block_tokens
N_BLOCKS = 48
"""Too few for all that is asked for, enough for some to be found."""

TENANTS = [TenantId(name) for name in ("red", "green", "blue")]


def tokens(metrics: dict[tuple[str, ...], float], tenant: TenantId) -> dict[str, int]:
    return {key[1]: int(n) for key, n in metrics.items() if key[::2] == ("tiered_tokens_total", tenant)}


def test_scrapes_while_engines_work_are_whole_and_the_books_balance_afterwards(cluster: SmallCluster) -> None:
    cluster.start("w1", "w2", hot=str(N_BLOCKS * LAYOUT.block_bytes), settings=["cluster.heartbeat_s=0.1"])
    cluster.wait_acquainted()
    ports = [cluster.node(name).info.metrics_port for name in ("w1", "w2")]
    ended = threading.Event()
    scrapes: list[dict[tuple[str, ...], float]] = []
    failures: list[BaseException] = []
    asked = dict.fromkeys(TENANTS, 0)

    def look(port: int) -> None:
        try:
            while not ended.is_set():
                scrapes.append(scrape(port))
        except BaseException as error:
            failures.append(error)

    def work(name: str, tenant: TenantId) -> None:
        try:
            with cluster.attach(name) as client:
                for turn in range(40):
                    wanted = prompt(turn % 3, 2 + turn % 5)
                    take(client, wanted, tenant=tenant)
                    save(client, wanted, tenant=tenant, wait_s=0.05)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(name, tenant)) for name in ("w1", "w2") for tenant in TENANTS]
    lookers = [threading.Thread(target=look, args=(port,)) for port in ports]
    for thread in (*workers, *lookers):
        thread.start()
    for thread in workers:
        thread.join(60)
    ended.set()
    for thread in lookers:
        thread.join(10)
    assert failures == []
    assert len(scrapes) > 4
    for metrics in scrapes:
        blocks = [n for key, n in metrics.items() if key[0] == "tiered_pool_blocks"]
        assert sum(blocks) in (0, N_BLOCKS)
    for tenant in TENANTS:
        asked[tenant] = 2 * sum((2 + turn % 5) * T for turn in range(40))
        found = [tokens(scrape(port), tenant) for port in ports]
        assert sum(sum(each.values()) for each in found) == asked[tenant]
        assert sum(each["hot"] for each in found) > 0
        for name, each in zip(("w1", "w2"), found, strict=True):
            until(lambda name=name, tenant=tenant, each=each: _published(cluster, name, tenant) == each, "published")  # type: ignore[misc]


def _published(cluster: SmallCluster, name: str, tenant: TenantId) -> dict[str, int]:
    counts = cluster.node(name).stats.tenants[tenant].tokens
    assert counts.asked == counts.hot + counts.peer + counts.redis + counts.missed
    return {"hot": counts.hot, "peer": counts.peer, "redis": counts.redis, "missed": counts.missed}


def test_nothing_moves_while_nobody_asks(cluster: SmallCluster) -> None:
    settings = ["cluster.heartbeat_s=0.1", "journal.mode=off"]  # what a journal writes, it writes later
    cluster.start("w1", "w2", hot=str(8 * LAYOUT.block_bytes), settings=settings)
    cluster.wait_acquainted()
    with cluster.attach("w1") as client:
        for seed in range(3):
            save(client, prompt(seed, 6))
            take(client, prompt(seed, 8))

        def copies_under_way() -> bool:
            metrics = cluster.metrics("w1")
            puts = sum(n for key, n in metrics.items() if key[0] == "tiered_redis_puts_total")
            demoted = sum(n for key, n in metrics.items() if key[0] == "tiered_demoted_blocks_total")
            return cluster.blocks("w1")["leaving"] > 0 or puts < demoted

        until(lambda: not copies_under_way(), "all copies are made")
        port = cluster.node("w1").info.metrics_port

        def stands_still() -> bool:
            before = growing(text_of(port), WORKER)
            wait_renewed(cluster, "w1", times=3)
            return growing(text_of(port), WORKER) == before

        until(stands_still, "nothing moves", within_s=30)


def wait_renewed(cluster: SmallCluster, name: str, *, times: int) -> None:
    """Until the worker has renewed its lease so often: what is left of it runs down, and is more again."""
    for _ in range(times):
        for what, grown in (("the lease runs", False), ("the lease is renewed", True)):
            left = cluster.node(name).lease_left_s
            until(lambda left=left, grown=grown: _differs(cluster.node(name).lease_left_s, left, grown), what)  # type: ignore[misc]


def _differs(now: float, before: float, grown: bool) -> bool:
    return now > before if grown else now < before


def test_a_worker_without_a_pool_has_metrics_too(cluster: SmallCluster) -> None:
    cluster.start("w1")
    metrics = cluster.metrics("w1")
    assert metrics[("tiered_worker_engines",)] == 0
    assert metrics[("tiered_worker_epoch",)] == cluster.node("w1").epoch
