"""Lookups: threads that ask the worker, and pins that are given back whatever becomes of a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.worker_process import until
from tests.unit.connectors.vllm.builders import ASK, BLOCK
from tiered.client.port import Chain, Loaded, Match, Voucher
from tiered.connectors.vllm.lookups import QUEUE_MAX, Lookup, Lookups
from tiered.connectors.vllm.orders import Shard
from tiered.connectors.vllm.tally import Tally
from tiered.hashing.chain import Extras
from tiered.types import NO_HINTS, BlockId, Hints, LeaseId, Source, TenantId

ONE, TWO = Shard(0, 0), Shard(0, 1)
TOKENS = list(range(18))


class FakeClient:
    def __init__(self, n_hot: int = 0, n_peer: int = 0, *, n_comes: int | None = None) -> None:
        self.attached = True
        self.n_hot, self.n_peer, self.n_comes = n_hot, n_peer, n_comes
        self.matched: list[tuple[Chain, bool]] = []
        self.hints: list[Hints] = []
        self.n_loads = 0
        self.releases: list[tuple[int, int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.is_closed = False
        self.error: Exception | None = None
        self.release_error: Exception | None = None

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain:
        return Chain.of(b"r" * 32, tokens, tenant=tenant, block_tokens=BLOCK, extras=extras)

    def match_chain(self, chain: Chain, *, hints: Hints = NO_HINTS, is_counted: bool = True) -> Match:
        self.entered.set()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.matched.append((chain, is_counted))
        self.hints.append(hints)
        lease = len(self.matched)
        return Match(
            tenant=chain.tenant,
            scope_id=chain.root,
            hashes=chain.hashes,
            asked_tokens=chain.n_tokens,
            lease=LeaseId(lease),
            block_ids=[BlockId(i) for i in range(self.n_hot)],
            checksums=[None] * self.n_hot,
            n_peer=self.n_peer,
            voucher=Voucher(b"pool", 1, lease),
        )

    def load(self, match: Match, *, deadline_s: float) -> Loaded:
        self.n_loads += 1
        assert self.gate.wait(10)
        n = self.n_hot + self.n_peer if self.n_comes is None else self.n_comes
        sources = [Source.HOT] * self.n_hot + [Source.PEER] * self.n_peer
        return Loaded([BlockId(i) for i in range(n)], sources[:n], [None] * n)

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool:
        assert match.lease is not None
        if self.release_error is not None:
            raise self.release_error
        self.releases.append((match.lease, used_tokens, own_tokens))
        return True

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def lookups(*lanes: dict[Shard, FakeClient]) -> Iterator[Lookups]:
    left = iter(lanes)
    made = Lookups(lambda: next(left), n_threads=len(lanes), load_timeout_s=1.0, tally=Tally())
    try:
        yield made
    finally:
        for lane in lanes:
            for client in lane.values():
                client.gate.set()
        made.close()
        assert all(client.is_closed for lane in lanes for client in lane.values())


def answered(made: Lookups, tokens: Sequence[int] = TOKENS) -> Lookup:
    lookup = made.submit(ASK, tokens, is_counted=True)
    assert lookup is not None
    assert lookup.answered.wait(10)
    return lookup


def test_what_is_hot_is_promised_without_a_load() -> None:
    client = FakeClient(n_hot=3)
    with lookups({ONE: client}) as made:
        promise = answered(made).promise
    assert promise.sources == (Source.HOT,) * 3
    assert promise.shards[ONE].block_ids == (0, 1, 2)
    assert client.n_loads == 0


def test_the_last_token_is_asked_for_but_not_looked_up() -> None:
    client = FakeClient()
    with lookups({ONE: client}) as made:
        answered(made, list(range(16)))
    ((chain, is_counted),) = client.matched
    assert (len(chain.hashes), chain.n_tokens, is_counted) == (3, 16, True)


def test_what_is_known_of_the_request_is_said_with_its_lookup() -> None:
    one, other = FakeClient(n_hot=1), FakeClient(n_hot=1)
    hints = Hints(session="chat-7")
    with lookups({ONE: one, TWO: other}) as made:
        lookup = made.submit(replace(ASK, hints=hints), TOKENS, is_counted=True)
        assert lookup is not None
        assert lookup.answered.wait(10)
    assert one.hints == other.hints == [hints]


def test_what_was_fetched_counts_as_far_as_it_came() -> None:
    client = FakeClient(n_hot=1, n_peer=3, n_comes=2)
    with lookups({ONE: client}) as made:
        lookup = answered(made)
    assert lookup.is_fetching
    assert lookup.promise.sources == (Source.HOT, Source.PEER)


def test_of_several_shards_the_shortest_run_counts() -> None:
    one, two = FakeClient(n_hot=4), FakeClient(n_hot=1, n_peer=3, n_comes=2)
    with lookups({ONE: one, TWO: two}) as made:
        promise = answered(made).promise
    assert promise.n_blocks == 2
    assert {shard: len(pinned.block_ids) for shard, pinned in promise.shards.items()} == {ONE: 2, TWO: 2}
    assert [is_counted for _, is_counted in one.matched + two.matched] == [True, False], "tokens are counted once"


def test_a_shard_that_has_nothing_ends_the_lookup() -> None:
    one, two = FakeClient(), FakeClient(n_hot=4)
    with lookups({ONE: one, TWO: two}) as made:
        lookup = answered(made)
        made.settle(lookup, used_tokens=0, own_tokens=0)
        until(lambda: one.releases, "the pins are given back")
    assert lookup.promise.n_blocks == 0
    assert not two.matched


def test_pins_are_given_back_with_what_was_used_of_them() -> None:
    one, two = FakeClient(n_hot=3), FakeClient(n_hot=3)
    with lookups({ONE: one, TWO: two}) as made:
        lookup = answered(made)
        assert not one.releases
        made.settle(lookup, used_tokens=12, own_tokens=4)
        until(lambda: two.releases, "the pins are given back")
    assert one.releases == two.releases == [(1, 12, 4)]


def test_a_lookup_that_nobody_wants_any_more_gives_its_pins_back_when_it_is_answered() -> None:
    client = FakeClient(n_hot=3)
    client.gate.clear()
    with lookups({ONE: client}) as made:
        lookup = made.submit(ASK, TOKENS, is_counted=True)
        assert lookup is not None
        made.settle(lookup, used_tokens=0, own_tokens=0)
        client.gate.set()
        until(lambda: client.releases == [(1, 0, 0)] or not client.matched, "it is over")
    assert len(client.releases) == len(client.matched)


def test_without_a_worker_nobody_waits() -> None:
    client = FakeClient()
    client.attached = False
    with lookups({ONE: client}) as made:
        assert made.submit(ASK, TOKENS, is_counted=True) is None


def test_a_worker_that_keeps_one_request_waiting_is_not_asked_by_the_next() -> None:
    silent = FakeClient()
    silent.gate.clear()
    with lookups({ONE: silent}, {ONE: silent}) as made:
        waiting = made.submit(ASK, TOKENS, is_counted=True)
        assert waiting is not None
        assert silent.entered.wait(10)
        assert made.submit(ASK, TOKENS, is_counted=True) is not None, "so far it may only be slow"
        made.settle(waiting, used_tokens=0, own_tokens=0)
        assert made.submit(ASK, TOKENS, is_counted=True) is not None, "its request may have been aborted"
        waiting.is_given_up = True
        made.settle(waiting, used_tokens=0, own_tokens=0)
        assert made.submit(ASK, TOKENS, is_counted=True) is None
        silent.gate.set()
        assert waiting.answered.wait(10)
        until(lambda: made.submit(ASK, TOKENS, is_counted=True), "it is asked again once it answers")


def test_a_worker_lost_over_its_silence_is_not_asked_by_other_lanes_until_it_answers() -> None:
    silent, other = FakeClient(), FakeClient()
    silent.gate.clear()
    other.attached = False
    with lookups({ONE: silent}, {ONE: other}) as made:
        waiting = made.submit(ASK, TOKENS, is_counted=True)
        assert waiting is not None
        assert silent.entered.wait(10)
        waiting.is_given_up = True
        made.settle(waiting, used_tokens=0, own_tokens=0)
        other.attached, silent.attached = True, False
        silent.gate.set()
        assert waiting.answered.wait(10)
        assert made.submit(ASK, TOKENS, is_counted=True) is None, "each lane in turn would wait for it"
        silent.attached = True
        until(lambda: made.submit(ASK, TOKENS, is_counted=True), "it is asked again once it let one in")


def test_what_goes_wrong_in_one_lookup_is_a_miss_and_the_next_is_served() -> None:
    client = FakeClient(n_hot=1)
    with lookups({ONE: client}) as made:
        client.error = RuntimeError("broken")
        assert answered(made).promise.n_blocks == 0
        client.error = None
        assert answered(made).promise.n_blocks == 1


def test_pins_that_cannot_be_given_back_cost_neither_the_others_nor_the_lane() -> None:
    broken, other = FakeClient(n_hot=1), FakeClient(n_hot=1)
    broken.release_error = RuntimeError("broken")
    with lookups({ONE: broken, TWO: other}) as made:
        made.settle(answered(made), used_tokens=0, own_tokens=0)
        until(lambda: other.releases, "the other shard's pins are given back")
        assert answered(made).promise.n_blocks == 1


@pytest.mark.parametrize("tokens", [[-1] * 18, [1 << 32] * 18])
def test_tokens_that_are_none_are_a_miss(tokens: list[int]) -> None:
    with lookups({ONE: FakeClient(n_hot=1)}) as made:
        assert answered(made, tokens).promise.n_blocks == 0


def test_the_queue_is_bounded() -> None:
    client = FakeClient()
    client.gate.clear()
    with lookups({ONE: client}) as made:
        taken = [made.submit(ASK, TOKENS, is_counted=True) for _ in range(QUEUE_MAX + 10)]
        assert sum(lookup is not None for lookup in taken) in (QUEUE_MAX, QUEUE_MAX + 1)
        for lookup in taken:
            if lookup is not None:
                made.settle(lookup, used_tokens=0, own_tokens=0)
