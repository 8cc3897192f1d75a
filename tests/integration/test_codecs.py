"""A tenant's codec on real workers: chosen while they run, and read by one that fetches from Redis or from a peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.support.codecs import check_error, normal_block
from tests.support.content import TENANT, hashes_of, prompt
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient
from tiered.client.saving import verified_blocks
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, BlockId, Source

LAYOUT = KvLayout(n_layers=3, n_kv_heads=2, head_dim=32, dtype="bfloat16")
SCOPE = ModelScope(model="codecs", weights_version="1", layout=LAYOUT)
BYTES_SCOPE = ModelScope(
    model="bytes", weights_version="1", layout=KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="uint8")
)
N = 6
HASHES = hashes_of(prompt(1, N), scope=SCOPE)


def block(block_hash: BlockHash) -> bytes:
    return normal_block(LAYOUT, int.from_bytes(block_hash[:4], "big"))


def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
    for offset, block_id in enumerate(block_ids):
        pool.host_view(block_id)[:] = block(HASHES[first_index + offset])


def load(client: RemoteClient) -> tuple[Counter[Source], list[bytes]]:
    match = client.match(prompt(1, N), tenant=TENANT)
    loaded = client.load(match)
    pool = client.pool
    assert pool is not None
    assert verified_blocks(pool, loaded.block_ids, loaded.checksums) == len(loaded.block_ids)
    found = [bytes(pool.host_view(block_id)) for block_id in loaded.block_ids]
    assert client.release(match, used_tokens=len(found) * LAYOUT.block_tokens)
    return Counter(loaded.sources), found


def test_a_codec_chosen_on_a_running_cluster_is_used_and_its_blocks_are_lent_as_decoded(
    cluster: SmallCluster,
) -> None:
    cluster.start("w1", "w2", "w3", settings=["pool.free_target=0", "pool.demote=evicted"])
    with cluster.attach("w1", scope=SCOPE) as first, cluster.attach("w2", scope=SCOPE) as second:
        first.save(prompt(1, N), tenant=TENANT, fill=fill)
        cluster.set_policy(TENANT, redis_codec="fp8", hot_limit_bytes=0)
        until(
            lambda: cluster.metrics("w1").get(("tiered_redis_stored_blocks_total", "fp8"), 0) == N, "all is written"
        )
        cluster.set_policy(TENANT, redis_codec="fp8")
        mark = f'"revision": {cluster.tenants.revision()}'
        until(lambda: all(mark in worker.log for worker in cluster.workers.values()), "the limit is lifted")
        sources, decoded = load(second)
        assert sources == Counter({Source.REDIS: N})
        for found, block_hash in zip(decoded, HASHES, strict=True):
            check_error("fp8", block(block_hash), found, LAYOUT)
        cluster.wait_announced("w2", N)
        cluster.wait_acquainted()
        with cluster.attach("w3", scope=SCOPE) as third:
            assert load(third) == (Counter({Source.PEER: N}), decoded)


def test_a_codec_that_does_not_suit_a_nodes_blocks_is_said_once_in_its_log(cluster: SmallCluster) -> None:
    cluster.start("w1")
    cluster.set_policy(TENANT, redis_codec="int8")
    with cluster.attach("w1", scope=BYTES_SCOPE):
        worker = cluster.workers["w1"]
        until(lambda: "int8 needs elements of" in worker.log, "the worker says so")
        cluster.set_policy(TENANT, redis_codec="lossless")
        mark = f'"revision": {cluster.tenants.revision()}'
        until(lambda: mark in worker.log, "the change is in force")
        assert worker.log.count("stored lossless instead") == 1
