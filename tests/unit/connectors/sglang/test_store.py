"""What other engines, and a worker that is replaced at a bad moment, do to a batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.hicache import HostPool, fill, page_keys, wrong_pages
from tests.unit.connectors.sglang.builders import Bench, SharedClients, bench, got, put
from tiered.client.port import Chain
from tiered.connectors.sglang import store
from tiered.connectors.sglang.clients import Clients
from tiered.connectors.sglang.identity import Naming
from tiered.hashing.scope import ModelScope
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, TenantId

KEYS = page_keys("p", 10)


class OtherWriter(threading.Thread):
    """An engine in the middle of storing these keys; ends when told, having stored them or not."""

    def __init__(self, made: Bench, pool: HostPool, keys: list[str]) -> None:
        super().__init__(daemon=True)
        self._made, self._pool, self._keys = made, pool, keys
        self.begun, self.may_end, self.fails = threading.Event(), threading.Event(), False

    def run(self) -> None:
        client = self._made.local
        root = client.chain((), tenant=TenantId("default")).root
        hashes, size = Naming().hashes(root, self._keys), self._pool.page_size
        chain = Chain(TenantId("default"), root, hashes, len(hashes) * size, size)
        source = self._pool.take(len(self._keys))
        fill(self._pool, source, self._keys)

        def write(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            self.begun.set()
            self.may_end.wait(10)
            if self.fails:
                raise RuntimeError("the engine died")
            for offset, block_id in enumerate(block_ids):
                slot = int(source[(first_index + offset) * size])
                content = self._pool.get_data_page(slot).view(torch.uint8).numpy().tobytes()
                pool.host_view(block_id)[:] = content

        try:
            client.save_chain(chain, fill=write)
        except RuntimeError:
            assert self.fails


@pytest.mark.parametrize("fails", [False, True])
def test_pages_that_somebody_else_is_writing_are_waited_for(*, fails: bool) -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        other = OtherWriter(made, pool, KEYS[:4])
        other.fails = fails
        other.start()
        assert other.begun.wait(10)
        answers: list[list[bool]] = []
        indices = pool.take(6)
        fill(pool, indices, KEYS[:6])
        mine = threading.Thread(target=lambda: answers.append(backend.batch_set_v1(KEYS[:6], indices)))
        mine.start()
        other.may_end.set()
        mine.join(10)
        other.join(10)
        assert answers == [[True] * 6]
        assert got(backend, pool, KEYS[:6]) == 6


def test_who_is_still_writing_after_a_while_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WRITE_S", 0.1)
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        other = OtherWriter(made, pool, KEYS[2:4])
        other.start()
        assert other.begun.wait(10)
        assert put(backend, pool, KEYS[:6]) == [True, True, False, False, False, False]
        other.may_end.set()
        other.join(10)


def test_a_close_ends_the_waiting_for_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WRITE_S", 60.0)
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        waiting = Refused(made.local)
        _use(backend, SharedClients(made.local, made.local, waiting))  # type: ignore[arg-type]
        other = OtherWriter(made, pool, KEYS[:1])
        other.start()
        assert other.begun.wait(10)
        answers: list[list[bool]] = []
        mine = threading.Thread(target=lambda: answers.append(put(backend, pool, KEYS[:2])))
        mine.start()
        assert waiting.is_refused.wait(10)
        backend.close()
        mine.join(10)
        assert answers == [[False, False]]
        other.may_end.set()
        other.join(10)


class Between:
    """A client to which something happens between two of its calls."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Refused(Between):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.is_refused = threading.Event()

    def save_chain(self, chain: Chain, **how: Any) -> Any:
        saved = self._client.save_chain(chain, **how)
        self.is_refused.set()
        return saved


class ReplacedPool(Between):
    """The worker was replaced after the load: what it lends now is another pool."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.pool = BlockPool(client.layout, client.pool.n_blocks)
        self.pool.tensor.fill_(1)


class HotNoMore(Between):
    """The page before was hot when it was asked for, and its worker is gone now."""

    def match_chain(self, chain: Chain, **how: Any) -> Any:
        match = self._client.match_chain(chain, **how)
        return replace(match, block_ids=(BlockId(0),)) if len(chain.hashes) == 1 else match


def test_block_ids_are_never_looked_up_in_another_pool() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:4])
        replaced = ReplacedPool(made.local)
        _use(backend, SharedClients(made.local, replaced, made.local))  # type: ignore[arg-type]
        indices = pool.take(4)
        before = pool.kv_buffer.clone()
        assert backend.batch_get_v1(KEYS[:4], indices) == [False] * 4
        assert torch.equal(pool.kv_buffer, before)
        replaced.pool.close()


def test_a_batch_whose_page_before_left_at_the_last_moment_is_kept_without_it() -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        _use(backend, SharedClients(made.local, made.local, HotNoMore(made.local)))  # type: ignore[arg-type]
        assert put(backend, pool, KEYS[4:8], KEYS[:4]) == [True] * 4
        assert got(backend, pool, KEYS[4:8]) == 4
        assert backend.batch_exists(KEYS[3:4]) == 0


def test_many_keys_are_asked_for_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WINDOW_KEYS", 3)
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        put(backend, pool, KEYS[:7])
        assert backend.batch_exists(KEYS) == 7
        assert made.tokens().missed == made.tokens().asked == 3 * pool.page_size
        put(backend, pool, KEYS)
        assert backend.batch_exists(KEYS) == 10
        assert made.tokens().asked == 3 * pool.page_size


def test_the_same_prompt_later_is_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = HostPool()
    with bench() as made:
        backend = made.backend(pool)
        monkeypatch.setattr(store, "REPOLL_S", 0.0)
        for _ in range(3):
            backend.batch_exists(KEYS)
        assert made.tokens().missed == 3 * 10 * pool.page_size


def test_batches_of_all_threads_at_once_are_whole_or_not_there() -> None:
    pool = HostPool(n_pages=256)
    with bench(n_blocks=40) as made:
        backend = made.backend(pool)
        wrong: list[object] = []

        def work(seed: int) -> None:
            try:
                for turn in range(30):
                    keys = page_keys((seed + turn) % 5, 12)
                    at = (seed * turn) % 11
                    put_indices, get_indices = pool.take(12 - at), pool.take(12 - at)
                    fill(pool, put_indices, keys[at:])
                    backend.batch_set_v1(keys[at:], put_indices)
                    answers = backend.batch_get_v1(keys[at:], get_indices)
                    n_read = answers.index(False) if False in answers else len(answers)
                    wrong.extend(wrong_pages(pool, get_indices, keys[at : at + n_read]))
                    pool.give(put_indices)
                    pool.give(get_indices)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []


def _use(backend: Any, clients: Clients) -> None:
    """Other clients from now on, for a scope that is attached already."""

    def attach(socket_path: str, scope: ModelScope) -> Clients:
        return clients

    backend._attach = attach
    pool = backend._rank.memory.pool
    backend.register(pool)
