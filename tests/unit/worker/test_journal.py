"""The journal under a hot tier: who waits for it, what it is told, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import worker.journal
from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt
from tests.support.redis_server import settings_for
from tests.support.worker_process import until
from tiered.clock import SystemClock
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import PoolSettings
from tiered.journal.journal import Journal
from tiered.pool import named
from tiered.tiers.peer import PeerTier
from tiered.tiers.redis.tier import RedisTier
from worker.hot_tier import HotTier
from worker.journal import HotJournal
from worker.settings import JournalSettings

HASHES = hashes_of(prompt(1, 4))
CHECKSUMS = [bytes([n]) * 16 for n in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tiered-w1.journal"
    named.remove_pools(tmp_path / "tiered-w1.journal")


def open_hot(stack: ExitStack, server: EmbeddedServer, path: Path, **settings: object) -> HotTier:
    redis, peers = RedisTier(settings_for(server)), PeerTier("w1", "", timeout_s=1.0)
    stack.callback(redis.close)
    stack.callback(peers.close)
    journal = HotJournal(JournalSettings.model_validate(settings), path, node="w1")
    stack.callback(journal.close)
    return HotTier(PoolSettings(bytes=16 * LAYOUT.block_bytes), redis, peers, SystemClock(), journal=journal)


async def save(hot: HotTier, n_blocks: int = 4) -> None:
    lease = hot.open(connection=1, tenant=TENANT, scope_id=b"s" * 32, hashes=HASHES[:n_blocks])
    await hot.allocate(lease, n_blocks_max=n_blocks, wait_s=1.0)
    assert await hot.commit(lease, CHECKSUMS[:n_blocks]) == n_blocks
    hot.release(lease.lease_id, connection=1, used_tokens=0)


def rows(path: Path) -> dict[bytes, tuple[int, int | None]]:
    """hash -> hits and slot, as the next life reads them."""
    opened = Journal(path, mode="batched", node="w1")
    _, found = opened.earlier()
    opened.close(keep=True)
    return {row.block_hash: (row.hits, row.slot) for row in found}


def test_in_strict_mode_a_commit_that_was_answered_is_on_the_disk(redis_server: EmbeddedServer, path: Path) -> None:
    async def run(hot: HotTier) -> None:
        await hot.attach(SCOPE, 1)
        await save(hot)
        assert hot.journal is not None
        assert hot.journal.snapshot().counters.written == 4
        await hot.close(timeout_s=1.0)

    with ExitStack() as stack:
        asyncio.run(run(open_hot(stack, redis_server, path, mode="strict", keep_on_stop=True)))
    assert {slot for _, slot in rows(path).values()} == {0, 1, 2, 3}


@pytest.mark.parametrize("mode", ["batched", "strict"])
def test_a_disk_that_hangs_delays_a_strict_commit_by_its_bound_and_a_batched_one_not_at_all(
    redis_server: EmbeddedServer, path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.journal, "DURABLE_S", 0.2)
    gate = threading.Event()

    async def run(hot: HotTier) -> float:
        await hot.attach(SCOPE, 1)
        assert hot.journal is not None
        file = hot.journal._journal._file
        write = file.apply
        monkeypatch.setattr(file, "apply", lambda *args, **kwargs: gate.wait(10) and write(*args, **kwargs))
        started = time.monotonic()
        await save(hot)
        took = time.monotonic() - started
        hot.write_journal(uses=True)
        gate.set()
        await hot.close(timeout_s=1.0)
        return took

    with ExitStack() as stack:
        took = asyncio.run(run(open_hot(stack, redis_server, path, mode=mode)))
    assert (took >= 0.2) == (mode == "strict")
    assert took < 2.0


def test_the_directory_and_the_journal_hear_of_the_same_events(redis_server: EmbeddedServer, path: Path) -> None:
    async def run(hot: HotTier) -> None:
        await hot.attach(SCOPE, 1)
        await save(hot)
        hot.write_journal(uses=False)
        assert set(hot.drain_events().stored) == set(HASHES)
        assert hot.drain_events().stored == ()
        await hot.close(timeout_s=1.0)

    with ExitStack() as stack:
        asyncio.run(run(open_hot(stack, redis_server, path, keep_on_stop=True)))
    assert set(rows(path)) == set(HASHES)


def test_uses_are_counted_per_block_and_request(redis_server: EmbeddedServer, path: Path) -> None:
    async def run(hot: HotTier) -> None:
        await hot.attach(SCOPE, 1)
        await save(hot)
        for n_blocks in (2, 4, 2):
            lease, _, _ = await hot.match(
                connection=1, tenant=TENANT, scope_id=b"s" * 32, hashes=HASHES[:n_blocks], asked_tokens=64
            )
            hot.release(lease.lease_id, connection=1, used_tokens=0)
        await hot.close(timeout_s=1.0)

    with ExitStack() as stack:
        asyncio.run(run(open_hot(stack, redis_server, path, keep_on_stop=True)))
    assert [rows(path)[block_hash][0] for block_hash in HASHES] == [3, 3, 1, 1]


def test_a_second_end_does_not_touch_what_a_new_life_has_claimed(redis_server: EmbeddedServer, path: Path) -> None:
    async def attach(hot: HotTier) -> None:
        await hot.attach(SCOPE, 1)
        await save(hot)

    with ExitStack() as stack:
        old = open_hot(stack, redis_server, path)
        asyncio.run(attach(old))
        asyncio.run(old.close(timeout_s=1.0))
        new = open_hot(stack, redis_server, path)
        asyncio.run(attach(new))
        asyncio.run(old.close(timeout_s=1.0))
        assert len(list(named.SHM_DIR.glob(f"{named.stem('w1', path)}-*"))) == 1
        asyncio.run(new.close(timeout_s=1.0))
    until(lambda: not list(named.SHM_DIR.glob(f"{named.stem('w1', path)}-*")), "the pool file is gone")
