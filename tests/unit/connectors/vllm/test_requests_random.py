"""Random engines against the scheduler's side: whatever the order of calls, pins end, blocks come free, and nothing
is stored that was not the request's and computed.

The engine here keeps vLLM's rules and no others: a request is matched until it is allocated, loads end once, blocks
belong to one request at a time and to nobody after a preemption.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.unit.connectors.vllm.builders import BLOCK, Desk, FakeRequest
from tiered.connectors.vllm.lookups import Lookup
from tiered.connectors.vllm.orders import LoadOrder, StoreOrder, unpack_tokens
from tiered.connectors.vllm.requests import PROMISE_S

N_STEPS = 400
N_BLOCKS = 64


@dataclass
class Running:
    request: FakeRequest
    blocks: list[int] = field(default_factory=list)
    is_loading: bool = False
    is_finished: bool = False
    n_good: int = 0
    """Tokens whose KV is right: its own, loaded, or computed."""


class RandomEngine:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = Desk.open(store_interval_tokens=self.rng.choice([1, 8, 64]))
        self.requests: dict[str, Running] = {}
        self.free = list(range(1, N_BLOCKS))
        self.preempted: set[str] = set()
        self.loads: dict[str, LoadOrder] = {}
        self.told: dict[str, list[int]] = {}
        """By request the tokens that stores have told the worker side of."""
        self.held: dict[str, list[int]] = {}
        self.closing: set[str] = set()
        self.n_names = 0
        self.now = 0.0

    def run(self) -> None:
        often = [self.arrive, self.answer, self.schedule]
        moves = [*often, *often, self.schedule, self.end_a_load, self.preempt, self.finish, self.send, self.toggle]
        for _ in range(N_STEPS):
            self.now += self.rng.choice([0.001, 0.1, 1.0, PROMISE_S])
            self.desk.lookups.now = self.now
            self.rng.choice(moves)()
        self.wind_up()

    def arrive(self) -> None:
        self.n_names += 1
        name = f"r{self.rng.randrange(8)}" if self.rng.random() < 0.5 else f"n{self.n_names}"
        if name not in self.requests and name not in self.held:
            request = FakeRequest(name, n_prompt=self.rng.randrange(1, 40))
            self.requests[name] = Running(request)
            self.desk.arrive(request, now=self.now)

    def answer(self) -> None:
        lookups = self.desk.lookups
        waiting = [i for i, lookup in enumerate(lookups.asked) if not lookup.answered.is_set()]
        if waiting:
            which = self.rng.choice(waiting)
            lookups.asked[which].is_fetching = self.rng.random() < 0.3
            lookups.answer(self.rng.randrange(0, 10), which=which)

    def toggle(self) -> None:
        self.desk.lookups.is_there = self.rng.random() < 0.8

    def schedule(self) -> None:
        scheduled = []
        for name, running in self.requests.items():
            request = running.request
            if running.is_finished or running.is_loading or self.rng.random() < 0.3:
                continue
            if not running.blocks and not self.admit(running):
                continue
            if not running.is_loading and self.grow(running):
                scheduled.append(name)
        orders = self.desk.requests.stepped(scheduled, lambda name: self.requests[name].blocks, self.preempted)
        assert orders.preempted == self.preempted
        for name in self.preempted:
            self.told.pop(name, None)
        self.preempted = set()
        for load in orders.loads:
            self.check_load(load)
        for store in orders.stores:
            self.check_store(store)
        self.closing |= set(orders.closing)
        for name in scheduled:
            running = self.requests[name]
            request = running.request
            new = min(len(request.all_token_ids), len(running.blocks) * BLOCK) - request.num_computed_tokens
            request.num_computed_tokens += new
            running.n_good = request.num_computed_tokens
            if request.num_computed_tokens == len(request.all_token_ids) and self.rng.random() < 0.7:
                request.all_token_ids.append(self.rng.randrange(1000))

    def admit(self, running: Running) -> bool:
        request = running.request
        own = self.rng.choice([0, 0, 1]) * BLOCK
        own = min(own, (len(request.all_token_ids) - 1) // BLOCK * BLOCK)
        found = self.desk.requests.matched(request, own, now=self.now)
        if found is None:
            return False
        assert own + found < len(request.all_token_ids)
        if self.rng.random() < 0.2:
            return False  # no blocks to be had
        taken = found if self.rng.random() < 0.9 else self.rng.randrange(0, found + 1) // BLOCK * BLOCK
        need = -(-(own + max(taken, 1)) // BLOCK)
        if len(self.free) < need:
            return False
        running.blocks = [self.free.pop() for _ in range(need)]
        self.desk.requests.allocated(request, running.blocks, taken)
        request.num_computed_tokens = own + taken
        running.n_good = own
        running.is_loading = taken > 0
        return True

    def grow(self, running: Running) -> bool:
        need = -(-len(running.request.all_token_ids) // BLOCK) - len(running.blocks)
        if need > len(self.free):
            return False
        running.blocks += [self.free.pop() for _ in range(need)]
        return True

    def check_load(self, order: LoadOrder) -> None:
        running = self.requests[order.request_id]
        assert running.is_loading
        assert order.request_id not in self.loads
        assert set(order.targets) <= set(running.blocks)
        assert all(len(source.block_ids) == len(order.targets) for source in order.sources.values())
        self.loads[order.request_id] = order

    def check_store(self, order: StoreOrder) -> None:
        name = order.request_id
        tokens = list(unpack_tokens(order.tokens))
        known = self.told.setdefault(name, []) if order.first_token else []
        assert order.first_token == len(known)
        known = self.told[name] = known + tokens
        running = self.requests.get(name)
        if running is None:
            assert set(order.blocks) <= set(self.held[name])
            return
        assert list(order.blocks) == running.blocks[: len(order.blocks)]
        assert len(order.blocks) * BLOCK <= running.n_good
        assert known == running.request.all_token_ids[: len(order.blocks) * BLOCK]

    def end_a_load(self) -> None:
        if not self.loads:
            return
        name = self.rng.choice(sorted(self.loads))
        order = self.loads.pop(name)
        running = self.requests[name]
        n_good = len(order.targets) if self.rng.random() < 0.7 else self.rng.randrange(len(order.targets) + 1)
        bad = set(order.targets[n_good:])
        if self.rng.random() < 0.5:  # another rank says so first
            self.desk.requests.received((), bad)
        self.desk.requests.received([name], bad)
        running.is_loading = False
        if running.is_finished:
            self.free += running.blocks
            del self.requests[name]
            return
        first = running.request.num_computed_tokens - len(order.targets) * BLOCK
        running.request.num_computed_tokens = running.n_good = first + n_good * BLOCK
        if not running.n_good:
            self.free += running.blocks
            running.blocks = []

    def preempt(self) -> None:
        for name, running in self.requests.items():
            if running.blocks and not running.is_loading and not running.is_finished and self.rng.random() < 0.3:
                self.free += running.blocks
                running.blocks, running.n_good, running.request.num_computed_tokens = [], 0, 0
                self.preempted.add(name)
                return

    def finish(self) -> None:
        names = [name for name, running in self.requests.items() if not running.is_finished]
        if not names:
            return
        name = self.rng.choice(names)
        running = self.requests[name]
        is_kept = self.desk.requests.finished(running.request, running.blocks)
        if running.is_loading:
            assert not is_kept, "vLLM would free its blocks twice"
            running.is_finished = True
            if name not in self.loads:  # the order has not gone out yet; it will
                self.schedule()
            return
        del self.requests[name]
        if is_kept:
            self.held[name] = running.blocks
        else:
            self.free += running.blocks

    def send(self) -> None:
        for name in sorted(self.closing):
            self.closing.discard(name)
            self.told.pop(name, None)
            self.free += self.held.pop(name)
            self.desk.requests.sent([name])
            return

    def wind_up(self) -> None:
        for _ in range(10 * len(self.requests) + 50):
            self.finish()
            self.schedule()
            self.end_a_load()
            self.send()
        self.desk.requests.stepped((), lambda _: (), ())
        assert not self.requests
        assert not self.held
        assert self.desk.requests.n_open == 0
        assert not self.desk.requests.holds_blocks
        assert unsettled(self.desk) == []
        assert sorted(self.free) == list(range(1, N_BLOCKS))


def unsettled(desk: Desk) -> list[Lookup]:
    return [lookup for lookup in desk.lookups.asked if id(lookup) not in desk.lookups.settled]


@pytest.mark.parametrize("seed", range(60))
def test_any_engine_gets_its_blocks_back_and_stores_only_what_is_right(seed: int) -> None:
    RandomEngine(seed).run()
