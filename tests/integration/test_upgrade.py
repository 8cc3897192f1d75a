"""This release and the next in one cluster: real processes of both, in each part, by the rules of docs/formats.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess
from tests.support.engine_turn import turns
from tests.support.later_release import LATER_VERSION, THIS_TREE, later_release, next_major_release
from tests.support.small_cluster import PATIENT, SmallCluster
from tests.support.worker_process import until
from tiered import __version__
from tiered.client.remote import RemoteClient
from tiered.cluster.audit import Auditor
from tiered.codec.frame import HEADER_BYTES
from tiered.errors import VersionMismatch
from tiered.types import Source, TenantId

pytestmark = pytest.mark.timeout(240)

N = 4
B = LAYOUT.block_bytes
POOL = str(32 * B)
MEET_S = 30.0
STOP_S = 40.0
SETTINGS = ("cluster.heartbeat_s=0.1", "cluster.secret=s3", "pool.free_target=0")
HOT_ONLY = (*SETTINGS, "pool.demote=never")
TO_REDIS = (*SETTINGS, "pool.demote=always")


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return later_release(tmp_path_factory.mktemp("later"))


@pytest.fixture(scope="module")
def next_major(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_major_release(tmp_path_factory.mktemp("major"))


def start(cluster: SmallCluster, settings: tuple[str, ...], **trees: Path) -> None:
    """Start workers by name, each of its tree, and wait until all know each other."""
    for name, tree in trees.items():
        cluster.spawn(name, *settings, hot=POOL, tree=None if tree == THIS_TREE else tree)
    for name in trees:
        cluster.workers[name].wait_ready()
    for name in trees:
        until(
            lambda name=name: cluster.metrics(name)[("tiered_worker_peers",)] >= len(trees) - 1,  # type: ignore[misc]
            f"{name} looked around",
            within_s=MEET_S,
        )


def counted(cluster: SmallCluster, name: str, series: str) -> dict[str, int]:
    """By reason, those that are not 0."""
    return {key[1]: int(n) for key, n in cluster.metrics(name).items() if key[0] == series and n}


def wait_in_redis(cluster: SmallCluster, seed: int) -> list[bytes]:
    """The keys of the values of a prompt's blocks, once all are there for good."""
    keys = [cluster.keys.block(block_hash) for block_hash in hashes_of(prompt(seed, N))]

    def there() -> bool:
        return all(cluster.client.exists(key) and cluster.client.ttl(key) == -1 for key in keys)

    until(there, f"prompt {seed} is in Redis", within_s=MEET_S)
    return keys


def test_workers_and_engines_of_two_releases_share_blocks_bit_for_bit(cluster: SmallCluster, later: Path) -> None:
    start(cluster, HOT_ONLY, w1=THIS_TREE, w2=later, w3=later)
    assert {name: cluster.node(name).info.version for name in cluster.workers} == {
        "w1": __version__,
        "w2": LATER_VERSION,
        "w3": LATER_VERSION,
    }
    with cluster.attach("w1") as one, cluster.attach("w2") as two:  # an engine of today at a worker of each
        assert save(one, prompt(1, N)).n_stored == save(two, prompt(2, N)).n_stored == N
        at = cluster.socket_path
        assert turns(later, (at("w1"), "save", 3, N), (at("w1"), "take", 1, N)) == [{"stored": N}, {"hot": N}]
        cluster.wait_announced("w1", 2 * N)
        cluster.wait_announced("w2", N)
        assert take(one, prompt(2, N)) == take(two, prompt(1, N)) == Counter({Source.PEER: N})
        # From today's, and from its own kind.
        assert turns(later, (at("w3"), "take", 3, N), (at("w3"), "take", 2, N)) == [{"peer": N}, {"peer": N}]
    for name, n_blocks in {"w1": 3 * N, "w2": 2 * N, "w3": 2 * N}.items():
        cluster.wait_announced(name, n_blocks)
        assert counted(cluster, name, "tiered_peer_missed_blocks_total") == {}
        assert counted(cluster, name, "tiered_peer_refused_total") == {}
        assert counted(cluster, name, "tiered_worker_engines_refused_total") == {}
    told = {name for name, worker in cluster.workers.items() if "whispered to" in worker.log}
    assert "w1" not in told, "a new message went to who does not know it"
    assert told & {"w1", "w2"} == {"w2"}
    assert "1.1" in cluster.workers["w1"].log, "the engine's minor version is in the log"


def test_a_later_value_in_redis_is_a_miss_for_this_release_and_stays_for_the_next(
    cluster: SmallCluster, later: Path
) -> None:
    start(cluster, TO_REDIS, w1=THIS_TREE, w2=later)
    assert turns(later, (cluster.socket_path("w2"), "save", 1, N)) == [{"stored": N}]
    keys = wait_in_redis(cluster, 1)
    assert cluster.workers["w2"].stop(within_s=STOP_S) == 0  # so that Redis alone has them
    until(lambda: cluster.metrics("w1")[("tiered_worker_peers",)] == 0, "w1 knows that w2 has left")
    with cluster.attach("w1") as one:
        assert one.match(prompt(1, N), tenant=TENANT).n_redis == N
        assert take(one, prompt(1, N)) == Counter()
        missed = counted(cluster, "w1", "tiered_redis_missed_blocks_total")
        assert missed == {"version": N}
        assert cluster.client.exists(*keys) == N, "the newer workers' cache is not flushed by the older"
        assert save(one, prompt(1, N)).n_stored == N  # computed, and hot here; what is stored stays as it is
        until(
            lambda: counted(cluster, "w1", "tiered_redis_puts_total").get("already_there") == N, "w1 has offered them"
        )
        assert save(one, prompt(2, N)).n_stored == N
        wait_in_redis(cluster, 2)
    assert counted(cluster, "w1", "tiered_damaged_blocks_total") == {}
    found = Auditor(cluster.client, cluster.keys).walk()
    assert (found.conserved, found.stored_bytes, found.lost, found.stray) == (True, 2 * N * (HEADER_BYTES + B), 0, 0)
    assert cluster.workers["w1"].stop(within_s=STOP_S) == 0
    cluster.workers["w2"] = cluster.workers["w2"].again(tree=later)
    found_by_later = turns(later, *((cluster.socket_path("w2"), "take", seed, N) for seed in (1, 2)))
    assert found_by_later == [{"redis": N}, {"redis": N}], "it reads its own and this release's"
    assert Auditor(cluster.client, cluster.keys).walk().conserved


@contextmanager
def replica(cluster: SmallCluster, name: str, tree: Path) -> Iterator[CoordinatorProcess]:
    settings = ("cluster.share_settle_s=1", "cluster.secret=s3", "cluster.leader_lease_s=1")
    one = CoordinatorProcess(cluster.server, cluster.namespace, cluster.directory, name, *settings, tree=tree)
    try:
        yield one.wait_ready()
        assert "Traceback" not in one.log
    finally:
        one.kill()


def put_total(coordinator: CoordinatorProcess, total: int) -> None:
    answer = httpx.patch(
        f"{coordinator.url}/v1/tenants/{TENANT}", json={"hot_total_limit_bytes": total}, timeout=10, trust_env=False
    )
    if answer.status_code == 404:
        body = {"tenant": TENANT, "hot_total_limit_bytes": total}
        answer = httpx.post(f"{coordinator.url}/v1/tenants", json=body, timeout=10, trust_env=False)
    answer.raise_for_status()


@pytest.mark.parametrize("first", ["this", "later"])
def test_a_leader_of_either_release_leads_workers_of_both(cluster: SmallCluster, later: Path, first: str) -> None:
    trees = {"this": THIS_TREE, "later": later}
    second = "later" if first == "this" else "this"
    start(cluster, HOT_ONLY, w1=THIS_TREE, w2=later)

    def lent() -> dict[str, int]:
        key = ("tiered_hot_limit_bytes", TENANT)
        return {name: int(cluster.metrics(name).get(key, -1)) for name in ("w1", "w2")}

    with cluster.attach("w1") as one, cluster.attach("w2") as two, replica(cluster, "c1", trees[first]) as leader:
        until(lambda: leader.leads, "it leads", within_s=MEET_S)
        assert save(one, prompt(1, 2)).n_stored == save(two, prompt(2, 2)).n_stored == 2
        put_total(leader, 12 * B)
        until(lambda: sum(lent().values()) == 12 * B, "both have the total between them", within_s=MEET_S)
        with replica(cluster, "c2", trees[second]) as other:
            leader.kill()
            until(lambda: other.leads, "the other release leads", within_s=MEET_S)
            assert sum(lent().values()) <= 12 * B
            put_total(other, 20 * B)
            until(lambda: sum(lent().values()) == 20 * B, "the new total is lent", within_s=MEET_S)
            why = other.get(f"/v1/blocks/{hashes_of(prompt(1, 1))[0].hex()}")
            assert why["silent"] == [], "it asks workers of both why"
            # What an ended life of the later release counted is not lost with it, nor with what nobody here knows.
            assert cluster.workers["w2"].stop(within_s=STOP_S) == 0
            until(lambda: cluster.view("w2") is None, "w2 has left", within_s=MEET_S)
            assert cluster.membership.retired_tokens()[TenantId(TENANT)].asked >= 0
            assert cluster.client.hget(cluster.keys.retired_tokens(), f"{TENANT}|later") is not None


def test_a_worker_goes_to_the_next_release_and_back_and_begins_cold(cluster: SmallCluster, later: Path) -> None:
    start(cluster, HOT_ONLY, w1=THIS_TREE)
    for tree, seed in ((later, 1), (None, 2)):
        with cluster.attach("w1") as client:
            assert save(client, prompt(seed, N)).n_stored == N
        cluster.workers["w1"].kill()
        cluster.workers["w1"] = cluster.workers["w1"].again(tree=tree)
        with cluster.attach("w1") as client:
            assert take(client, prompt(seed, N)) == Counter()
    log = cluster.workers["w1"].log
    assert "it is of version 1, this release reads 2" in log
    assert "it is of version 2, this release reads 1" in log
    asides = list(cluster.directory.glob("tiered-w1.journal.aside-*"))
    assert len(asides) == 2, "neither is thrown away"


def test_releases_of_two_major_versions_refuse_each_other_with_both_versions_counted(
    cluster: SmallCluster, next_major: Path
) -> None:
    start(cluster, HOT_ONLY, w1=THIS_TREE, w2=next_major)
    with cluster.attach("w1") as one:
        assert save(one, prompt(1, N)).n_stored == N
        assert turns(next_major, (cluster.socket_path("w2"), "save", 2, N)) == [{"stored": N}]
        cluster.wait_announced("w1", N)
        cluster.wait_announced("w2", N)
        assert take(one, prompt(2, N)) == Counter()
        assert turns(next_major, (cluster.socket_path("w2"), "take", 1, N)) == [{}]
    with pytest.raises(VersionMismatch, match="speaks wire version 2, this side 1"):
        RemoteClient.attach(cluster.socket_path("w2"), SCOPE, engine="old", options=PATIENT)
    with closing(RemoteClient.attach_later(cluster.socket_path("w2"), SCOPE, engine="old", options=PATIENT)) as alone:
        assert take(alone, prompt(2, N)) == Counter()
    for name, seen, spoken in (("w1", 2, 1), ("w2", 1, 2)):
        assert counted(cluster, name, "tiered_peer_missed_blocks_total") == {"version": N}
        assert counted(cluster, name, "tiered_peer_refused_total") == {"version": 1}
        assert f"speaks wire version {seen}, this side {spoken}" in cluster.workers[name].log
    assert counted(cluster, "w2", "tiered_worker_engines_refused_total")["version"] >= 1
