"""Values of every codec side by side in one Redis: what each costs, what it gives back, and what damage does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import redis

from tests.support.codecs import check_error, normal_block
from tests.support.redis_server import block_hash
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage
from tiered.cluster.tenants import Tenants
from tiered.codec.codecs import CODEC_NAMES, CODECS, encode
from tiered.codec.frame import HEADER_BYTES, BlockHeader, checksum_of, decode_header, encode_header
from tiered.config import RedisSettings
from tiered.layout import KvLayout
from tiered.tenancy.policy import LOSSY_CODECS, TenantPolicy
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.tiers.redis.values import PART_BYTES
from tiered.types import NOWHERE, TenantId

RED = TenantId("red")
SCOPE = b"s" * 32
LAYOUT = KvLayout(n_layers=4, n_kv_heads=2, head_dim=64, dtype="bfloat16")
BYTES = LAYOUT.block_bytes


@pytest.fixture
def tier(redis_settings: RedisSettings) -> Iterator[RedisTier]:
    tier = RedisTier(redis_settings)
    yield tier
    tier.close()


def raw(name: str, layout: KvLayout = LAYOUT) -> bytes:
    return normal_block(layout, sum(map(ord, name)))


def put(tier: RedisTier, *names: str, codec: str, layout: KvLayout = LAYOUT, data: bytes = b"") -> list[PutAnswer]:
    blocks = [
        ToStore(block_hash(name), RED, depth, memoryview(data or raw(name, layout)), None, codec=codec)
        for depth, name in enumerate(names)
    ]
    return tier.put(blocks, scope_id=SCOPE, layout=layout)


def get(tier: RedisTier, *names: str, layout: KvLayout = LAYOUT) -> list[bytes | None]:
    wanted = [Wanted(block_hash(name), memoryview(bytearray(b"\xa5" * layout.block_bytes))) for name in names]
    checksums = tier.get(wanted, scope_id=SCOPE, tenant=RED, layout=layout)
    for item, checksum in zip(wanted, checksums, strict=True):
        assert checksum is None or checksum == checksum_of(item.out), "the checksum is not that of the buffer"
    return [None if checksum is None else bytes(item.out) for item, checksum in zip(wanted, checksums, strict=True)]


def n_stored(codec: str, data: bytes) -> int:
    return encode(codec, memoryview(data), LAYOUT).stored.nbytes


def test_values_of_all_codecs_live_together_and_are_read_by_their_headers(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    for codec in CODEC_NAMES:
        assert put(tier, codec, codec=codec) == [PutAnswer.STORED]
    blocks = dict(zip(CODEC_NAMES, get(tier, *CODEC_NAMES), strict=True))
    for codec in CODEC_NAMES:
        block, value = blocks[codec], command(redis_client, "GET", redis_keys.block(block_hash(codec)))
        assert block is not None
        assert decode_header(value).codec == codec
        assert len(value) == HEADER_BYTES + n_stored(codec, raw(codec))
        if codec in ("none", "lossless"):
            assert block == raw(codec)
        else:
            check_error(codec, raw(codec), block, LAYOUT)
    counters = tier.counters()
    assert counters.codecs == dict.fromkeys(CODEC_NAMES, 1)
    assert counters.bytes_written == counters.bytes_read == sum(n_stored(codec, raw(codec)) for codec in CODEC_NAMES)


def test_a_block_that_is_there_stays_as_it_is_whatever_another_writer_would_choose(tier: RedisTier) -> None:
    put(tier, "a", codec="fp8")
    lossy = get(tier, "a")
    assert put(tier, "a", codec="none") == put(tier, "a", codec="lossless") == [PutAnswer.ALREADY_THERE]
    assert get(tier, "a") == lossy != [raw("a")]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_who_may_only_read_exact_values_misses_lossy_ones_and_they_go(tier: RedisTier, codec: str) -> None:
    put(tier, "a", codec=codec)
    out = memoryview(bytearray(BYTES))
    wanted = [Wanted(block_hash("a"), out)]
    [checksum] = tier.get(wanted, scope_id=SCOPE, tenant=RED, layout=LAYOUT, exact_only=True)
    if codec in LOSSY_CODECS:
        assert checksum is None
        assert tier.counters().misses == {"codec": 1}
        assert tier.lookup([block_hash("a")]) == [NOWHERE]
    else:
        assert checksum is not None
        assert out == raw("a")


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_block_that_the_codec_cannot_store_comes_back_bit_for_bit(tier: RedisTier, codec: str) -> None:
    noise = np.random.default_rng(1).bytes(BYTES)  # NaNs of every kind, and nothing to compress
    poisoned = raw("a")[:-2] + b"\x80\x7f"
    put(tier, "noise", codec=codec, data=noise)
    put(tier, "poisoned", codec=codec, data=poisoned)
    assert get(tier, "noise", "poisoned") == [noise, poisoned]
    assert tier.counters().codecs == {"none": 1, "lossless": 1}


@pytest.mark.parametrize("codec", list(CODECS))
def test_the_tenant_is_charged_what_is_stored_and_its_limit_holds_more_blocks(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, codec: str
) -> None:
    names = [f"{codec}-{n}" for n in range(8)]
    sizes = [HEADER_BYTES + n_stored(codec, raw(name)) for name in names]
    Tenants(redis_client, redis_keys).create(
        TenantPolicy(tenant="red", redis_limit_bytes=sum(sizes[:4]), over_quota="refuse")
    )
    for name in names[:4]:
        assert put(tier, name, codec=codec) == [PutAnswer.STORED]
    assert put(tier, names[4], codec=codec) == [PutAnswer.REFUSED_QUOTA]
    assert RedisLedger(redis_client, redis_keys).usage() == {RED: RedisUsage(sum(sizes[:4]), 0, 4)}
    assert sum(sizes[:4]) < 3 * (HEADER_BYTES + BYTES)


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_changed_byte_anywhere_is_a_miss_counted_and_removed_unless_it_looks_like_a_later_release(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, codec: str
) -> None:
    key = redis_keys.block(block_hash("b"))
    put(tier, "a", "b", "c", codec=codec)
    length = command(redis_client, "STRLEN", key)
    good = get(tier, "a", "b", "c")
    offsets = [0, 4, 7, 20, 60, 100, 130, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5, length // 2, length - 1]
    kept = 0
    for offset in offsets:
        byte = command(redis_client, "GETRANGE", key, offset, offset)[0]
        command(redis_client, "SETRANGE", key, offset, bytes([byte ^ 0x40]))
        before = sum(tier.counters().misses.values())
        assert get(tier, "a", "b", "c") == [good[0], None, good[2]], f"offset {offset}"
        assert sum(tier.counters().misses.values()) == before + 1
        if tier.counters().misses.get("version", 0) > kept:
            kept += 1
            assert [each.in_redis for each in tier.lookup([block_hash("b")])] == [True]
            command(redis_client, "SETRANGE", key, offset, bytes([byte]))
        else:
            assert tier.lookup([block_hash("b")]) == [NOWHERE]
            assert put(tier, "b", codec=codec) == [PutAnswer.STORED]
    assert 1 <= kept <= 2, "the version, and what may be the codec's name"
    assert get(tier, "b") == [good[1]]


@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("change", [-1, +1])
def test_an_encoded_value_of_another_length_is_a_miss(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, codec: str, change: int
) -> None:
    key = redis_keys.block(block_hash("b"))
    put(tier, "a", "b", "c", codec=codec)
    value = command(redis_client, "GET", key)
    command(redis_client, "SET", key, (value + b"x")[: len(value) + change])
    assert [block is not None for block in get(tier, "a", "b", "c")] == [True, False, True]
    assert tier.counters().misses == {"length": 1}
    assert tier.lookup([block_hash("b")]) == [NOWHERE]


@pytest.mark.parametrize(
    ("codec", "stored", "reason"),
    [
        ("lossless", b"x" * 100, "decode"),
        ("lossless", b"", "decode"),
        ("fp8", b"x" * 100, "decode"),
        ("int8", b"\xff" * (BYTES // 2 + 64), "decode"),
        ("lossless", b"x" * BYTES, "length"),
        ("none", b"x" * 100, "length"),
    ],
)
def test_a_value_with_a_good_checksum_that_does_not_decode_is_a_miss_and_removed(
    tier: RedisTier, redis_client: redis.Redis, redis_keys: Keys, codec: str, stored: bytes, reason: str
) -> None:
    """As a writer with a defect would leave it."""
    put(tier, "a", codec="none")
    header = BlockHeader(
        block_hash=block_hash("a"),
        scope_id=SCOPE,
        codec=codec,
        raw_bytes=BYTES,
        stored_bytes=len(stored),
        checksum=checksum_of(memoryview(stored)),
    )
    command(redis_client, "SET", redis_keys.block(block_hash("a")), encode_header(header) + stored)
    assert get(tier, "a") == [None]
    assert tier.counters().misses == {reason: 1}
    assert tier.lookup([block_hash("a")]) == [NOWHERE]


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_value_in_several_strings_may_need_fewer_of_them(tier: RedisTier, codec: str) -> None:
    layout = KvLayout(n_layers=9, n_kv_heads=8, head_dim=64, dtype="bfloat16", block_tokens=512)
    assert layout.block_bytes > 2 * PART_BYTES
    names = ["x", "y"]
    assert put(tier, *names, codec=codec, layout=layout) == [PutAnswer.STORED] * 2
    for name, block in zip(names, get(tier, *names, layout=layout), strict=True):
        assert block is not None
        if codec == "lossless":
            assert block == raw(name, layout)
        else:
            check_error(codec, raw(name, layout), block, layout)
