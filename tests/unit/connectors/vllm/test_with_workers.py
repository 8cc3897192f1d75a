"""Saver, lookups and loader on real workers, with tensors as vLLM has them and no vLLM: the bytes of its blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
import torch

from tests.support.small_cluster import PATIENT, SmallCluster, small_cluster
from tests.support.worker_process import until
from tests.unit.connectors.vllm.builders import ASK, FakeRequest
from tiered.client.remote import RemoteClient
from tiered.client.saving import verified_blocks
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.vllm.loading import Loader
from tiered.connectors.vllm.lookups import Lookups
from tiered.connectors.vllm.orders import Shard, StepOrders
from tiered.connectors.vllm.pages import pages_of, rows_of
from tiered.connectors.vllm.requests import RequestOptions, Requests
from tiered.connectors.vllm.saving import Saver
from tiered.connectors.vllm.tally import Tally
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout

SHARD = Shard(0, 0)
BLOCK, N_BLOCKS, N_PROMPT = 16, 32, 100
WHOLE = N_PROMPT // BLOCK
LAYOUT = KvLayout(n_layers=2, n_kv_heads=2, head_dim=8, dtype="float32", block_tokens=BLOCK, interior="test")
SCOPE = ModelScope(model="test", weights_version="1", layout=LAYOUT)


@dataclass
class Rank:
    """A rank's memory, both sides of the connector around it, and vLLM's calls in their order."""

    memory: torch.Tensor
    requests: Requests
    loader: Loader
    saver: Saver

    @classmethod
    def at(cls, socket: str, stack: ExitStack) -> Rank:
        memory = torch.rand(LAYOUT.n_layers, N_BLOCKS, LAYOUT.n_kv_heads, BLOCK, 2 * LAYOUT.head_dim)
        rows = list(rows_of({f"l.{i}": memory[i] for i in range(LAYOUT.n_layers)}, N_BLOCKS).values())

        def client() -> RemoteClient:
            return RemoteClient.attach(socket, SCOPE, engine="test", options=PATIENT)

        tally = Tally()
        loader = Loader(client(), pages_of(rows), SHARD, check=verified_blocks, tally=tally)
        saver = Saver(client(), pages_of(rows), hold_s=10.0, tally=tally)
        lookups = Lookups(lambda: {SHARD: client()}, n_threads=1, load_timeout_s=5.0, tally=tally)
        for part in (loader, saver, lookups):
            stack.enter_context(closing(part))
        options = RequestOptions(block_tokens=BLOCK, lookup_timeout_s=10.0)
        return cls(memory, Requests(lookups, options, tally), loader, saver)

    def step(self, *scheduled: str, blocks: list[int] | None = None, preempted: tuple[str, ...] = ()) -> StepOrders:
        orders = self.requests.stepped(scheduled, lambda _: blocks or [], preempted)
        self.saver.cancel(orders.preempted)
        self.saver.submit(orders.stores)
        self.saver.close_requests(orders.closing, now=time.monotonic())
        self.loader.submit(orders.loads)
        return orders

    def store(self, request: FakeRequest, blocks: list[int]) -> None:
        """As if it had computed the prompt; returns once its blocks are free."""
        self.requests.arrived(request, ASK, now=time.monotonic())
        self.match(request)
        self.requests.allocated(request, blocks, 0)
        request.num_computed_tokens = len(request.all_token_ids)
        assert self.requests.finished(request, blocks)
        self.step()
        until(lambda: request.request_id in self.saver.closed(now=time.monotonic()), "its blocks are free")
        self.requests.sent([request.request_id])

    def match(self, request: FakeRequest) -> int:
        found: list[int | None] = []

        def is_known() -> bool:
            found.append(self.requests.matched(request, 0, now=time.monotonic()))
            return found[-1] is not None

        until(is_known, "the lookup is answered")
        return found[-1] or 0

    def ended(self) -> tuple[set[str], set[int]]:
        names: set[str] = set()
        bad: set[int] = set()

        def is_there() -> bool:
            arrivals = self.loader.take()
            names.update(arrivals.request_ids)
            bad.update(arrivals.bad_blocks)
            return bool(names)

        until(is_there, "the load ends")
        self.requests.received(names, bad)
        return names, bad


@dataclass
class Site:
    cluster: SmallCluster
    one: Rank
    two: Rank


@pytest.fixture
def site(redis_server: EmbeddedServer) -> Iterator[Site]:
    with small_cluster(redis_server) as cluster, ExitStack() as stack:
        cluster.start("one", "two")
        cluster.wait_acquainted()
        ranks = [Rank.at(cluster.socket_path(name), stack) for name in ("one", "two")]
        yield Site(cluster, *ranks)


def same(one: Rank, blocks: list[int], other: Rank, others: list[int]) -> bool:
    return torch.equal(one.memory[:, blocks], other.memory[:, others])


def test_what_one_engine_stored_another_loads_bit_for_bit_on_either_node(site: Site) -> None:
    stored, target = list(range(3, 3 + WHOLE)), list(range(20, 20 + WHOLE))
    site.one.store(FakeRequest("r", N_PROMPT), stored)
    site.cluster.wait_announced("one", WHOLE)
    for rank in (site.one, site.two):
        before = rank.memory.clone()
        request = FakeRequest("s", N_PROMPT)
        rank.requests.arrived(request, ASK, now=time.monotonic())
        n_tokens = rank.match(request)
        assert n_tokens == WHOLE * BLOCK
        rank.requests.allocated(request, target, n_tokens)
        rank.step()
        assert rank.ended() == ({"s"}, set())
        assert same(site.one, stored, rank, target)
        others = [block for block in range(N_BLOCKS) if block not in target]
        assert torch.equal(rank.memory[:, others], before[:, others])
        assert not rank.requests.finished(request, target)
        assert rank.requests.n_open == 0


def test_a_worker_that_is_killed_before_the_copy_makes_all_of_it_bad(site: Site) -> None:
    stored, target = list(range(3, 3 + WHOLE)), list(range(20, 20 + WHOLE))
    site.one.store(FakeRequest("r", N_PROMPT), stored)
    request = FakeRequest("s", N_PROMPT)
    site.one.requests.arrived(request, ASK, now=time.monotonic())
    site.one.requests.allocated(request, target, site.one.match(request))
    site.cluster.workers["one"].kill()
    site.one.step()
    assert site.one.ended() == ({"s"}, set(target))
    site.cluster.restart("one")
    again = FakeRequest("again", N_PROMPT)
    site.one.requests.arrived(again, ASK, now=time.monotonic())
    assert site.one.match(again) in (0, WHOLE * BLOCK)


def test_pins_that_ended_make_the_load_bad(redis_server: EmbeddedServer) -> None:
    with small_cluster(redis_server) as cluster, ExitStack() as stack:
        cluster.start("one", settings=["pool.match_lease_s=0.2"])
        rank = Rank.at(cluster.socket_path("one"), stack)
        stored, target = list(range(WHOLE)), list(range(20, 20 + WHOLE))
        rank.store(FakeRequest("r", N_PROMPT), stored)
        request = FakeRequest("s", N_PROMPT)
        rank.requests.arrived(request, ASK, now=time.monotonic())
        n_tokens = rank.match(request)
        rank.requests.allocated(request, target, n_tokens)
        order = rank.requests.stepped((), lambda _: [], ()).loads[0]
        voucher = order.sources[SHARD].voucher
        with cluster.attach("one", scope=SCOPE) as client:
            until(lambda: not client.vouch(voucher), "the pins have ended")
        rank.loader.submit([order])
        assert rank.ended() == ({"s"}, set(target))
