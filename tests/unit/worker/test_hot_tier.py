"""The hot tier before and while its pool is made; what it does afterwards is shown by real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

import worker.building
from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt
from tests.support.redis_server import settings_for
from tests.unit.core.builders import HandSeam
from tiered.clock import SystemClock
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import PoolSettings
from tiered.errors import ConfigError, OwnershipError
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import Completion
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from tiered.types import NodeStats
from worker.host import FOLDED_BLOCKS
from worker.hot_tier import HotTier


@pytest.fixture
def hot(redis_server: EmbeddedServer) -> Iterator[HotTier]:
    with ExitStack() as stack:
        redis, peers = RedisTier(settings_for(redis_server)), PeerTier("w1", "", timeout_s=1.0)
        stack.callback(redis.close)
        stack.callback(peers.close)
        yield HotTier(PoolSettings(bytes=4 * LAYOUT.block_bytes), redis, peers, SystemClock())


def test_before_the_first_engine_there_is_nothing_to_ask(hot: HotTier) -> None:
    assert hot.lend([], scope_id=b"") is None
    assert (hot.stats(), hot.pool, hot.blocks_by_state(), hot.resident_hashes()) == (NodeStats(), None, {}, [])
    with pytest.raises(OwnershipError, match="no engine has attached yet"):
        hot.open(connection=1, tenant=TENANT, scope_id=b"", hashes=[])
    assert hot.detach(1) == 0


def test_a_device_without_memory_is_a_sentence_about_the_setting(
    hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(worker.building, "BlockPool", no_memory)
    with pytest.raises(ConfigError, match=r"pool\.bytes: cpu does not give \d+ bytes: CUDA out of memory"):
        asyncio.run(hot.attach(SCOPE, 1))
    assert hot.stats().engines == 0


def test_engines_that_attach_at_once_get_one_pool(hot: HotTier) -> None:
    async def attach() -> None:
        pools = await asyncio.gather(*(hot.attach(SCOPE, connection) for connection in (1, 2, 3)))
        assert len({id(pool) for pool in pools}) == 1
        assert hot.stats().engines == 3
        assert hot.detach(2) == 0
        assert hot.stats().engines == 2
        await hot.close(timeout_s=5.0)
        await hot.close(timeout_s=5.0)

    asyncio.run(attach())


def test_who_waits_for_room_in_vain_keeps_nobody_else_awake(hot: HotTier) -> None:
    class StuckSeam(HandSeam):
        """Copies that are begun and never end."""

        n_turns = 0

        def poll(self) -> list[Completion]:
            self.n_turns += 1
            return super().poll()

    async def wait_for_room() -> int:
        await hot.attach(SCOPE, 1)
        built = hot._built
        assert built is not None
        hashes, scope = hashes_of(prompt(1, 4)), scope_id(SCOPE, label=tenant_label(TENANT))
        lease = hot.open(connection=1, tenant=TENANT, scope_id=scope, hashes=hashes)
        await hot.allocate(lease, n_blocks_max=4, wait_s=1.0)
        await hot.commit(lease, [None] * 4)
        hot.release(lease.lease_id, connection=1, used_tokens=0)
        seam = StuckSeam()
        hot._built = replace(built, handoff=seam)  # type: ignore[arg-type]
        saves = [
            hot.open(connection=1, tenant=TENANT, scope_id=scope, hashes=hashes_of(prompt(seed, 4)))
            for seed in (2, 3)
        ]
        await asyncio.gather(*(hot.allocate(save, n_blocks_max=4, wait_s=0.1) for save in saves))
        hot._built = built
        await hot.close(timeout_s=5.0)
        return seam.n_turns

    assert asyncio.run(wait_for_room()) < 20


def test_what_requests_noted_for_the_curves_is_folded_after_the_answer_a_slice_at_a_time(hot: HotTier) -> None:
    async def match() -> list[bool]:
        await hot.attach(SCOPE, 1)
        sampler, scope = hot.core.sampler, scope_id(SCOPE, label=tenant_label(TENANT))
        assert sampler is not None
        for _ in range(2):
            sampler.looked_up(TENANT, hashes_of(prompt(1, 4)) * (FOLDED_BLOCKS // 4), prompt_tokens=1, now=0.0)
        await hot.match(connection=1, tenant=TENANT, scope_id=scope, hashes=[], asked_tokens=0)
        left = []
        for _ in range(3):
            left.append(sampler.fold(0))
            await asyncio.sleep(0)
        await hot.close(timeout_s=5.0)
        return left

    assert asyncio.run(match()) == [True, True, False]
