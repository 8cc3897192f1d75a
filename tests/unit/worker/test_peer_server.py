"""The peer server's own edges, in this process: what real workers cannot be made to show."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import worker.peer_server
from tests.support.content import LAYOUT, SCOPE, TENANT, hashes_of, prompt, right_bytes
from tests.support.worker_process import until
from tiered.hashing.scope import scope_id, tenant_label
from tiered.jobs import PeerAddress
from tiered.pool.pool import BlockPool
from tiered.tiers.peer import PeerTier
from tiered.types import BlockHash, BlockId, Epoch, LeaseId
from worker.hot_tier import Lent
from worker.peer_server import PeerServer

N = 4
HASHES = hashes_of(prompt(1, N))
ROOT = scope_id(SCOPE, label=tenant_label(TENANT))


class Lending:
    """A pool that holds HASHES, in order."""

    def __init__(self) -> None:
        self.lent = 0
        self._pool = BlockPool(LAYOUT, N)
        for index, block_hash in enumerate(HASHES):
            self._pool.host_view(BlockId(index))[:] = right_bytes(block_hash, LAYOUT.block_bytes)

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        self.lent += 1
        return Lent(LeaseId(1), tuple((index, BlockId(HASHES.index(h)), None) for index, h in enumerate(hashes)))

    def take_back(self, lent: Lent) -> None:
        self.lent -= 1

    def epoch(self) -> int:
        return 3

    def pool(self) -> BlockPool | None:
        return self._pool


@contextmanager
def serving() -> Iterator[tuple[PeerServer, Lending, PeerTier, PeerAddress]]:
    lending = Lending()
    server = PeerServer("127.0.0.1", 0, lending, node="w1", secret="s", timeout_s=5.0)
    try:
        with closing(PeerTier("w2", "s", timeout_s=5.0)) as tier:
            yield server, lending, tier, PeerAddress("w1", Epoch(3), "127.0.0.1", server.port)
    finally:
        server.stop()


def fetch(tier: PeerTier, address: PeerAddress) -> list[bytes | None]:
    outs = [memoryview(bytearray(LAYOUT.block_bytes)) for _ in HASHES]
    return tier.fetch(address, HASHES, outs, scope_id=ROOT)


class Listener:
    """A listener that for a while has no descriptor left for another connection."""

    def __init__(self, inner: socket.socket, n_failures: int) -> None:
        self._inner = inner
        self.n_failures = n_failures

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.n_failures:
            self.n_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_a_want_of_descriptors_passes() -> None:
    with serving() as (server, _, tier, address):
        listener = Listener(server._listener, 2)
        server._listener = listener  # type: ignore[assignment]
        server.start()
        assert None not in fetch(tier, address)
        assert listener.n_failures == 0


def test_no_block_is_sent_after_the_lease_it_was_lent_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.peer_server, "STREAM_S", 0.0)
    with serving() as (server, lending, tier, address):
        server.start()
        started = time.monotonic()
        assert fetch(tier, address) == [None] * N
        assert time.monotonic() - started < 4.0
        until(lambda: lending.lent == 0, "what was lent is taken back")
        assert server.counters().sent_blocks == 0


def test_counters_are_a_snapshot() -> None:
    with serving() as (server, lending, tier, address):
        server.start()
        before, before_here = server.counters(), tier.counters()
        assert None not in fetch(tier, address)
        until(lambda: server.counters().sent_blocks == N, "counted")
        assert (before.sent_blocks, before_here.blocks, tier.counters().blocks) == (0, 0, N)
        server.stop()
        assert fetch(tier, address) == [None] * N
        assert tier.counters().misses == {"unavailable": N}
        assert fetch(tier, address) == [None] * N  # asked again at once, the peer is left alone for a while
        assert tier.counters().misses == {"unavailable": N, "resting": N}
        assert before_here.misses == {}
        assert lending.lent == 0
