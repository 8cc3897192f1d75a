"""How long does it take to find an 8,192-token prompt (512 blocks) that is fully hot, hashing included?

In process, and attached over the worker's socket. Baseline of the first: the SHA-256 chain alone; of the second: the
match in process.
"""

from __future__ import annotations

from collections.abc import Sequence

from _cluster import start_cluster
from _harness import Report, median_ms

from tiered.client.local import LocalClient
from tiered.client.port import CacheClient
from tiered.client.remote import RemoteClient
from tiered.config import PoolSettings
from tiered.hashing.chain import chain_hashes
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, TenantId

TOKENS = 8_192
RUNS = 101
TENANT = TenantId("bench")
LAYOUT = KvLayout(n_layers=30, n_kv_heads=3, head_dim=64, dtype="bfloat16")
SCOPE = ModelScope(model="bench", weights_version="0", layout=LAYOUT)
PROMPT = [(7 * i) % 49_152 for i in range(TOKENS)]
HOT_BYTES = 600 * LAYOUT.block_bytes


def leave_as_it_is(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
    """The content does not matter here."""


def hot_match_ms(client: CacheClient) -> tuple[float, float]:
    """Median of match alone, and of match with load and release: what an engine pays in all."""
    saved = client.save(PROMPT, tenant=TENANT, fill=leave_as_it_is)
    assert saved.n_stored == TOKENS // LAYOUT.block_tokens, saved

    matches = []

    def match() -> None:
        matches.append(client.match(PROMPT, tenant=TENANT))

    def whole() -> None:
        found = client.match(PROMPT, tenant=TENANT)
        assert len(client.load(found).block_ids) == saved.n_stored
        assert client.release(found, used_tokens=TOKENS)

    match_ms = median_ms(match, runs=RUNS)
    for found in matches:
        assert len(found.block_ids) == saved.n_stored
        client.release(found, used_tokens=0)
    return match_ms, median_ms(whole, runs=RUNS)


def main() -> None:
    report = Report("match")
    hashing_ms = median_ms(lambda: chain_hashes(b"\0" * 32, PROMPT, block_tokens=LAYOUT.block_tokens), runs=RUNS)
    report.add("hash chain of 512 blocks", hashing_ms, "ms")
    local = LocalClient(SCOPE, PoolSettings(bytes=HOT_BYTES))
    local_ms, local_whole_ms = hot_match_ms(local)
    local.close()
    report.add("match of 512 hot blocks, in process", local_ms, "ms", baseline=hashing_ms)
    report.add("match, load and release, in process", local_whole_ms, "ms", baseline=hashing_ms)
    cluster = start_cluster(n_workers=1, hot_bytes=HOT_BYTES)
    try:
        remote = RemoteClient.attach(str(cluster.workers[0].socket_path), SCOPE, engine="bench")
        remote_ms, remote_whole_ms = hot_match_ms(remote)
        remote.close()
    finally:
        cluster.stop()
    report.add("match of 512 hot blocks, attached", remote_ms, "ms", baseline=local_ms)
    report.add("match, load and release, attached", remote_whole_ms, "ms", baseline=local_whole_ms)
    report.finish()


if __name__ == "__main__":
    main()
