"""The worker's side of sequences over the socket, where a real process cannot be stopped at the right moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import worker.sequence_server
from tests.support.content import LAYOUT, SCOPE, TENANT
from tests.support.hot import hot_tier
from tiered.cluster.embedded import EmbeddedServer
from tiered.core.invariants import check_core
from tiered.errors import CapacityError
from tiered.hashing.scope import scope_id, tenant_label
from tiered.wire.messages import Append, Appended, Attend, DropSequence, Fork, SequenceOpened
from worker.hot_tier import HotTier
from worker.sequence_server import SEQUENCES_MAX, SequenceServer

N_BLOCKS = 4
ROOT = scope_id(SCOPE, label=tenant_label(TENANT))


@pytest.fixture
def hot(redis_server: EmbeddedServer) -> Iterator[HotTier]:
    with hot_tier(redis_server, n_blocks=N_BLOCKS) as tier:
        yield tier


def append(sequence: int, n_tokens: int) -> Append:
    return Append(sequence, b"\1\0\0\0" * n_tokens, bytes(n_tokens * LAYOUT.token_bytes))


async def served(hot: HotTier) -> SequenceServer:
    await hot.attach(SCOPE, 1)
    return SequenceServer(hot, 1, asyncio.Semaphore(1))


def test_nobody_computes_over_blocks_that_an_engine_packs_its_own_way(hot: HotTier) -> None:
    packed = msgspec.structs.replace(SCOPE, layout=msgspec.structs.replace(LAYOUT, interior="an engine's"))

    async def run() -> None:
        await hot.attach(packed, 1)
        with pytest.raises(ValueError, match="blocks packed as an engine's can only be copied whole"):
            SequenceServer(hot, 1, asyncio.Semaphore(1)).open(TENANT, scope_id(packed, label=tenant_label(TENANT)))

    asyncio.run(run())


def test_what_a_thread_still_writes_into_is_not_given_back_before_it_is_done(
    hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def stall(*_: Any) -> list[bytes | None]:
        begun.set()
        assert may_end.wait(20)
        return [None]

    monkeypatch.setattr(worker.sequence_server, "write_tokens", stall)

    async def stop_in_the_middle() -> None:
        server = await served(hot)
        opened = server.open(TENANT, ROOT)
        request = asyncio.create_task(server.reply(append(opened.sequence, 17)))
        assert await asyncio.to_thread(begun.wait, 20)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        server.close()
        assert hot.blocks_by_state()["filling"] == 2
        may_end.set()
        assert server._work is not None
        await asyncio.wait_for(server._work, 20)
        assert hot.blocks_by_state()["free"] == N_BLOCKS
        check_core(hot.core)
        await hot.close(timeout_s=5.0)

    asyncio.run(stop_in_the_middle())


def test_a_write_that_fails_takes_the_append_back(hot: HotTier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_once() -> None:
        server = await served(hot)
        opened = server.open(TENANT, ROOT)
        await server.reply(append(opened.sequence, 3))
        twin = await server.reply(Fork(opened.sequence))
        assert isinstance(twin, SequenceOpened)

        def fail(*_: Any) -> None:
            raise RuntimeError("the device is gone")

        with monkeypatch.context() as patch:
            patch.setattr(worker.sequence_server, "write_tokens", fail)
            with pytest.raises(RuntimeError, match="the device is gone"):
                await server.reply(append(twin.sequence, 20))
        check_core(hot.core)
        assert hot.blocks_by_state()["filling"] == 1
        assert await server.reply(append(twin.sequence, 20)) == Appended(23, 0)
        server.close()
        check_core(hot.core)
        assert hot.blocks_by_state() == {"free": 3, "filling": 0, "ready": 1, "leaving": 0}
        await hot.close(timeout_s=5.0)

    asyncio.run(fail_once())


def test_sequences_and_batches_of_a_connection_are_bounded(hot: HotTier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_for_more() -> None:
        server = await served(hot)
        first = server.open(TENANT, ROOT)
        await server.reply(append(first.sequence, 20))
        for _ in range(SEQUENCES_MAX - 1):
            await server.reply(Fork(first.sequence))
        with pytest.raises(CapacityError, match="holds 1024 sequences already"):
            await server.reply(Fork(first.sequence))
        with pytest.raises(CapacityError, match="holds 1024 sequences already"):
            server.open(TENANT, ROOT)
        many = (first.sequence,) * (SEQUENCES_MAX + 1)
        with pytest.raises(ValueError, match="1025 in one batch"):
            await server.reply(Attend(many, (0,) * len(many), 0, 4, b""))
        monkeypatch.setattr(worker.sequence_server, "TABLE_ENTRIES_MAX", 3)
        with pytest.raises(ValueError, match="a block table of 4 entries is more than 3"):
            await server.reply(Attend(many[:2], (1, 1), 0, 4, bytes(2 * 4 * 16 * 4)))
        await server.reply(DropSequence(first.sequence))
        server.open(TENANT, ROOT)
        server.close()
        check_core(hot.core)
        assert hot.core.sequences == {}
        await hot.close(timeout_s=5.0)

    asyncio.run(ask_for_more())
