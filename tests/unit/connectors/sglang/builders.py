"""A backend on a core in this process, with host pools as SGLang has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.hicache import ExtraInfo, HiCacheConfig, HostPool, fill, wrong_pages
from tests.support.redis_server import eventually
from tiered.client.local import LocalClient
from tiered.config import PoolSettings
from tiered.connectors.sglang.backend import Backend
from tiered.connectors.sglang.clients import Clients
from tiered.core.demote import make_room
from tiered.core.invariants import check_core
from tiered.core.pump import pump
from tiered.core.stats import node_stats
from tiered.hashing.scope import ModelScope
from tiered.tiers.redis.tier import RedisTier
from tiered.types import TenantId, TokenCounts


class SharedClients(Clients):
    """One client for all purposes, closed by the bench."""

    def close(self) -> None:
        pass


@dataclass
class Bench:
    """Backends of equal scope share one core."""

    n_blocks: int = 64
    redis: RedisTier | None = None
    settings: Mapping[str, object] = field(default_factory=lambda: {"free_target": 0.0})
    client: LocalClient | None = None

    def attach(self, socket_path: str, scope: ModelScope) -> Clients:
        if self.client is None:
            pool = PoolSettings.model_validate({"bytes": self.n_blocks * scope.layout.block_bytes, **self.settings})
            self.client = LocalClient(scope, pool, redis=self.redis)
        assert self.client.layout == scope.layout
        return SharedClients(self.client, self.client, self.client)

    def backend(self, pool: HostPool, config: HiCacheConfig | None = None) -> Backend:
        backend = Backend(config or HiCacheConfig(), attach=self.attach)
        backend.register(pool)
        return backend

    @property
    def local(self) -> LocalClient:
        assert self.client is not None
        return self.client

    def check(self) -> None:
        check_core(self.local.core)
        assert not self.local.core.leases, "something is still held"

    def tokens(self, tenant: str = "default") -> TokenCounts:
        stats = node_stats(self.local.core, engines=1, layout="").tenants.get(TenantId(tenant))
        return TokenCounts() if stats is None else stats.tokens

    def evict(self) -> None:
        """Let everything hot leave, by way of Redis where there is one."""
        core, pool = self.local.core, self.local.pool
        n_hot = len(core.index)
        for _ in range(n_hot):
            with self.local._changed:
                make_room(core, asking=TenantId("default"), n_blocks=pool.n_blocks, copy=self.redis is not None)
                pump(core, self.local._handoff)

            def settled() -> bool:
                with self.local._changed:
                    pump(core, self.local._handoff)
                    return not core.leaving

            eventually(settled)
            if not core.index:
                return
        assert not core.index

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


@contextmanager
def bench(n_blocks: int = 64, redis: RedisTier | None = None, **settings: object) -> Iterator[Bench]:
    """Every rule of the core is checked at its end, and that nothing is held any more."""
    made = Bench(n_blocks, redis, {"free_target": 0.0, **settings})
    try:
        yield made
        if made.client is not None:
            made.check()
    finally:
        made.close()


def put(backend: Backend, pool: HostPool, keys: list[str], prefix: list[str] | None = None) -> list[bool]:
    """Store the right pages of these keys from the pool's own memory."""
    indices = pool.take(len(keys))
    fill(pool, indices, keys)
    stored = backend.batch_set_v1(keys, indices, ExtraInfo(prefix))
    pool.kv_buffer.zero_()
    pool.give(indices)
    return stored


def got(backend: Backend, pool: HostPool, keys: list[str], prefix: list[str] | None = None) -> int:
    """How many pages are said to be right; all of those are, bit by bit, or AssertionError."""
    indices = pool.take(len(keys))
    answers = backend.batch_get_v1(keys, indices, ExtraInfo(prefix))
    assert len(answers) == len(keys)
    n_read = answers.index(False) if False in answers else len(answers)
    assert not any(answers[n_read:]), "True after a False"
    assert wrong_pages(pool, indices, keys[:n_read]) == []
    pool.give(indices)
    return n_read
