"""SIGTERM ends a worker with exit code 0 in bounded time, whatever is under way, and it says goodbye."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt, save, take
from tests.support.faulty_relay import Fault, FaultyRelay
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import WorkerProcess, paused, scrape, until
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import PeerAddress
from tiered.tiers.peer import PeerTier
from tiered.types import Source

STOP_S = 4.0
"""What ``tiered up`` grants a worker before it kills it."""


def stop(worker: WorkerProcess) -> None:
    assert worker.stop(within_s=STOP_S) == 0, worker.log
    assert not Path(worker.socket_path).exists()


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_worker_with_engines_attached_stops_and_leaves_the_cluster(cluster: SmallCluster) -> None:
    first, second = cluster.start("w1", "w2")
    with cluster.attach("w1") as client, cluster.attach("w1") as other:
        save(client, prompt(1, 4))
        match = other.match(prompt(1, 4), tenant=TENANT)
        take(client, prompt(1, 4))
        until(lambda: cluster.node("w1").stats.tenants, "its counts are published")
        stop(first)
        assert cluster.view("w1") is None
        assert not other.release(match, used_tokens=0)
        assert take(client, prompt(1, 4)) == Counter()
    tokens = cluster.membership.retired_tokens()[TENANT]
    assert tokens.asked == 2 * 4 * LAYOUT.block_tokens  # what an engine never released it did not use
    assert (tokens.hot, tokens.missed) == (4 * LAYOUT.block_tokens, 4 * LAYOUT.block_tokens)
    assert second.process.is_alive()


def test_a_worker_that_waits_for_a_silent_redis_on_an_engines_behalf_stops(own_cluster: SmallCluster) -> None:
    [worker] = own_cluster.start("w1", hot=str(8 * LAYOUT.block_bytes))
    with own_cluster.attach("w1") as client, own_cluster.attach("w1") as other:
        save(client, prompt(1, 8))
        save(client, prompt(2, 8))
        until(lambda: own_cluster.metrics("w1")[("tiered_redis_written_bytes_total",)] > 0, "some went to Redis")
        match = client.match(prompt(1, 8), tenant=TENANT)
        assert match.n_redis > 0
        port = own_cluster.node("w1").info.metrics_port
        with paused(own_cluster.server.pid):
            loading = in_background(lambda: client.load(match, deadline_s=30.0))
            saving = in_background(lambda: save(other, prompt(3, 8), wait_s=30.0))
            port_blocks = ("tiered_pool_blocks", "filling")
            until(lambda: scrape(port)[port_blocks] > 0, "the load is under way")
            stop(worker)
            loading.join(10)
            saving.join(10)
            assert not loading.is_alive()
            assert not saving.is_alive()


def test_a_worker_that_is_sending_to_a_peer_stops(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1", hot="64MiB")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4000), wait_s=10)
    view = cluster.node("w1")
    hashes = hashes_of(prompt(1, 4000))
    outs = [memoryview(bytearray(LAYOUT.block_bytes)) for _ in hashes]
    root = scope_id(SCOPE, label=tenant_label(TENANT))
    with FaultyRelay(view.info.peer_port, Fault.STALL, after_bytes=1 << 20) as relay:
        tier = PeerTier("asker", "", timeout_s=5.0)
        address = PeerAddress("w1", view.epoch, "127.0.0.1", relay.port)
        fetching = in_background(lambda: tier.fetch(address, hashes, outs, scope_id=root))
        assert relay.reached.wait(10)
        stop(worker)
        relay.drop()
        fetching.join(10)
        tier.close()


def test_a_worker_whose_redis_is_silent_stops(own_cluster: SmallCluster) -> None:
    [worker] = own_cluster.start("w1", hot=str(32 * LAYOUT.block_bytes), settings=["pool.free_target=0.5"])
    with own_cluster.attach("w1") as client, paused(own_cluster.server.pid):
        for seed in range(1, 5):  # demotions queue up, and none can be written
            save(client, prompt(seed, 32), wait_s=0.05)
        started = time.monotonic()
        stop(worker)
        assert time.monotonic() - started < STOP_S


def test_what_was_demoted_before_a_stop_is_in_redis_afterwards(cluster: SmallCluster) -> None:
    first, _ = cluster.start("w1", "w2", hot=str(16 * LAYOUT.block_bytes), settings=["pool.free_target=0"])
    with cluster.attach("w1") as client:
        save(client, prompt(1, 16))
        save(client, prompt(2, 16))
        demoted = cluster.metrics("w1")[("tiered_demoted_blocks_total", TENANT)]
    stop(first)
    assert demoted > 0
    with cluster.attach("w2") as client:
        assert take(client, prompt(1, 16)) == Counter({Source.REDIS: int(demoted)})


def test_scrapes_during_a_stop_leave_no_stack_in_the_log(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    port = cluster.node("w1").info.metrics_port
    ended = threading.Event()

    def hammer() -> None:
        while not ended.is_set():
            with contextlib.suppress(URLError, ConnectionError):  # it is going away, which is the point
                scrape(port)

    threads = [in_background(hammer) for _ in range(3)]
    try:
        with cluster.attach("w1") as client:
            save(client, prompt(1, 4))
            stop(worker)
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)


def test_a_second_signal_does_not_break_the_orderly_stop(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1") as client:
        save(client, prompt(1, 4))
        worker.process.terminate()
        worker.process.terminate()
        stop(worker)
    assert cluster.view("w1") is None
