"""The worker is killed, paused or replaced under its engines: they go on in time and come back by themselves."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.content import LAYOUT, SCOPE, TENANT, filler, hashes_of, prompt, save, take, wrong_blocks
from tests.support.small_cluster import PATIENT, SmallCluster
from tests.support.worker_process import paused, until
from tiered.client.port import Loaded
from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.errors import LayoutMismatch, TieredError, TierUnavailable
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, Source, TenantId

T = LAYOUT.block_tokens
OPTIONS = RemoteOptions(call_timeout_s=0.5, grace_s=0.5)
SLACK_S = 0.75
"""On top of a deadline: this machine has other things to do."""


def within(seconds: float, call: Callable[[], object]) -> object:
    """What the call returns, which has to be in time."""
    started = time.monotonic()
    answer = call()
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.2f} s, {seconds:g} s are allowed"
    return answer


def assert_all_calls_miss(client: RemoteClient, *, within_s: float) -> None:
    assert within(within_s, lambda: client.match(prompt(1, 4), tenant=TENANT).n_blocks) == 0
    assert within(within_s, lambda: take(client, prompt(1, 4))) == Counter()
    saved = within(within_s, lambda: save(client, prompt(7, 4), wait_s=0.25))
    assert (saved.n_stored, saved.reason) == (0, "unavailable")  # type: ignore[attr-defined]


def test_an_engine_goes_on_without_its_worker_and_attaches_again_to_the_next(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1", options=OPTIONS) as client:
        save(client, prompt(1, 4))
        match = client.match(prompt(1, 4), tenant=TENANT)
        worker.kill()
        assert within(SLACK_S, lambda: client.load(match)) == Loaded()
        assert within(SLACK_S, lambda: client.release(match, used_tokens=4 * T)) is False
        assert_all_calls_miss(client, within_s=SLACK_S)
        assert (client.pool, client.attached, client.node) == (None, False, "")

        cluster.restart("w1")
        until(lambda: client.attached, "the client attached again by itself", within_s=15)
        assert take(client, prompt(1, 4)) == Counter()  # the memory went with the old worker
        assert save(client, prompt(1, 4)).n_stored == 4
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})


def test_an_engine_may_come_before_its_worker(cluster: SmallCluster) -> None:
    client = RemoteClient.attach_later(cluster.socket_path("w1"), SCOPE, options=OPTIONS)
    try:
        assert_all_calls_miss(client, within_s=SLACK_S)
        cluster.start("w1")
        until(lambda: client.attached, "the client attached by itself", within_s=15)
        assert save(client, prompt(1, 4)).n_stored == 4
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})
    finally:
        client.close()


def test_an_engine_whose_worker_serves_another_model_says_so_and_attaches_once_it_does_not(
    cluster: SmallCluster, caplog: pytest.LogCaptureFixture
) -> None:
    other = msgspec.structs.replace(SCOPE, layout=msgspec.structs.replace(LAYOUT, interior="another's"))
    [worker] = cluster.start("w1")
    RemoteClient.attach(cluster.socket_path("w1"), other).close()
    client = RemoteClient.attach_later(cluster.socket_path("w1"), SCOPE, options=OPTIONS)
    try:
        until(lambda: "packed as another's" in caplog.text, "both layouts are shown")
        assert LAYOUT.describe() in caplog.text
        assert_all_calls_miss(client, within_s=SLACK_S)
        worker.kill()
        cluster.restart("w1")
        until(lambda: client.attached, "the client attached by itself", within_s=20)
        assert caplog.text.count("packed as another's") == 1
    finally:
        client.close()


def test_a_match_of_an_earlier_worker_is_never_taken_for_one_of_the_next(cluster: SmallCluster) -> None:
    """Both workers count connections and leases from 1, so the numbers of the two lives are the same."""
    [worker] = cluster.start("w1")
    with cluster.attach("w1", options=OPTIONS) as client:
        save(client, prompt(1, 4))
        old = client.match(prompt(1, 4), tenant=TENANT)
        worker.kill()
        client.match(prompt(1, 4), tenant=TENANT)
        cluster.restart("w1")
        until(lambda: client.attached, "the client attached again by itself", within_s=15)
        other = TenantId("globex")
        save(client, prompt(2, 4), tenant=other)
        current = client.match(prompt(2, 4), tenant=other)
        assert current.lease == old.lease, "the two lives were to give the same numbers"
        assert client.load(old) == Loaded()
        assert not client.release(old, used_tokens=0)
        assert client.release(current, used_tokens=0)


@pytest.mark.parametrize("signal_", ["killed", "paused"])
def test_a_save_whose_worker_goes_away_in_the_middle_says_so(cluster: SmallCluster, signal_: str) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1", options=OPTIONS) as client:
        hashes = hashes_of(prompt(1, 4))

        def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            worker.kill() if signal_ == "killed" else worker.pause()
            filler(hashes)(pool, block_ids, first_index)  # the memory is ours to write as long as we map it

        saved = within(2 * SLACK_S, lambda: client.save(prompt(1, 4), tenant=TENANT, fill=fill))
        assert (saved.n_stored, saved.reason) == (0, "unavailable")  # type: ignore[attr-defined]


def test_every_call_on_a_paused_worker_ends_in_time_and_works_again_afterwards(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    with cluster.attach("w1", options=OPTIONS) as client, cluster.attach("w1", options=OPTIONS) as loading:
        save(client, prompt(1, 4))
        match = loading.match(prompt(1, 4), tenant=TENANT)
        with paused(worker.pid):
            bound = OPTIONS.call_timeout_s + SLACK_S
            assert within(bound, lambda: client.match(prompt(1, 4), tenant=TENANT).n_blocks) == 0
            assert within(bound, lambda: loading.load(match, deadline_s=0.2)) == Loaded()
            assert within(bound, lambda: loading.release(match, used_tokens=0)) is False
            assert_all_calls_miss(client, within_s=bound)
            # Attaching anew fails within its own deadline.
            options = RemoteOptions(attach_timeout_s=0.5)
            with pytest.raises(TieredError, match=r"w1\.sock"):
                within(0.5 + SLACK_S, lambda: RemoteClient.attach(cluster.socket_path("w1"), SCOPE, options=options))
        until(lambda: client.attached and loading.attached, "both attached again", within_s=15)
        assert take(client, prompt(1, 4)) == Counter({Source.HOT: 4})
        assert take(loading, prompt(1, 4)) == Counter({Source.HOT: 4})
        until(lambda: cluster.blocks("w1")["filling"] == 0, "what was asked before the pause is given back")


def test_what_is_read_while_the_worker_is_away_is_never_trusted(cluster: SmallCluster) -> None:
    """The pins' time runs on while the worker is paused: a release afterwards tells whether they held."""
    [worker] = cluster.start("w1", hot=str(4 * LAYOUT.block_bytes), settings=["pool.match_lease_s=0.2"])
    with cluster.attach("w1") as client, cluster.attach("w1") as other:
        save(client, prompt(1, 4))
        match = client.match(prompt(1, 4), tenant=TENANT)
        with paused(worker.pid):
            pool = client.pool
            assert pool is not None
            ends = time.monotonic() + 0.25
            until(lambda: time.monotonic() > ends, "the lease's time is over")
            assert wrong_blocks(pool, match.block_ids, hashes_of(prompt(1, 4))) == []
        until(lambda: save(other, prompt(2, 4), wait_s=0.1).n_stored == 4, "the pins ended")
        assert not client.release(match, used_tokens=4 * T)


def test_a_client_that_is_closed_does_not_come_back(cluster: SmallCluster) -> None:
    [worker] = cluster.start("w1")
    client = RemoteClient.attach(cluster.socket_path("w1"), SCOPE, options=OPTIONS)
    with cluster.attach("w1") as witness:
        client.close()
        assert client.match(prompt(1, 1), tenant=TENANT).n_blocks == 0
        assert save(client, prompt(1, 1)).reason == "unavailable"
        until(lambda: cluster.node("w1").stats.engines == 1, "only the witness is attached")
        worker.kill()
        witness.match(prompt(1, 1), tenant=TENANT)
        cluster.restart("w1")
        until(lambda: witness.attached, "the witness attached again", within_s=15)
        until(lambda: cluster.node("w1").stats.engines == 1, "and nobody else did")
        assert not client.attached


def test_no_worker_where_one_was_expected_is_said_at_the_first_attach(cluster: SmallCluster) -> None:
    with pytest.raises(TierUnavailable, match=r"nobody\.sock: No such file or directory"):
        RemoteClient.attach(cluster.socket_path("nobody"), SCOPE)


def test_an_engine_of_another_layout_is_refused_with_both_in_one_sentence(cluster: SmallCluster) -> None:
    cluster.start("w1")
    with cluster.attach("w1") as client:
        assert save(client, prompt(1, 1)).n_stored == 1
        wide = SCOPE.layout.__class__(n_layers=2, n_kv_heads=4, head_dim=16, dtype="bfloat16", block_tokens=32)
        other = SCOPE.__class__(model="test", weights_version="1", layout=wide)
        with pytest.raises(LayoutMismatch) as caught:
            RemoteClient.attach(cluster.socket_path("w1"), other, options=PATIENT)
        sentence = str(caught.value)
        assert wide.describe() in sentence
        assert SCOPE.layout.describe() in sentence
        assert "\n" not in sentence
        assert take(client, prompt(1, 1)) == Counter({Source.HOT: 1})


def test_a_pool_too_small_for_one_block_is_said_to_the_engine_naming_the_setting(cluster: SmallCluster) -> None:
    cluster.start("w1", hot=str(LAYOUT.block_bytes - 1))
    for _ in range(2):  # and it stays a sentence the second time
        with pytest.raises(TierUnavailable, match=r"pool\.bytes: 8191 bytes hold no block of 8192 bytes"):
            RemoteClient.attach(cluster.socket_path("w1"), SCOPE, options=PATIENT)


def test_a_pool_that_the_machine_does_not_have_is_a_sentence_and_leaves_no_descriptor_open(
    cluster: SmallCluster,
) -> None:
    [worker] = cluster.start("w1", hot="1024TiB")
    descriptors = Path(f"/proc/{worker.pid}/fd")
    seen = []
    for _ in range(3):
        with pytest.raises(TierUnavailable, match=r"pool\.bytes: cannot map \d+ bytes of shared memory"):
            RemoteClient.attach(cluster.socket_path("w1"), SCOPE, options=PATIENT)
        until(lambda: cluster.metrics("w1")[("tiered_worker_engines",)] == 0, "the engine is gone")
        seen.append(sum("tiered-pool" in os.readlink(link) for link in descriptors.iterdir()))
    assert seen == [0, 0, 0]
