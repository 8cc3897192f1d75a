"""LMCache's own Redis clients, each timed on demand: the other side of redis_tier.py. Not a benchmark itself.

Runs in a Python that has lmcache and torch, and imports nothing of ours. Says ``> VERSION``, then answers each line
with ``> SECONDS``. Lines: ``open PORT LAYERS KV_HEADS HEAD_DIM BLOCK_TOKENS BLOCKS``, which makes clients for that
server and those blocks; ``put CLIENT`` and ``get CLIENT``. Clients: ``connector``, what its remote backend uses for
redis:// URLs, called as that backend calls it; ``native1``, ``native2``, ``native8``, its compiled client with so
many workers.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import time

import torch
from lmcache import _version
from lmcache.lmcache_redis import LMCacheRedisClient
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

WAIT_S = 60.0
WORKERS = (1, 2, 8)


class Connector:
    """Blocks in the memory objects of its local backend; a get allocates new ones from it, as it does in use."""

    def __init__(self, port: int, shape: tuple[int, int, int, int], n_blocks: int) -> None:
        layers, heads, dim, tokens = shape
        block_gib = layers * 2 * tokens * heads * dim * 2 / 2**30
        url = f"redis://127.0.0.1:{port}"
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=tokens,
            local_cpu=True,
            max_local_cpu_size=2.5 * n_blocks * block_gib + 0.1,
            remote_url=url,
            remote_serde="naive",
            save_unfull_chunk=False,
            extra_config={"save_chunk_meta": False},
        )
        metadata = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, (layers, 2, tokens, heads, dim))
        metadata.chunk_size = tokens
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        backend = LocalCPUBackend(config, metadata, dst_device="cpu")

        async def create():
            return CreateConnector(url, self._loop, backend, config, metadata)

        self._connector = self._run([create()])[0]
        inner = self._connector.getWrappedConnector()
        self._objects = [
            backend.allocate(inner.meta_shapes, inner.meta_dtypes, inner.meta_fmt) for _ in range(n_blocks)
        ]
        for found in self._objects:
            found.tensor.copy_(torch.randn(found.tensor.shape))
        self._keys = [CacheEngineKey("m", 1, 0, index + 1, torch.bfloat16) for index in range(n_blocks)]
        self._is_first = True

    def put(self) -> float:
        for found in self._objects:
            found.ref_count_up()
        start = time.perf_counter()
        if self._connector.support_batched_put():
            self._run([self._connector.batched_put(self._keys, self._objects)])
        else:
            self._run([self._connector.put(*pair) for pair in zip(self._keys, self._objects, strict=True)])
        return time.perf_counter() - start

    def get(self) -> float:
        start = time.perf_counter()
        if self._connector.support_batched_get():
            [found] = self._run([self._connector.batched_get(self._keys)])
        else:
            found = self._run([self._connector.get(key) for key in self._keys])
        elapsed_s = time.perf_counter() - start
        assert None not in found
        if self._is_first:
            pairs = zip(found, self._objects, strict=True)
            assert all(torch.equal(ours.tensor, theirs.tensor) for ours, theirs in pairs)
            self._is_first = False
        for each in found:
            each.ref_count_down()
        return elapsed_s

    def close(self) -> None:
        """Its own close() hangs: its workers never end by themselves."""

        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._run([cancel()])
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, coroutines):
        futures = [asyncio.run_coroutine_threadsafe(each, self._loop) for each in coroutines]
        return [future.result(WAIT_S) for future in futures]


class Native:
    """Whole batches into buffers that are reused."""

    def __init__(self, port: int, n_workers: int, block_bytes: int, n_blocks: int) -> None:
        self._client = LMCacheRedisClient("127.0.0.1", port, n_workers)
        self._event = self._client.event_fd()
        self._source = bytearray(os.urandom(block_bytes * n_blocks))
        self._target = bytearray(block_bytes * n_blocks)
        cuts = range(0, block_bytes * n_blocks, block_bytes)
        self._sources = [memoryview(self._source)[cut : cut + block_bytes] for cut in cuts]
        self._targets = [memoryview(self._target)[cut : cut + block_bytes] for cut in cuts]
        self._keys = [f"native:{index}" for index in range(n_blocks)]
        self._is_first = True

    def put(self) -> float:
        start = time.perf_counter()
        self._wait(self._client.submit_batch_set(self._keys, self._sources))
        return time.perf_counter() - start

    def get(self) -> float:
        start = time.perf_counter()
        self._wait(self._client.submit_batch_get(self._keys, self._targets))
        elapsed_s = time.perf_counter() - start
        if self._is_first:
            assert self._source == self._target
            self._is_first = False
        return elapsed_s

    def close(self) -> None:
        self._client.close()

    def _wait(self, batch) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for done, is_fine, error, _ in self._client.drain_completions() or []:
                if done == batch:
                    assert is_fine, error
                    return
            select.select([self._event], [], [], 1.0)
        raise TimeoutError(f"no completion within {WAIT_S:g} s")


def opened(port: int, layers: int, heads: int, dim: int, tokens: int, n_blocks: int) -> dict[str, Connector | Native]:
    block_bytes = layers * 2 * tokens * heads * dim * 2
    clients: dict[str, Connector | Native] = {f"native{n}": Native(port, n, block_bytes, n_blocks) for n in WORKERS}
    return clients | {"connector": Connector(port, (layers, heads, dim, tokens), n_blocks)}


def main() -> None:
    clients: dict[str, Connector | Native] = {}
    print(">", _version.version, flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "open":
            for client in clients.values():
                client.close()
            clients = opened(*map(int, words))
            print("> 0", flush=True)
        else:
            print(">", getattr(clients[words[0]], verb)(), flush=True)
    os._exit(0)  # Its threads and loops do not always end by themselves.


if __name__ == "__main__":
    main()
