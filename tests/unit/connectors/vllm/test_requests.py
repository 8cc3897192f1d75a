"""The scheduler's side of requests, under whatever order of calls an engine may come up with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.connectors.vllm.builders import ASK, BLOCK, SHARD, Desk, FakeRequest, Settled, image
from tiered.connectors.vllm.adapters import Adapters
from tiered.connectors.vllm.asks import Ask, Asking
from tiered.connectors.vllm.orders import StoreOrder, unpack_tokens
from tiered.connectors.vllm.requests import PROMISE_S
from tiered.types import Hints, Source, TenantId

BLOCKS = list(range(50, 70))


def stores(desk: Desk, *scheduled: str, preempted: tuple[str, ...] = ()) -> tuple[StoreOrder, ...]:
    return desk.requests.stepped(scheduled, lambda _: BLOCKS, preempted).stores


def load(desk: Desk, request: FakeRequest, *, own: int = 0) -> int:
    """As vLLM does it: match, allocate, order; the tokens that are loaded."""
    found = desk.requests.matched(request, own * BLOCK, now=0.0)
    assert found
    desk.requests.allocated(request, BLOCKS, found)
    request.num_computed_tokens = own * BLOCK + found
    return found


def test_a_lookup_is_made_on_arrival_and_answered_with_whole_blocks() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"))
    assert desk.requests.matched(request, 0, now=0.1) is None
    desk.lookups.answer(3)
    assert desk.requests.matched(request, 0, now=0.2) == 3 * BLOCK
    assert desk.requests.matched(request, BLOCK, now=0.3) == 2 * BLOCK


@pytest.mark.parametrize(("n_prompt", "most"), [(16, 3), (17, 4), (5, 1), (4, 0), (1, 0)])
def test_the_last_token_is_always_left_to_the_engine(n_prompt: int, most: int) -> None:
    desk = Desk.open()
    request = FakeRequest("r", n_prompt=n_prompt)
    desk.requests.arrived(request, _ask(), now=0.0)
    if desk.lookups.asked:
        desk.lookups.answer(4)
    assert desk.requests.matched(request, 0, now=0.0) == most * BLOCK


def test_what_the_engine_has_itself_is_not_waited_for() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"))
    assert desk.requests.matched(request, 4 * BLOCK, now=0.0) == 0
    desk.requests.allocated(request, BLOCKS, 0)
    assert desk.lookups.settled_as() == Settled(used_tokens=16, own_tokens=16), "it was not asked for"


def test_patience_ends_and_the_request_is_computed() -> None:
    desk = Desk.open(lookup_timeout_s=0.25)
    request = desk.arrive(FakeRequest("r"))
    assert desk.requests.matched(request, 0, now=0.24) is None
    assert desk.requests.matched(request, 0, now=0.25) == 0
    desk.lookups.answer(4)
    assert desk.requests.matched(request, 0, now=0.26) == 0
    assert desk.lookups.n_open == 0
    assert desk.tally.take() == {"lookups_given_up": 1}


def test_what_is_being_fetched_is_waited_for_longer_but_not_for_ever() -> None:
    desk = Desk.open(lookup_timeout_s=0.25, load_timeout_s=5.0)
    request = desk.arrive(FakeRequest("r"))
    desk.lookups.asked[0].is_fetching = True
    assert desk.requests.matched(request, 0, now=5.2) is None
    assert desk.requests.matched(request, 0, now=5.3) == 0


def test_nobody_to_ask_is_a_miss_at_once() -> None:
    desk = Desk.open()
    desk.lookups.is_there = False
    request = desk.arrive(FakeRequest("r"))
    assert desk.requests.matched(request, 0, now=0.0) == 0
    desk.requests.allocated(request, BLOCKS, 0)


def test_a_request_without_a_tenant_is_left_alone() -> None:
    desk = Desk.open()
    request = FakeRequest("r")
    desk.requests.arrived(request, None, now=0.0)
    assert desk.requests.matched(request, 0, now=0.0) == 0
    desk.requests.allocated(request, BLOCKS, 0)
    assert stores(desk, "r") == ()
    assert not desk.requests.finished(request, BLOCKS)


def test_input_that_comes_in_pieces_is_neither_looked_up_nor_stored() -> None:
    """The ask would be that of the first piece, and say nothing of the images of the later ones."""
    desk = Desk.open()
    request = FakeRequest("r", resumable=True)
    asking = Asking(default_tenant=TenantId("acme"), salt_tenants={}, adapters=Adapters())
    desk.requests.arrived(request, asking.ask_of(request), now=0.0)
    assert desk.requests.matched(request, 0, now=0.0) == 0
    desk.requests.allocated(request, BLOCKS, 0)
    request.all_token_ids += range(18)
    request.mm_features = [image("cat", 20, 8)]
    request.num_computed_tokens = len(request.all_token_ids)
    assert stores(desk, "r") == ()
    assert not desk.requests.finished(request, BLOCKS)
    assert desk.lookups.asked == []


def test_the_order_names_exactly_the_blocks_that_are_loaded() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request, own=1)
    (order,) = desk.requests.stepped((), lambda _: BLOCKS, ()).loads
    assert order.targets == (51, 52, 53)
    assert order.sources[SHARD].block_ids == (101, 102, 103)
    assert desk.requests.sources_of("r") == [Source.HOT] * 3
    assert desk.requests.stepped((), lambda _: BLOCKS, ()).loads == ()


def test_pins_end_with_the_load_and_not_before() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request, own=1)
    desk.requests.allocated(request, BLOCKS, 0)  # vLLM's second call, when the load is done
    assert desk.lookups.n_open == 1
    desk.requests.received(["r"], ())
    assert desk.lookups.settled_as() == Settled(used_tokens=16, own_tokens=4)
    assert desk.tally.take() == {"hot_hit_tokens": 12}


def test_fewer_tokens_than_offered_are_taken_as_they_are() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    assert desk.requests.matched(request, 0, now=0.0) == 16
    desk.requests.allocated(request, BLOCKS, 8)
    (order,) = desk.requests.stepped((), lambda _: BLOCKS, ()).loads
    assert order.targets == (50, 51)
    desk.requests.received(["r"], ())
    assert desk.lookups.settled_as() == Settled(used_tokens=8, own_tokens=0)


def test_a_failed_load_counts_what_came_before_and_is_not_tried_again() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request)
    desk.requests.received([], {52, 53})  # on another rank, in an earlier step
    desk.requests.received(["r"], {53})
    assert desk.lookups.settled_as() == Settled(used_tokens=8, own_tokens=0)
    request.num_computed_tokens = 0
    assert desk.requests.matched(request, 0, now=1.0) == 0
    assert len(desk.lookups.asked) == 1


def test_blocks_that_did_not_come_are_stored_once_they_are_computed() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request)
    desk.requests.received(["r"], {52, 53})
    request.num_computed_tokens = 8
    assert stores(desk, "r") == ()
    request.num_computed_tokens = 18
    (order,) = stores(desk, "r")
    assert order.blocks == tuple(BLOCKS[:4])
    assert list(unpack_tokens(order.tokens)) == list(range(16))


def test_a_request_that_never_gets_blocks_gives_its_pins_back_when_it_ends() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    assert desk.requests.matched(request, 0, now=0.0) == 16
    assert not desk.requests.finished(request, [])
    assert desk.lookups.n_open == 0
    assert desk.requests.n_open == 0


def test_an_abort_before_the_answer_settles_the_lookup() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"))
    assert not desk.requests.finished(request, [])
    assert desk.lookups.n_open == 0


def test_an_abort_while_loading_keeps_the_pins_until_the_copy_is_over() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request)
    assert not desk.requests.finished(request, BLOCKS[:4]), "vLLM keeps the blocks itself until they have arrived"
    assert desk.lookups.n_open == 1
    desk.requests.received(["r"], ())
    assert desk.lookups.n_open == 0
    assert desk.requests.n_open == 0


def test_a_promise_that_has_waited_long_is_made_anew() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    later = PROMISE_S + 1
    desk.lookups.now = later
    assert desk.requests.matched(request, 0, now=later) is None
    assert len(desk.lookups.asked) == 2
    assert not desk.lookups.asked[1].is_counted, "its tokens are asked for once"
    desk.lookups.answer(2)
    assert desk.requests.matched(request, 0, now=later) == 2 * BLOCK
    assert desk.lookups.n_open == 1


def test_an_answer_of_nothing_is_not_asked_for_again() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    assert desk.requests.matched(request, 0, now=0.0) == 0
    assert desk.requests.matched(request, 0, now=2 * PROMISE_S) == 0
    assert len(desk.lookups.asked) == 1


def test_a_prompt_is_stored_when_the_step_that_computed_it_is_over() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    desk.requests.matched(request, 0, now=0.0)
    desk.requests.allocated(request, BLOCKS, 0)
    assert stores(desk, "r") == (), "its first step is about to run"
    request.num_computed_tokens, request.num_in_flight_tokens = 18, 18
    assert stores(desk, "r") == (), "its results are not there yet"
    request.num_in_flight_tokens = 0
    (order,) = stores(desk, "r")
    assert order.blocks == tuple(BLOCKS[:4])
    assert stores(desk, "r") == ()


def test_chunks_of_a_prompt_are_stored_one_by_one_with_the_tokens_that_are_new() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 10
    (first,) = stores(desk, "r")
    request.num_computed_tokens = 18
    (second,) = stores(desk, "r")
    assert (first.first_token, len(first.blocks)) == (0, 2)
    assert (second.first_token, list(unpack_tokens(second.tokens))) == (8, list(range(8, 16)))
    assert len(second.blocks) == 4, "a store names all blocks: the cache may have lost the first"


def test_an_answer_is_stored_in_pieces_and_its_rest_at_the_end() -> None:
    desk = Desk.open(store_interval_tokens=8)
    request = desk.arrive(FakeRequest("r", n_prompt=8), n_cached=0)
    request.num_computed_tokens = 8
    assert len(stores(desk, "r")) == 1
    request.all_token_ids += range(100, 112)
    request.num_computed_tokens = 12
    assert stores(desk, "r") == ()
    request.num_computed_tokens = 16
    (piece,) = stores(desk, "r")
    assert len(piece.blocks) == 4
    request.num_computed_tokens = 20
    assert desk.requests.finished(request, BLOCKS[:5])
    orders = desk.requests.stepped((), lambda _: BLOCKS, ())
    assert [len(order.blocks) for order in orders.stores] == [5]
    assert orders.closing == ("r",)


def test_stores_carry_what_is_known_of_the_request_and_the_last_how_long_its_answer_is() -> None:
    told: list[tuple[StoreOrder, object]] = []
    desk = Desk.open(store_interval_tokens=8, on_store=lambda order, request: told.append((order, request)))
    request, hints = FakeRequest("r", n_prompt=8), Hints(session="chat-7")
    desk.requests.arrived(request, replace(ASK, hints=hints), now=0.0)
    request.num_computed_tokens = 8
    (first,) = stores(desk, "r")
    request.all_token_ids += range(100, 111)
    request.num_computed_tokens = 18
    desk.requests.finished(request, BLOCKS[:5])
    (last,) = stores(desk)
    assert (first.hints, last.hints) == (hints, Hints(session="chat-7", output_tokens=11))
    assert told == [(first, request), (last, request)]
    assert first.number != last.number


def test_tokens_that_are_not_known_yet_are_not_stored() -> None:
    desk = Desk.open(store_interval_tokens=1)
    request = desk.arrive(FakeRequest("r", n_prompt=7), n_cached=0)
    request.num_computed_tokens = 8
    (order,) = stores(desk, "r")
    assert len(order.blocks) == 1


def test_only_prompts_are_stored_where_that_is_wanted() -> None:
    desk = Desk.open(store="prompt", store_interval_tokens=1)
    request = desk.arrive(FakeRequest("r", n_prompt=8), n_cached=0)
    request.all_token_ids += range(20)
    request.num_computed_tokens = 27
    (order,) = stores(desk, "r")
    assert len(order.blocks) == 2
    request.num_computed_tokens = 28
    assert stores(desk, "r") == ()


def test_nothing_is_stored_where_that_is_wanted() -> None:
    desk = Desk.open(store="off")
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 18
    assert stores(desk, "r") == ()
    assert not desk.requests.finished(request, BLOCKS)


def test_what_came_from_the_cache_is_not_stored_again() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=4)
    load(desk, request)
    desk.requests.received(["r"], ())
    assert stores(desk, "r") == ()
    assert not desk.requests.finished(request, BLOCKS), "nobody reads its blocks"


def test_the_blocks_of_a_request_that_ended_are_kept_until_they_are_sent() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 18
    stores(desk, "r")
    assert desk.requests.finished(request, BLOCKS)
    assert desk.requests.holds_blocks
    assert desk.requests.stepped((), lambda _: BLOCKS, ()).closing == ("r",)
    assert desk.requests.stepped((), lambda _: BLOCKS, ()).closing == ()
    desk.requests.sent(["r"])
    assert not desk.requests.holds_blocks
    assert desk.requests.n_open == 0


def test_a_preempted_request_begins_anew_with_its_answer_so_far() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 18
    stores(desk, "r")
    request.all_token_ids += [7, 7, 7]
    request.num_computed_tokens = 0
    orders = desk.requests.stepped((), lambda _: BLOCKS, ("r",))
    assert orders.preempted == {"r"}
    desk.lookups.now = 1.0
    assert desk.requests.matched(request, 0, now=1.0) is None
    assert desk.lookups.asked[1].tokens == [*range(18), 7, 7, 7]
    desk.lookups.answer(4)
    assert desk.requests.matched(request, 0, now=1.0) == 16
    desk.requests.allocated(request, [90, 91, 92, 93, 94], 16)
    (order,) = desk.requests.stepped((), lambda _: BLOCKS, ()).loads
    assert order.targets == (90, 91, 92, 93)


def test_after_a_preemption_stores_tell_the_tokens_from_the_first_on() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 10
    stores(desk, "r")
    request.num_computed_tokens = 0
    stores(desk, preempted=("r",))
    request.num_computed_tokens = 18
    (order,) = stores(desk, "r")
    assert order.first_token == 0
    assert list(unpack_tokens(order.tokens)) == list(range(16))


def test_a_request_that_ends_preempted_keeps_no_blocks() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 18
    stores(desk, "r")
    request.num_computed_tokens = 0
    stores(desk, preempted=("r",))
    assert not desk.requests.finished(request, [])


def test_a_request_preempted_and_ended_between_two_steps_is_cancelled_and_closed() -> None:
    """As vLLM's reset of its prefix cache preempts, outside of any step."""
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r"), n_cached=0)
    request.num_computed_tokens = 18
    stores(desk, "r")
    request.num_computed_tokens = 0
    assert desk.requests.finished(request, [])
    orders = desk.requests.stepped((), lambda _: BLOCKS, ("r",))
    assert (orders.preempted, orders.closing, orders.stores) == ({"r"}, ("r",), ())


def test_the_same_name_again_is_another_request() -> None:
    desk = Desk.open()
    desk.arrive(FakeRequest("r"), n_cached=4)
    again = desk.arrive(FakeRequest("r", all_token_ids=[9] * 18), n_cached=1)
    assert desk.lookups.settled_as(0) == Settled(0, 0)
    assert desk.requests.matched(again, 0, now=0.0) == BLOCK


def test_after_a_reset_nothing_of_before_is_promised_or_stored() -> None:
    desk = Desk.open()
    waiting = desk.arrive(FakeRequest("waiting"), n_cached=4)
    running = desk.arrive(FakeRequest("running"), n_cached=0)
    running.num_computed_tokens = 18
    desk.requests.reset(desk.lookups, "g1")
    assert desk.requests.matched(waiting, 0, now=0.0) == 0
    orders = desk.requests.stepped(("running",), lambda _: BLOCKS, ())
    assert (orders.stores, orders.generation) == ((), "g1")
    after = desk.arrive(FakeRequest("after"), n_cached=0)
    after.num_computed_tokens = 18
    assert len(stores(desk, "after")) == 1


def test_a_request_that_is_to_be_computed_is_stored_but_not_looked_up() -> None:
    desk = Desk.open()
    request = FakeRequest("r")
    desk.requests.arrived(request, _ask(may_load=False), now=0.0)
    assert desk.requests.matched(request, 0, now=0.0) == 0
    assert not desk.lookups.asked
    request.num_computed_tokens = 18
    assert len(stores(desk, "r")) == 1


def test_a_token_that_is_none_ends_the_stores_of_its_request_alone() -> None:
    desk = Desk.open()
    request = desk.arrive(FakeRequest("r", all_token_ids=[-1] * 18), n_cached=0)
    request.num_computed_tokens = 18
    assert stores(desk, "r") == ()
    assert not desk.requests.finished(request, BLOCKS)


def test_a_step_of_prompts_alone_is_told_from_one_with_answers() -> None:
    desk = Desk.open()
    prompt = desk.arrive(FakeRequest("prompt"), n_cached=0)
    answer = desk.arrive(FakeRequest("answer"), n_cached=0)
    answer.num_computed_tokens = 18
    assert desk.requests.prefill_tokens({"prompt": 18}) == 18
    assert desk.requests.prefill_tokens({"prompt": 18, "answer": 1}) == 0
    prompt.num_computed_tokens = 18
    assert desk.requests.prefill_tokens({"prompt": 1}) == 0


def _ask(*, may_load: bool = True) -> Ask:
    return replace(ASK, may_load=may_load)
