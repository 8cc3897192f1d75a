"""The calls of a storage backend on a core in this process: exact bytes, counts from the front, doubt is False."""

from __future__ import annotations

import pytest
import torch

from tests.support.hicache import (
    ExtraInfo,
    HiCacheConfig,
    HostPool,
    LatentPool,
    fill,
    page_keys,
    right_page,
    same_bits,
    wrong_pages,
)
from tests.support.redis_server import eventually, settings_for
from tests.unit.connectors.sglang.builders import bench, got, put
from tiered.blocks.record import NO_PARENT
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.sglang.backend import Backend
from tiered.errors import ConfigError
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.tier import RedisTier
from tiered.types import TenantId

KEYS = page_keys("p", 10)


def pools() -> list[HostPool]:
    layouts = ("layer_first", "page_first", "page_first_direct", "page_head")
    plain = [HostPool(layout=layout, sizes_as_int=layout == "page_head") for layout in layouts]
    latent = [LatentPool(layout=layout) for layout in layouts[:3]]
    return [*plain, *latent, HostPool(dtype=torch.float8_e4m3fn), HostPool(dtype=torch.float32, page_size=1)]


@pytest.mark.parametrize("pool", pools(), ids=lambda pool: f"{type(pool).__name__}-{pool.layout}-{pool.dtype}")
def test_both_paths_bring_back_every_bit_that_either_stored(pool: HostPool) -> None:
    by_pointer, by_tensor = KEYS[:4], page_keys("t", 4)
    with bench() as made:
        backend = made.backend(pool)
        assert put(backend, pool, by_pointer) == [True] * 4
        assert backend.batch_set(by_tensor, [right_page(pool, key) for key in by_tensor])
        for keys in (by_pointer, by_tensor):
            assert backend.batch_exists(keys) == 4
            assert got(backend, pool, keys) == 4
            targets = [pool.get_dummy_flat_data_page() for _ in keys]
            pages = backend.batch_get(keys, targets)
            assert [page is target for page, target in zip(pages, targets, strict=True)] == [True] * 4
            assert all(same_bits(page, right_page(pool, key)) for page, key in zip(targets, keys, strict=True))


def test_single_pages_are_batches_of_one() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        assert not backend.exists(KEYS[0])
        assert backend.get(KEYS[0]) is None
        assert backend.set(KEYS[0], right_page(pool, KEYS[0]))
        assert backend.exists(KEYS[0])
        page = backend.get(KEYS[0])
        assert page is not None
        assert same_bits(page, right_page(pool, KEYS[0]))
        assert not backend.set(KEYS[1], None)


def test_what_is_there_is_counted_up_to_the_first_gap() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:4])
        put(backend, pool, KEYS[6:], KEYS[:6])
        assert backend.batch_exists(KEYS) == 4
        assert backend.batch_exists(KEYS[6:], ExtraInfo(KEYS[:6])) == 4
        assert got(backend, pool, KEYS) == 4
        assert backend.batch_exists(page_keys("unknown", 3)) == 0
        assert backend.batch_exists([]) == 0


@pytest.mark.parametrize("pass_prefix", [True, False])
def test_batches_hang_on_the_page_before_them_as_soon_as_that_is_known(*, pass_prefix: bool) -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        backend.batch_exists(KEYS)  # the whole prompt is asked for first
        put(backend, pool, KEYS[:4])
        put(backend, pool, KEYS[4:], KEYS[:4] if pass_prefix else None)
        depths = sorted(record.depth for _, record in made.local.core.resident())
        assert depths == list(range(10))


def test_a_batch_whose_prefix_is_not_here_is_kept_all_the_same() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        assert all(put(backend, pool, KEYS[6:], KEYS[:6]))
        assert got(backend, pool, KEYS[6:], KEYS[:6]) == 4
        assert all(put(backend, pool, KEYS))  # those in the middle are here already
        assert got(backend, pool, KEYS) == 10
        assert [r.parent for _, r in made.local.core.resident()].count(NO_PARENT) == 2


def test_a_batch_is_true_only_where_all_of_it_is_stored() -> None:
    pool = HostPool()
    with bench(n_blocks=4) as made:
        backend = made.backend(pool)
        made.local.set_policies(
            {TenantId("default"): TenantPolicy(tenant="default", hot_limit_bytes=2 * pool.page_bytes)}
        )
        assert put(backend, pool, KEYS[:4]) == [True, True, False, False]
        assert not backend.batch_set(KEYS[:4], [right_page(pool, key) for key in KEYS[:4]])
        assert backend.batch_exists(KEYS[:4]) == 2


def test_other_lengths_are_never_copied() -> None:
    pool, sentinel = HostPool(), torch.full((3,), 7.0, dtype=torch.bfloat16)
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:2])
        indices = pool.take(2)
        assert backend.batch_get_v1(KEYS[:2], indices[:-1], None) == [False, False]
        assert backend.batch_get_v1(KEYS[:2], indices[: pool.page_size], None) == [False, False]
        assert backend.batch_set_v1(KEYS[2:4], indices[:-1], None) == [False, False]
        assert backend.batch_get_v1([], indices[:0], None) == []
        short = sentinel.clone()
        assert backend.batch_get([KEYS[0]], [short]) == [None]
        assert torch.equal(short, sentinel)
        assert backend.batch_get(KEYS[:2], [pool.get_dummy_flat_data_page()]) == [None, None]
        assert backend.batch_get(KEYS[:2], None) == [None, None]
        strided = torch.zeros(2 * pool.get_dummy_flat_data_page().numel(), dtype=pool.dtype)[::2]
        assert backend.batch_get([KEYS[0]], [strided]) == [None]
        assert not backend.batch_set(KEYS[2:4], [short, short])
        assert not backend.batch_set(KEYS[2:4], [right_page(pool, KEYS[2])])
        assert backend.batch_exists(KEYS[2:4]) == 0
        pool.give(indices)


def test_a_pool_whose_pages_are_not_what_it_says_is_refused_at_the_start() -> None:
    class Odd(HostPool):
        def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int] | int]:
            addresses, _ = super().get_page_buffer_meta(indices)
            return addresses, 1

    with bench() as made, pytest.raises(ConfigError, match="a page of Odd does not hold the 512 bytes of gqa 2x2x8"):
        made.backend(Odd())


def test_a_page_whose_bytes_are_not_those_that_were_stored_is_false_and_so_is_all_after_it() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:6])
        third = next(i for i, record in made.local.core.resident() if record.depth == 2)
        made.local.pool.host_view(third)[5] ^= 1
        assert got(backend, pool, KEYS[:6]) == 2
        targets = [pool.get_dummy_flat_data_page() for _ in KEYS[:6]]
        assert [page is not None for page in backend.batch_get(KEYS[:6], targets)] == [True] * 2 + [False] * 4


def test_pages_read_under_pins_that_had_ended_are_false(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:2])
        release = made.local.release

        def late(match: object, **counts: int) -> bool:
            release(match, **counts)  # type: ignore[arg-type]
            return False

        monkeypatch.setattr(made.local, "release", late)
        assert got(backend, pool, KEYS[:2]) == 0


def test_nothing_stored_before_a_clear_is_found_after_it() -> None:
    pool = HostPool()
    with bench() as made:
        backend, other = made.backend(pool), made.backend(pool)
        put(backend, pool, KEYS[:4])
        assert other.batch_exists(KEYS) == 4
        backend.clear()
        assert backend.batch_exists(KEYS) == got(backend, pool, KEYS) == 0
        assert all(put(backend, pool, KEYS[:3]))
        assert got(backend, pool, KEYS) == 3
        assert other.batch_exists(KEYS) == 4
        backend.clear()
        assert backend.batch_exists(KEYS) == 0


def test_tenants_never_find_each_others_pages() -> None:
    pool = HostPool()
    with bench() as made:
        red, blue = (
            made.backend(pool, HiCacheConfig(extra_config={"weights_version": "1", "tenant": tenant}))
            for tenant in ("red", "blue")
        )
        put(red, pool, KEYS[:4])
        assert red.batch_exists(KEYS) == 4
        assert blue.batch_exists(KEYS) == 0


def test_a_request_is_counted_once_whatever_is_asked_again() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:4])
        for _ in range(5):
            assert backend.batch_exists(KEYS) == 4
        size = pool.page_size
        assert (made.tokens().asked, made.tokens().missed) == (6 * size, 6 * size)
        got(backend, pool, KEYS[:4])
        tokens = made.tokens()
        assert (tokens.asked, tokens.hot, tokens.missed) == (10 * size, 4 * size, 6 * size)
        got(backend, pool, KEYS[2:4], KEYS[:2])  # the page before is the engine's own
        assert (made.tokens().asked, made.tokens().hot) == (12 * size, 6 * size)
        put(backend, pool, KEYS[8:], KEYS[:8])
        got(backend, pool, KEYS[8:], KEYS[:8])  # it is not even here
        assert (made.tokens().asked, made.tokens().hot) == (14 * size, 8 * size)


def test_only_the_first_rank_counts() -> None:
    pool = HostPool()
    with bench() as made:
        for config in (HiCacheConfig(tp_rank=1, tp_size=2), HiCacheConfig(pp_rank=1), HiCacheConfig(attn_cp_rank=1)):
            backend = Backend(config, attach=made.attach)
            backend.register(pool)
            put(backend, pool, KEYS[:2])
            backend.batch_exists(KEYS)
            got(backend, pool, KEYS)
        assert made.tokens().asked == 0


def test_slices_of_context_parallelism_are_apart() -> None:
    pool = HostPool()
    with bench() as made:
        first, second = (made.backend(pool, HiCacheConfig(attn_cp_rank=rank, attn_cp_size=2)) for rank in (0, 1))
        put(first, pool, KEYS[:2])
        assert (first.batch_exists(KEYS), second.batch_exists(KEYS)) == (2, 0)


def test_pages_come_back_from_redis_and_from_places_in_turn(redis_server: EmbeddedServer) -> None:
    pool, tier = HostPool(), RedisTier(settings_for(redis_server))
    try:
        with bench(redis=tier) as made:
            backend = made.backend(pool)
            put(backend, pool, KEYS[:4])
            put(backend, pool, KEYS[8:], KEYS[:8])
            made.evict()
            eventually(lambda: backend.batch_exists(KEYS[:4]) == 4 and backend.batch_exists(KEYS[8:]) == 2)
            put(backend, pool, KEYS[4:8], KEYS[:4])  # its prefix is in Redis alone
            assert backend.batch_exists(KEYS) == 10  # Redis, hot, Redis
            assert got(backend, pool, KEYS) == 10
            assert [r.parent for _, r in made.local.core.resident()].count(NO_PARENT) == 2  # the first and the fifth
            assert made.tokens().redis >= 4 * pool.page_size
            assert got(backend, pool, KEYS[5:], KEYS[:5]) == 5
            made.check()
    finally:
        tier.close()


def test_without_a_pool_or_after_its_end_nothing_is_there() -> None:
    pool = HostPool()
    with bench() as made:
        backend = Backend(HiCacheConfig(), attach=made.attach)
        indices = pool.take(1)
        for _ in range(2):
            assert backend.batch_exists(KEYS) == 0
            assert backend.batch_get_v1(KEYS[:1], indices) == backend.batch_set_v1(KEYS[:1], indices) == [False]
            assert backend.get(KEYS[0]) is None
            assert not backend.set(KEYS[0], right_page(pool, KEYS[0]))
            assert backend.moved()[0].pages == []
            backend.clear()
            backend.register(pool)
            fill(pool, indices, KEYS[:1])
            assert backend.batch_set_v1(KEYS[:1], indices) == [True]
            backend.close()
            backend.close()


def test_batches_are_told_once_with_their_rate() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:4])
        got(backend, pool, KEYS[:3])
        got(backend, pool, KEYS[8:])
        reads, writes = backend.moved()
        assert (reads.pages, writes.pages) == ([3], [4])
        assert len(reads.rates) == len(writes.rates) == 1
        assert min(*reads.rates, *writes.rates) > 0
        assert backend.moved()[0].pages == []


def test_models_with_more_than_one_kind_of_pages_are_refused() -> None:
    backend = Backend(HiCacheConfig())
    backend.require_one_pool(["kv"])
    with pytest.raises(ConfigError, match="this model keeps indexer, swa beside its KV"):
        backend.require_one_pool(["kv", "swa", "indexer"])
    with pytest.raises(ConfigError, match="decode context parallelism"):
        Backend(HiCacheConfig(dcp_size=2))


def test_the_memory_of_others_is_left_alone() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:3])
        mine, others = pool.take(3), pool.take(8)
        fill(pool, others, page_keys("others", 8))
        assert backend.batch_get_v1(KEYS[:3], mine) == [True] * 3
        assert wrong_pages(pool, others, page_keys("others", 8)) == []
