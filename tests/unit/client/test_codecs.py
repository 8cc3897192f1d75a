"""A tenant's codec from end to end: saved, evicted into a real Redis, loaded again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
import redis

from tests.support.codecs import check_error, normal_block
from tests.support.content import hashes_of, prompt
from tests.support.redis_server import eventually
from tiered.client.local import LocalClient
from tiered.client.saving import verified_blocks
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.codec.floats import to_float32
from tiered.codec.frame import decode_header
from tiered.config import PoolSettings, RedisSettings
from tiered.core.invariants import check_core
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier
from tiered.types import BlockHash, BlockId, Source, TenantId

LAYOUT = KvLayout(n_layers=3, n_kv_heads=2, head_dim=32, dtype="bfloat16")
SCOPE = ModelScope(model="codecs", weights_version="1", layout=LAYOUT)
RED, BLUE = TenantId("red"), TenantId("blue")
N = 4
SNR_DB_LEAST = {"fp8": 28.0, "int8": 30.0}

MakeClient = Callable[[Mapping[TenantId, str]], LocalClient]


@pytest.fixture
def tier(redis_settings: RedisSettings) -> Iterator[RedisTier]:
    tier = RedisTier(redis_settings)
    yield tier
    tier.close()


@pytest.fixture
def make_client(tier: RedisTier) -> Iterator[MakeClient]:
    made: list[LocalClient] = []

    def make(codecs: Mapping[TenantId, str]) -> LocalClient:
        pool = PoolSettings.model_validate({"bytes": 16 * LAYOUT.block_bytes, "free_target": 0.0})
        client = LocalClient(SCOPE, pool, redis=tier)
        made.append(client)
        set_policies(client, codecs)
        return client

    yield make
    for client in made:
        check_core(client.core)
        client.close()


def set_policies(client: LocalClient, codecs: Mapping[TenantId, str], **bounds: object) -> None:
    client.set_policies(
        {
            tenant: TenantPolicy.model_validate({"tenant": tenant, "redis_codec": codec, **bounds})
            for tenant, codec in codecs.items()
        }
    )


def block(block_hash: BlockHash) -> bytes:
    return normal_block(LAYOUT, int.from_bytes(block_hash[:4], "big"))


def save(client: LocalClient, tenant: TenantId) -> None:
    hashes = hashes_of(prompt(1, N), tenant=tenant, scope=SCOPE)

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        for offset, block_id in enumerate(block_ids):
            pool.host_view(block_id)[:] = block(hashes[first_index + offset])

    assert client.save(prompt(1, N), tenant=tenant, fill=fill, wait_s=2.0).n_stored == N


def push_out(client: LocalClient, tier: RedisTier, codecs: Mapping[TenantId, str]) -> None:
    """Evict all there is by a limit of nothing, then lift it."""
    before = sum(tier.counters().puts.values())
    n_blocks = sum(n for _, n in client.core.tenant_blocks())

    def all_left() -> bool:
        set_policies(client, codecs, hot_limit_bytes=0)
        return sum(tier.counters().puts.values()) == before + n_blocks and not client.core.leaving

    eventually(all_left)
    set_policies(client, codecs)


def load(client: LocalClient, tenant: TenantId) -> list[tuple[Source, bytes]]:
    """What comes, verified as an engine does it."""
    match = client.match(prompt(1, N), tenant=tenant)
    loaded = client.load(match)
    assert verified_blocks(client.pool, loaded.block_ids, loaded.checksums) == len(loaded.block_ids)
    found = [bytes(client.pool.host_view(block_id)) for block_id in loaded.block_ids]
    assert client.release(match, used_tokens=len(found) * LAYOUT.block_tokens)
    return list(zip(loaded.sources, found, strict=True))


def snr_db(raw: bytes, decoded: bytes) -> float:
    signal = to_float32(memoryview(raw), LAYOUT).astype(np.float64)
    noise = signal - to_float32(memoryview(decoded), LAYOUT)
    return 10 * math.log10((signal**2).sum() / (noise**2).sum())


@pytest.mark.parametrize("codec", ["none", "lossless", "fp8", "int8"])
def test_what_a_tenant_chose_is_what_its_blocks_go_through(
    make_client: MakeClient, tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, codec: str
) -> None:
    codecs = {RED: codec}
    client, other = make_client(codecs), make_client({})
    save(client, RED)
    push_out(client, tier, codecs)
    assert tier.counters().codecs == {codec: N}
    hashes = hashes_of(prompt(1, N), tenant=RED, scope=SCOPE)
    for reader in (client, other):  # one that knows of no codec reads by the header
        loaded = load(reader, RED)
        assert [source for source, _ in loaded] == [Source.REDIS] * N
        for (_, decoded), block_hash in zip(loaded, hashes, strict=True):
            raw = block(block_hash)
            if codec in ("none", "lossless"):
                assert decoded == raw
            else:
                check_error(codec, raw, decoded, LAYOUT)
                assert snr_db(raw, decoded) > SNR_DB_LEAST[codec]
        assert [source for source, _ in load(reader, RED)] == [Source.HOT] * N
    headers = [decode_header(command(redis_client, "GET", redis_keys.block(h))) for h in hashes]
    assert {header.codec for header in headers} == {codec}


def test_tenants_with_different_codecs_share_one_redis(make_client: MakeClient, tier: RedisTier) -> None:
    codecs = {RED: "fp8", BLUE: "lossless"}
    client = make_client(codecs)
    save(client, RED)
    save(client, BLUE)
    push_out(client, tier, codecs)
    assert tier.counters().codecs == {"fp8": N, "lossless": N}
    right = [block(h) for h in hashes_of(prompt(1, N), tenant=BLUE, scope=SCOPE)]
    assert [found for _, found in load(client, BLUE)] == right
    assert len(load(client, RED)) == N


def test_a_change_of_codec_counts_for_what_leaves_after_it(make_client: MakeClient, tier: RedisTier) -> None:
    client = make_client({RED: "none", BLUE: "none"})
    save(client, RED)
    push_out(client, tier, {RED: "none", BLUE: "none"})
    save(client, BLUE)
    push_out(client, tier, {RED: "int8", BLUE: "int8"})
    assert tier.counters().codecs == {"none": N, "int8": N}
    assert [found for _, found in load(client, RED)] == [
        block(h) for h in hashes_of(prompt(1, N), tenant=RED, scope=SCOPE)
    ]


@pytest.mark.parametrize("codec", ["fp8", "int8"])
def test_a_lossy_block_that_comes_and_goes_does_not_wear_out(
    make_client: MakeClient, tier: RedisTier, codec: str
) -> None:
    """What was loaded is what leaves again; where Redis has lost it meanwhile, it is stored anew from that."""
    codecs = {RED: codec}
    client = make_client(codecs)
    save(client, RED)
    push_out(client, tier, codecs)
    first = load(client, RED)
    for _ in range(3):
        tier._ledger.clear(RED)
        push_out(client, tier, codecs)
        assert load(client, RED) == first
    assert client._driver.counters.torn_copies == 0


def test_what_a_tenant_stored_lossy_of_a_groups_blocks_is_never_read_by_the_group(
    make_client: MakeClient, tier: RedisTier
) -> None:
    """A tenant that leaves its group and chooses a lossy codec still holds blocks that are the group's."""
    in_group = {t: TenantPolicy(tenant=t, sharing="group:lab") for t in (RED, BLUE)}
    client, other = make_client({}), make_client({})
    client.set_policies(in_group)
    other.set_policies(in_group)
    save(client, RED)
    push_out(client, tier, {RED: "fp8"})
    assert tier.counters().codecs == {"fp8": N}
    assert load(other, BLUE) == []
    assert tier.counters().misses == {"codec": N}
    save(other, BLUE)
    assert [source for source, _ in load(other, BLUE)] == [Source.HOT] * N


def test_a_codec_that_does_not_suit_the_layout_is_refused_before_anything_changes(tier: RedisTier) -> None:
    layout = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="float8_e4m3fn")
    scope = ModelScope(model="small", weights_version="1", layout=layout)
    client = LocalClient(scope, PoolSettings(bytes=4 * layout.block_bytes), redis=tier)
    with pytest.raises(ConfigError, match="redis_codec: int8 needs elements of float32, bfloat16, float16"):
        set_policies(client, {RED: "int8"})
    assert client.core.ledger.policy(RED).redis_codec == "none"
    client.close()
