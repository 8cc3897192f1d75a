"""The SGLang backend on real workers, driven by the threads of a cache controller: bit-equal pages or none."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hicache import (
    Backup,
    Controller,
    FaultInjector,
    HiCacheConfig,
    HostPool,
    LatentPool,
    Request,
    page_keys,
)
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import paused, until
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.sglang.backend import Backend
from tiered.errors import LayoutMismatch

KIB = 1 << 10
N_POOL_PAGES = 600


def _registered(socket_path: str, pool: HostPool, *, tenant: str = "acme", **rank: object) -> Backend:
    extra = {"weights_version": "1", "socket": socket_path, "tenant": tenant}
    backend = Backend(HiCacheConfig(extra_config=extra, **rank))  # type: ignore[arg-type]
    backend.register(pool)
    return backend


@contextmanager
def attached(socket_path: str, pool: HostPool, *, tenant: str = "acme", **rank: object) -> Iterator[Backend]:
    backend = _registered(socket_path, pool, tenant=tenant, **rank)
    until(lambda: _attached(backend), "all its clients are attached")
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def controlled(storage: Backend | FaultInjector, pool: HostPool, **how: bool) -> Iterator[Controller]:
    """Fails where a page was not what it was said to be, or a thread does not end."""
    controller = Controller(storage, pool, **how)
    try:
        yield controller
    finally:
        controller.close()
    assert controller.wrong == []


def _attached(backend: Backend) -> bool:
    rank = backend._rank
    return rank is not None and all(c.attached for c in (rank.clients.query, rank.clients.read, rank.clients.write))  # type: ignore[attr-defined]


def done(*items: Request | Backup) -> None:
    for item in items:
        assert item.done.wait(60), "a request that never ends"


@pytest.fixture
def cluster(redis_server: EmbeddedServer) -> Iterator[SmallCluster]:
    with small_cluster(redis_server) as made:
        yield made


@pytest.mark.parametrize("zero_copy", [True, False], ids=["v1", "generic"])
@pytest.mark.parametrize("pool_type", [HostPool, LatentPool])
def test_another_engine_on_another_node_reads_what_one_computed(
    cluster: SmallCluster, pool_type: type[HostPool], *, zero_copy: bool
) -> None:
    cluster.start("w1", "w2", hot="4MiB")
    cluster.wait_acquainted()
    keys = page_keys("long", 300)  # three batches
    pools = [pool_type(n_pages=N_POOL_PAGES) for _ in range(2)]
    with (
        attached(cluster.socket_path("w1"), pools[0]) as backend,
        controlled(backend, pools[0], zero_copy=zero_copy) as controller,
    ):
        missed = controller.prefetch(keys)
        done(missed)
        backup = controller.backup(keys)
        done(backup)
        assert (missed.hit, backup.written) == (0, 300)
        again = controller.prefetch(keys)
        done(again)
        assert (again.hit, again.read) == (300, 300)
    cluster.wait_announced("w1", 300)
    with (
        attached(cluster.socket_path("w2"), pools[1]) as backend,
        controlled(backend, pools[1], zero_copy=zero_copy) as controller,
    ):
        for request in (controller.prefetch(keys), controller.prefetch(keys[40:], prefix=keys[:40])):
            done(request)
            assert (request.hit, request.read) == (len(request.keys),) * 2


def test_an_engine_that_starts_again_finds_its_pages_and_another_rank_or_tenant_none(cluster: SmallCluster) -> None:
    cluster.start("w1")
    path, keys, pool = cluster.socket_path("w1"), page_keys("p", 20), HostPool()
    with attached(path, pool, tp_size=2) as backend, controlled(backend, pool) as controller:
        done(controller.backup(keys))
    with attached(path, pool, tp_size=2) as backend:
        assert backend.batch_exists(keys) == 20
    with attached(path, pool, tp_size=2, tp_rank=1) as backend:
        assert backend.batch_exists(keys) == 0
    with attached(path, pool, tp_size=2, tenant="other") as backend:
        assert backend.batch_exists(keys) == 0


def test_a_pool_that_is_not_the_workers_is_refused_at_the_start_with_both_sides_shown(cluster: SmallCluster) -> None:
    cluster.start("w1")
    path = cluster.socket_path("w1")
    both = r"packed as sglang/page_head\).*packed as sglang/page_first\)"
    with attached(path, HostPool()), pytest.raises(LayoutMismatch, match=both):
        _registered(path, HostPool(layout="page_head"))


def test_an_engine_that_is_started_first_goes_on_without_and_attaches_by_itself(cluster: SmallCluster) -> None:
    pool, keys = HostPool(), page_keys("p", 8)
    backend = _registered(cluster.socket_path("w1"), pool)
    with controlled(backend, pool) as controller:
        request, backup = controller.prefetch(keys), controller.backup(keys)
        done(request, backup)
        assert (request.hit, backup.written) == (0, 0)
        cluster.start("w1")
        until(lambda: _attached(backend), "it attaches", within_s=15)
        backup = controller.backup(keys)
        done(backup)
        assert backup.written == 8
    backend.close()


@pytest.mark.parametrize("zero_copy", [True, False], ids=["v1", "generic"])
@pytest.mark.parametrize("pass_prefix", [True, False], ids=["prefix", "no-prefix"])
def test_any_mix_of_requests_under_faults_gets_right_pages_or_none(
    cluster: SmallCluster, *, zero_copy: bool, pass_prefix: bool
) -> None:
    """A pool far too small, so that pages leave for Redis and come back, in pieces, all the time."""
    cluster.start("w1", "w2", hot=str(160 * KIB), settings=["pool.demote=always"])
    cluster.wait_acquainted()
    rng = random.Random(7)
    shared = page_keys("system", 60)
    prompts = [[*shared, *page_keys(f"user {n}", 150, prefix=shared)] for n in range(4)]
    n_read = 0
    for name in ("w1", "w2"):
        pool = HostPool(n_pages=N_POOL_PAGES)
        with attached(cluster.socket_path(name), pool) as backend:
            faulty = FaultInjector(backend, delay_s=0.003, failure=0.05, seed=3)
            with controlled(faulty, pool, zero_copy=zero_copy, pass_prefix=pass_prefix) as controller:
                for _ in range(12):
                    asked: list[Request | Backup] = []
                    for _ in range(4):
                        prompt = rng.choice(prompts)
                        at = rng.choice((0, rng.randrange(len(prompt) - 1)))
                        end = rng.randrange(at + 1, len(prompt) + 1)
                        asked.append(controller.prefetch(prompt[at:end], prefix=prompt[:at]))
                        asked.append(controller.backup(prompt[at:end], prefix=prompt[:at]))
                    for item in asked:
                        if isinstance(item, Request) and rng.random() < 0.2:
                            item.cancelled.set()
                    done(*asked)
                    n_read += sum(item.read for item in asked if isinstance(item, Request))
    assert n_read > 500


def test_a_worker_killed_in_the_middle_costs_its_pages_and_nothing_else(cluster: SmallCluster) -> None:
    (worker,) = cluster.start("w1", hot="4MiB")
    pool, keys = HostPool(n_pages=N_POOL_PAGES), page_keys("p", 250)
    with attached(cluster.socket_path("w1"), pool) as backend, controlled(backend, pool) as controller:
        done(controller.backup(keys))
        for wait_pages in (1, 60):
            asked: list[Request | Backup] = []
            while True:
                asked.append(controller.prefetch(keys))
                asked.append(controller.backup(page_keys(len(asked), 100)))
                if sum(item.read for item in asked if isinstance(item, Request)) >= wait_pages:
                    break
            worker.kill()
            done(*asked)  # however many were queued
            began = time.monotonic()
            request = controller.prefetch(keys)
            done(request)
            assert request.read == 0
            assert time.monotonic() - began < 10
            worker = cluster.restart("w1")
            until(lambda: _attached(backend), "it attaches again", within_s=15)
            done(controller.backup(keys))
            request = controller.prefetch(keys)
            done(request)
            assert request.read == 250


def test_a_worker_that_answers_nothing_is_given_up_in_time(cluster: SmallCluster) -> None:
    (worker,) = cluster.start("w1", hot="4MiB")
    pool, keys = HostPool(n_pages=N_POOL_PAGES), page_keys("p", 100)
    with attached(cluster.socket_path("w1"), pool) as backend, controlled(backend, pool) as controller:
        done(controller.backup(keys))
        with paused(worker.pid):
            began = time.monotonic()
            request, backup = controller.prefetch(keys), controller.backup(page_keys("q", 100))
            done(request, backup)
            assert (request.read, backup.written) == (0, 0)
            assert time.monotonic() - began < 5
            began = time.monotonic()
            assert backend.batch_exists(keys) == 0
            assert time.monotonic() - began < 0.5


def test_a_redis_that_is_gone_costs_what_is_only_there(private_redis_server: EmbeddedServer, tmp_path: Path) -> None:
    with small_cluster(private_redis_server, patient=False) as cluster:
        cluster.start("w1", hot="4MiB")
        pool, keys = HostPool(n_pages=N_POOL_PAGES), page_keys("p", 130)
        with attached(cluster.socket_path("w1"), pool) as backend, controlled(backend, pool) as controller:
            done(controller.backup(keys[:100]))
            private_redis_server.stop()
            began = time.monotonic()
            request = controller.prefetch(keys)
            done(request)
            backup = controller.backup(keys[100:], prefix=keys[:100])
            done(backup)
            assert (request.read, backup.written) == (100, 30)
            assert time.monotonic() - began < 5
