"""The secondary tier under vLLM's own tiering manager, primary tier, spec and factory, called as its scheduler does.

vLLM's offloading moves KV from and to a GPU only, so the copy between GPU and vLLM's memory is played here; all else
is vLLM's.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of themselves
    pytest.importorskip("vllm.v1.kv_offload.tiering.spec")

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadingCounterMetadata,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    TierFilter,
    TierMatcher,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tests.support.redis_server import eventually
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage
from tiered.config import RedisSettings
from tiered.errors import ConfigError
from tiered.types import TenantId

pytestmark = pytest.mark.vllm

CHUNK_BYTES = 16_384
HIT, MISS = LookupResult.HIT, LookupResult.MISS
RED, BLUE = TenantId("red"), TenantId("blue")


def right_bytes(key: bytes) -> bytes:
    return hashlib.shake_128(key).digest(CHUNK_BYTES)


def chunk_keys(prompt: object, n: int, *, group: int = 0) -> list[OffloadKey]:
    return [make_offload_key(hashlib.sha256(f"{prompt}/{i}".encode()).digest(), group) for i in range(n)]


def config_of(server_url: str, *, n_chunks: int, n_groups: int = 1, **tier: Any) -> OffloadingConfig:
    quick = {"lookup_timeout_s": 2.0, "control_timeout_s": 2.0, "value_timeout_s": 2.0, "lookup_wait_s": 10.0}
    ours = {
        "type": "RedisSecondaryTier",
        "module_path": "tiered.connectors.vllm.secondary",
        "redis_url": server_url,
        "weights_version": "1",
        **quick,
        **tier,
    }
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(16, (f"layers.{g}",), g) for g in range(n_groups)),
        worker_kv_bytes_per_block=CHUNK_BYTES // 2,
        enable_kv_cache_events=False,
        extra_config={"cpu_bytes_to_use": n_chunks * CHUNK_BYTES, "secondary_tiers": [ours]},
        engine_id=f"test-{uuid.uuid4().hex}",
        model=OffloadingModelConfig("tiny", "bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
        kv_cache_layout="LBNHC",
    )


@dataclass
class Engine:
    """vLLM's scheduler and its workers' copies, one request after the other."""

    manager: TieringOffloadingManager
    retries: int = 0
    _requests: dict[str, ReqContext] = field(default_factory=dict)

    @property
    def memory(self) -> memoryview:
        view: memoryview = self.manager.primary_tier.get_kv_memoryview()
        return view.cast("B")

    def begin(
        self, keys: Sequence[OffloadKey], *, tenant: str | None = None, tokens_per_chunk: int = 32, **how: Any
    ) -> ReqContext:
        params = None if tenant is None else {"tenant": tenant}
        context = ReqContext(uuid.uuid4().hex, params, **how)
        for index, key in enumerate(keys):
            context.set_offload_key_position(key, (index + 1) * tokens_per_chunk)
        self.manager.on_new_request(context)
        self._requests[context.req_id] = context
        return context

    def step(self, *new: str) -> None:
        self.manager.on_schedule_end(ScheduleEndContext(new, ()))

    def lookup_once(self, keys: Sequence[OffloadKey], context: ReqContext) -> int | None:
        """As _maximal_prefix_lookup: how many are there, None for "ask again"."""
        n_hits, defer = 0, False
        for key in keys:
            result = self.manager.lookup(key, context)
            if result is LookupResult.MISS:
                break
            defer = defer or result is not LookupResult.HIT
            n_hits += result is not LookupResult.RETRY
        self.step()
        return None if defer else n_hits

    def match(self, keys: Sequence[OffloadKey], context: ReqContext, *, within_s: float = 20.0) -> int:
        """Steps until the scheduler may run the request; how many chunks it then loads. Their bytes are checked."""
        found: list[int] = []

        def decided() -> bool:
            n_hits = self.lookup_once(keys, context)
            if n_hits is None:
                self.retries += 1
                return False
            found.append(n_hits)
            return True

        eventually(decided, within_s=within_s)
        loaded = list(keys[: found[0]])
        if loaded:
            spec: Any = self.manager.prepare_load(loaded, context)
            memory = self.memory
            for key, row in zip(loaded, spec.chunk_ids.tolist(), strict=True):
                assert memory[row * CHUNK_BYTES : (row + 1) * CHUNK_BYTES] == right_bytes(key), "wrong bytes"
            self.manager.complete_load(loaded, context)
        return found[0]

    def compute(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """The GPU has computed these: they are copied to vLLM's memory, and from there handed down."""
        prepared = self.manager.prepare_store(keys, context)
        if prepared is None or not prepared.keys_to_store:
            return
        spec: Any = prepared.store_spec
        memory = self.memory
        for key, row in zip(prepared.keys_to_store, spec.chunk_ids.tolist(), strict=True):
            memory[row * CHUNK_BYTES : (row + 1) * CHUNK_BYTES] = right_bytes(key)
        self.manager.complete_store(set(prepared.keys_to_store), context)  # the scheduler hands over a set

    def finish(self, context: ReqContext) -> None:
        self.manager.on_request_finished(context)
        del self._requests[context.req_id]
        self.step()

    def settle(self, *, within_s: float = 20.0) -> None:
        """Steps until no job is under way."""

        def idle() -> bool:
            self.step()
            return not self.manager.has_pending_work()

        eventually(idle, within_s=within_s)

    def serve(self, keys: Sequence[OffloadKey], *, tenant: str | None = None) -> int:
        """One request from its beginning to its end; how many of its chunks were not computed."""
        context = self.begin(keys, tenant=tenant)
        n_hits = self.match(keys, context)
        self.step(context.req_id)
        self.compute(keys[n_hits:], context)
        self.finish(context)
        self.settle()
        return n_hits


@contextmanager
def engine(server: EmbeddedServer | str, *, n_chunks: int = 64, **how: Any) -> Iterator[Engine]:
    url = server if isinstance(server, str) else server.url
    spec = TieringOffloadingSpec(config_of(url, n_chunks=n_chunks, **how))
    manager = spec.get_manager()
    assert isinstance(manager, TieringOffloadingManager)
    path = manager.primary_tier._mmap_region.mmap_path
    try:
        yield Engine(manager)
    finally:
        manager.shutdown()
        assert not os.path.exists(path)


@pytest.fixture
def namespace() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def usage(server: EmbeddedServer, namespace: str) -> dict[TenantId, RedisUsage]:
    client = connect(RedisSettings(url=server.url), timeout_s=5)
    try:
        return RedisLedger(client, Keys(namespace)).usage()
    finally:
        client.close()


def test_a_fresh_engine_loads_what_another_computed(redis_server: EmbeddedServer, namespace: str) -> None:
    prompt = chunk_keys("p", 20)
    with engine(redis_server, namespace=namespace) as one:
        assert one.serve(prompt) == 0
        assert one.serve(prompt) == 20, "from vLLM's own memory"
    assert usage(redis_server, namespace)[TenantId("default")].blocks == 20
    with engine(redis_server, namespace=namespace) as two:
        assert two.serve([*prompt[:15], *chunk_keys("q", 5)]) == 15
        assert two.serve(prompt) == 20
        assert two.serve(chunk_keys("never", 3)) == 0


def test_what_its_memory_had_no_room_for_comes_back_from_redis(redis_server: EmbeddedServer, namespace: str) -> None:
    prompts = [chunk_keys(n, 6) for n in range(6)]
    with engine(redis_server, namespace=namespace, n_chunks=8) as one:
        assert [one.serve(prompt) for prompt in prompts] == [0] * 6
        assert [one.serve(prompt) for prompt in prompts] == [6] * 6
        stats = one.manager.get_stats()
        assert isinstance(stats, OffloadingConnectorStats)
        reduced = stats.reduce()
        assert reduced["tiered:redis_chunks:('load', 'done')"] >= 30
        assert reduced["tiered:redis_breaker_open"] == 0


def test_metrics_that_are_published_are_defined(redis_server: EmbeddedServer, namespace: str) -> None:
    with engine(redis_server, namespace=namespace) as one:
        one.serve(chunk_keys("p", 3))
        stats = one.manager.get_stats()
        assert isinstance(stats, OffloadingConnectorStats)
        definitions = TieringOffloadingSpec.build_metric_definitions(one_extra_config(redis_server, namespace))
        ours = {name: values for name, values in stats.data["data"].items() if name.startswith("tiered:")}
        assert ours
        for name, values in ours.items():
            for labels in values:
                assert len(labels) == len(definitions[name].labelnames), name
        assert isinstance(definitions["tiered:redis_puts"], OffloadingCounterMetadata)


def one_extra_config(server: EmbeddedServer, namespace: str) -> dict[str, Any]:
    return dict(config_of(server.url, n_chunks=1, namespace=namespace).extra_config)


def test_tenants_are_told_from_the_requests_parameters(redis_server: EmbeddedServer, namespace: str) -> None:
    prompt = chunk_keys("p", 4)
    with engine(redis_server, namespace=namespace) as one:
        assert one.serve(prompt, tenant="red") == 0
    assert set(usage(redis_server, namespace)) == {RED}
    with engine(redis_server, namespace=namespace) as two:
        assert two.serve(prompt, tenant="blue") == 0
    assert {t: u.blocks for t, u in usage(redis_server, namespace).items()} == {RED: 4, BLUE: 4}
    with engine(redis_server, namespace=namespace, tenant="red") as three:
        assert three.serve(chunk_keys("p", 4)) == 4


@pytest.mark.parametrize("name", ["", "a b", "../x", 5, 7.5, ["red"], "x" * 65, None])
def test_a_bad_name_of_a_tenant_is_nobodys_and_fails_nothing(
    redis_server: EmbeddedServer, namespace: str, name: Any
) -> None:
    prompt = chunk_keys("p", 3)
    with engine(redis_server, namespace=namespace) as one:
        assert one.serve(prompt, tenant=name) == 0
    expected = {"default": 3} if name is None else {}
    assert {str(t): u.blocks for t, u in usage(redis_server, namespace).items()} == expected


def test_the_order_of_a_prompt_is_known_though_vllm_hands_over_a_set(
    redis_server: EmbeddedServer, namespace: str
) -> None:
    prompt = chunk_keys("p", 12)
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    client = connect(RedisSettings(url=redis_server.url), timeout_s=5)
    blocks = Keys(namespace).tenant_blocks(TenantId("default"))
    newest_first = command(client, "ZREVRANGE", blocks, 0, -1)
    client.close()
    with engine(redis_server, namespace=namespace) as two:
        (tier,) = two.manager.secondary_tiers
        context = two.begin(prompt)
        request = tier._seen(context)
        assert request.chains == {0: prompt}
        assert [tier._depth(key, context) for key in prompt] == list(range(12))
        assert newest_first == [tier._store._hash(key, TenantId("default")) for key in prompt]
        two.finish(context)


def test_groups_are_kept_apart(redis_server: EmbeddedServer, namespace: str) -> None:
    first, second = chunk_keys("p", 4), chunk_keys("p", 4, group=1)
    with engine(redis_server, namespace=namespace, n_groups=2) as one:
        context = one.begin([])
        for keys in (first, second):
            for index, key in enumerate(keys):
                context.set_offload_key_position(key, (index + 1) * 32)
        one.compute([*first, *second], context)
        one.finish(context)
        one.settle()
    with engine(redis_server, namespace=namespace, n_groups=2) as two:
        assert two.serve(second) == 4
        assert two.serve(first) == 4


def test_a_request_may_leave_this_tier_out(redis_server: EmbeddedServer, namespace: str) -> None:
    prompt = chunk_keys("p", 3)
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    with engine(redis_server, namespace=namespace) as two:
        local = TierFilter((TierMatcher(locality=Locality.LOCAL),))
        context = two.begin(prompt, load_tier_filter=local)
        assert two.match(prompt, context) == 0
        two.finish(context)
        assert two.match(prompt, two.begin(prompt)) == 3


def test_a_chunk_that_went_bad_is_computed_and_the_others_are_used(
    redis_server: EmbeddedServer, namespace: str
) -> None:
    """vllm#49176: the request must come to an end, and not try the same load for ever."""
    prompt = chunk_keys("p", 8)
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    client = connect(RedisSettings(url=redis_server.url), timeout_s=5)
    with engine(redis_server, namespace=namespace) as two:
        (tier,) = two.manager.secondary_tiers
        bad = Keys(namespace).block(tier._store._hash(prompt[5], TenantId("default")))
        assert command(client, "SETRANGE", bad, 5000, b"garbage") == CHUNK_BYTES + 192
        assert two.serve(prompt) == 5
        assert two.serve(prompt) == 8
    client.close()
    with engine(redis_server, namespace=namespace) as three:
        assert three.serve(prompt) == 8, "computed and stored again"


def test_a_reset_in_the_middle_of_loads_waits_for_them(redis_server: EmbeddedServer, namespace: str) -> None:
    prompt = chunk_keys("p", 30)
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    with engine(redis_server, namespace=namespace) as two:
        for _ in range(5):
            context = two.begin(prompt)
            for _ in range(20):
                two.lookup_once(prompt, context)
            two.manager.reset_cache()
            two.finish(context)
        assert two.serve(prompt) == 30


def test_aborted_requests_leave_nothing_behind(redis_server: EmbeddedServer, namespace: str) -> None:
    prompt = chunk_keys("p", 10)
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    with engine(redis_server, namespace=namespace) as two:
        for passes in range(8):
            context = two.begin(prompt)
            for _ in range(passes):
                two.lookup_once(prompt, context)
            two.finish(context)
        two.settle()
        (tier,) = two.manager.secondary_tiers
        assert tier._store._lookups.n_requests == 0
        assert tier._loading == {}
        assert two.serve(prompt) == 10


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


QUICK = {
    "breaker_failures": 2,
    "breaker_open_s": 0.3,
    "lookup_timeout_s": 0.05,
    "lookup_wait_s": 0.1,
    "control_timeout_s": 0.5,
    "value_timeout_s": 0.5,
    "load_timeout_s": 1.0,
    "store_timeout_s": 1.0,
}


def test_redis_that_stops_answering_costs_a_request_moments_and_comes_back(
    private_redis_server: EmbeddedServer,
) -> None:
    prompt = chunk_keys("p", 6)
    with engine(private_redis_server, **QUICK) as one:
        eventually(lambda: one.serve(prompt) == 6)
    with engine(private_redis_server, **QUICK) as two:
        with stopped(private_redis_server.pid):
            waits = []
            for n in range(10):
                fresh = chunk_keys(n, 4)
                context = two.begin(fresh)
                began = time.monotonic()
                assert two.match(fresh, context) == 0
                waits.append(time.monotonic() - began)
                two.compute(fresh, context)
                two.finish(context)
            assert max(waits) < 1.0
            two.settle()
            eventually(lambda: two.manager.secondary_tiers[0]._store._is_down)
            began = time.monotonic()
            assert two.lookup_once(prompt, two.begin(prompt)) == 0
            assert time.monotonic() - began < 0.1
        eventually(lambda: two.serve(chunk_keys("p", 6)) == 6)


def test_redis_killed_in_the_middle_of_everything(private_redis_server: EmbeddedServer) -> None:
    with engine(private_redis_server, **QUICK) as one:
        for n in range(4):
            one.serve(chunk_keys(n, 6))
    with engine(private_redis_server, n_chunks=16, **QUICK) as two:
        contexts = [(chunk_keys(n, 6), two.begin(chunk_keys(n, 6))) for n in range(4)]
        for keys, context in contexts:
            two.lookup_once(keys, context)
        private_redis_server.stop()
        for keys, context in contexts:
            n_hits = two.match(keys, context)
            two.compute(keys[n_hits:], context)
            two.finish(context)
        two.settle()
        assert two.serve(chunk_keys("new", 3)) == 0
        assert two.serve(chunk_keys("new", 3)) == 3, "vLLM's own memory goes on"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"redis_ulr": "x"}, r"^secondary_tiers\.redis_ulr: unknown setting; known here: "),
        ({"weights_version": ""}, r"^secondary_tiers\.weights_version: "),
        ({"redis_url": "redis://127.0.0.1:1"}, r"^secondary_tiers\.redis_url: no usable server at "),
        ({"partitions": 3}, r"^secondary_tiers\.partitions: '3' is not valid"),
    ],
)
def test_a_mistake_stops_the_start_with_one_sentence(
    redis_server: EmbeddedServer, wrong: dict[str, Any], says: str
) -> None:
    config = config_of(redis_server.url, n_chunks=4, control_timeout_s=0.5)
    config.extra_config["secondary_tiers"][0].update(wrong)
    with pytest.raises(ConfigError, match=says):
        TieringOffloadingSpec(config).get_manager()
    assert not os.path.exists(f"/dev/shm/vllm_offload_{config.engine_id}.mmap")


@pytest.mark.parametrize(
    ("algorithm", "n_hits"), [("sha256", 3), ("sha256_cbor", 3), ("xxhash", 0), ("xxhash_cbor", 0)]
)
def test_only_hashes_that_nobody_can_forge_are_shared(
    redis_server: EmbeddedServer, namespace: str, algorithm: str, n_hits: int
) -> None:
    link, prompt = b"none", []
    for index in range(3):
        link = get_hash_fn_by_name(algorithm)((link, (index,), None))
        prompt.append(make_offload_key(link, 0))
    with engine(redis_server, namespace=namespace) as one:
        one.serve(prompt)
    with engine(redis_server, namespace=namespace) as two:
        assert two.serve(prompt) == n_hits


def test_hits_are_not_reported_as_the_disks(redis_server: EmbeddedServer, namespace: str) -> None:
    with engine(redis_server, namespace=namespace) as one:
        assert one.manager.secondary_tiers[0].cache_hit_source is CacheHitSource.EXTERNAL_UNSPECIFIED
