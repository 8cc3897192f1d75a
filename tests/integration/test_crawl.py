"""A source that becomes a crawl: requests go on as without a cache, and it is used again once it has healed.

Nothing here is a claim of timing beyond bounds that a busy machine keeps; ``benchmarks/crawl.py`` has figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count

import msgspec
import pytest

from tests.integration.test_peer import BLOCK, SETTINGS, N, put_into_redis
from tests.support.content import TENANT, hashes_of, large_scope, prompt, save, wrong_blocks
from tests.support.slow_relay import SlowRelay
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient
from tiered.types import Source

SCOPE = large_scope()
POOL = str(64 * BLOCK)
CRAWL = 20_000.0
"""Bytes a second: a block takes 26 s."""

PREFILL_S = 8.0
"""Of one prompt here. It makes the patience about 0.3 s."""

QUICK_S = 2.5
"""Far less than the 5 s that an engine would wait for a load, far more than the patience."""

SEEDS = 7


@dataclass
class Crawl:
    """w2 reaches what holds the prompts through the relay."""

    cluster: SmallCluster
    client: RemoteClient
    relay: SlowRelay

    def take(self, seed: int) -> tuple[list[Source], float]:
        """Match, load, check every byte, release: where its blocks came from, and how long that took."""
        began = time.monotonic()
        match = self.client.match(prompt(seed, N), tenant=TENANT)
        loaded = self.client.load(match)
        took_s = time.monotonic() - began
        pool = self.client.pool
        assert pool is not None
        assert wrong_blocks(pool, loaded.block_ids, hashes_of(prompt(seed, N), scope=SCOPE)) == []
        assert self.client.release(match, used_tokens=0)
        return list(loaded.sources), took_s

    def compute(self) -> None:
        self.client.note_prefill(n_tokens=16 * N, took_s=PREFILL_S)

    def n_probes(self) -> float:
        return self.cluster.metrics("w2")[("tiered_fetch_probes_total",)]

    def decisions(self) -> dict[str, int]:
        metrics = self.cluster.metrics("w2")
        return {key[1]: int(n) for key, n in metrics.items() if key[0] == "tiered_fetch_plans_total" and n}


@contextmanager
def from_a_peer(cluster: SmallCluster) -> Iterator[Crawl]:
    settings = [*SETTINGS, "cluster.peer_timeout_s=2"]
    cluster.start("w1", hot=str(2 * SEEDS * N * BLOCK), settings=settings)
    with cluster.attach("w1", scope=SCOPE) as client:
        for seed in range(SEEDS):
            assert save(client, prompt(seed, N), scope=SCOPE).n_stored == N
    cluster.wait_announced("w1", SEEDS * N)
    view = cluster.node("w1")
    with SlowRelay(view.info.peer_port) as relay:
        info = msgspec.structs.replace(view.info, peer_port=relay.port)
        cluster.client.hset(cluster.keys.nodes(), "w1", msgspec.msgpack.encode((info, view.epoch)))
        cluster.start("w2", hot=POOL, settings=settings)
        with cluster.attach("w2", scope=SCOPE) as client:
            yield Crawl(cluster, client, relay)


@contextmanager
def from_redis(cluster: SmallCluster) -> Iterator[Crawl]:
    for seed in range(SEEDS):
        put_into_redis(cluster, prompt(seed, N))
    with SlowRelay(cluster.server.url.removeprefix("unix://")) as relay:
        through = ["--redis-url", f"redis://127.0.0.1:{relay.port}/0"]
        cluster.spawn("w2", *SETTINGS, "redis.value_timeout_s=2", hot=POOL, extra=through).wait_ready()
        with cluster.attach("w2", scope=SCOPE) as client:
            yield Crawl(cluster, client, relay)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("place", "source"), [(from_a_peer, Source.PEER), (from_redis, Source.REDIS)])
def test_a_source_that_becomes_a_crawl_is_computed_around_and_used_again_when_it_heals(
    cluster: SmallCluster, place: Callable[[SmallCluster], AbstractContextManager[Crawl]], source: Source
) -> None:
    with place(cluster) as crawl:
        seeds = count()
        assert crawl.take(next(seeds))[0] == [source] * N  # no engine has reported yet
        crawl.compute()
        assert crawl.take(next(seeds))[0] == [source] * N
        assert crawl.decisions() == {"fetch_all": 1}

        crawl.relay.slow_to(CRAWL)
        sources, took_s = crawl.take(next(seeds))
        assert len(sources) < N
        assert took_s < QUICK_S
        for _ in range(3):
            sources, took_s = crawl.take(next(seeds))
            assert sources == []
            assert took_s < QUICK_S
        assert crawl.decisions() == {"fetch_all": 2, "compute": 3}

        last = next(seeds)
        until(lambda: crawl.take(last)[0] == [] and crawl.n_probes() > 0, "it is tried again", within_s=40.0)
        crawl.relay.slow_to(None)
        until(lambda: crawl.take(last)[0] in ([source] * N, [Source.HOT] * N), "it is used again", within_s=40.0)
        metrics = cluster.metrics("w2")
        assert metrics[("tiered_fetch_out_of_patience_total",)] == 1
        assert metrics[("tiered_prefill_tokens_per_second",)] == pytest.approx(16 * N / PREFILL_S)


def test_a_report_to_a_worker_that_is_gone_is_no_error(cluster: SmallCluster) -> None:
    (worker,) = cluster.start("w1", hot=POOL)
    with cluster.attach("w1", scope=SCOPE) as client:
        worker.kill()
        for _ in range(2):  # the one that finds out, and one after it
            client.note_prefill(n_tokens=2_000, took_s=1.0)
        assert not client.attached
