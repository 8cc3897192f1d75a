"""What a scheduler is told at once, with answers that come later, never come, or were wrong."""

from __future__ import annotations

import random

import pytest

from tests.support.redis_server import block_hash
from tiered.connectors.vllm.secondary_lookups import BELIEVED_S, KEPT_S, Answer, Lookups

A, B, C = map(block_hash, "abc")
HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY


@pytest.fixture
def lookups() -> Lookups:
    return Lookups(wait_s=0.1)


def ask(lookups: Lookups, *hashes: bytes, now: float, request: str = "r", is_down: bool = False) -> list[Answer]:
    return [lookups.ask(h, request, now=now, is_down=is_down) for h in hashes]  # type: ignore[arg-type]


def test_one_pass_is_one_question_for_each_chunk(lookups: Lookups) -> None:
    assert ask(lookups, A, B, A, now=0) == [RETRY] * 3
    assert ask(lookups, A, C, now=0, request="other") == [RETRY] * 2
    assert lookups.end_pass(0) == [A, B, C]
    assert ask(lookups, A, now=0.01) == [RETRY]
    assert lookups.end_pass(0.01) == []
    lookups.answered({A: True, B: False, C: True}, now=0.02)
    assert ask(lookups, A, B, C, now=0.03) == [HIT, MISS, HIT]


def test_a_request_waits_for_a_bounded_time_and_goes_on_without(lookups: Lookups) -> None:
    assert ask(lookups, A, now=0) == [RETRY]
    lookups.end_pass(0)
    assert ask(lookups, A, now=0.099) == [RETRY]
    lookups.end_pass(0.099)
    assert ask(lookups, A, B, now=0.1) == [MISS, MISS]
    assert lookups.end_pass(0.1) == [B]


def test_a_late_answer_serves_the_next_who_asks(lookups: Lookups) -> None:
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    ask(lookups, A, now=0.2)
    lookups.end_pass(0.2)
    lookups.answered({A: True}, now=5)
    assert ask(lookups, A, now=5.1, request="other") == [HIT]


def test_an_old_answer_is_asked_for_anew(lookups: Lookups) -> None:
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    lookups.answered({A: False}, now=0.01)
    assert ask(lookups, A, now=0.01 + BELIEVED_S - 0.001) == [MISS]
    lookups.end_pass(1)
    assert ask(lookups, A, now=0.01 + BELIEVED_S) == [RETRY]
    assert lookups.end_pass(1) == [A]
    lookups.answered({A: True}, now=1.1)
    assert ask(lookups, A, now=1.1) == [HIT]


def test_passes_that_are_slower_than_answers_are_believed_still_come_to_an_end(lookups: Lookups) -> None:
    """An engine whose steps take seconds would otherwise ask for ever."""
    ask(lookups, A, B, now=0)
    lookups.end_pass(0)
    lookups.answered({A: True, B: False}, now=0.01)
    assert ask(lookups, A, B, now=7) == [HIT, MISS]


def test_a_request_that_has_been_told_may_wait_again_later(lookups: Lookups) -> None:
    """Such as one that is scheduled anew after it was preempted."""
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    lookups.answered({A: True}, now=0.01)
    assert ask(lookups, A, now=0.02) == [HIT]
    lookups.end_pass(0.02)
    assert ask(lookups, B, now=30) == [RETRY]
    assert lookups.end_pass(30) == [B]
    assert ask(lookups, B, now=30.2) == [MISS]


def test_while_redis_is_down_everything_is_a_miss_and_nothing_is_asked(lookups: Lookups) -> None:
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    lookups.answered({A: True}, now=0.01)
    assert ask(lookups, A, B, now=0.02, is_down=True) == [MISS, MISS]
    assert lookups.end_pass(0.02) == []
    assert ask(lookups, A, now=0.03) == [HIT]


def test_what_could_not_be_loaded_is_a_miss_to_that_request_for_ever(lookups: Lookups) -> None:
    """A lookup that said "there" again would have the engine try the same load again, for ever."""
    lookups.begin("r")
    ask(lookups, A, B, now=0)
    lookups.end_pass(0)
    lookups.answered({A: True, B: True}, now=0.01)
    lookups.failed([A], "r")
    assert ask(lookups, A, B, now=0.03) == [MISS, HIT]
    assert ask(lookups, A, now=0.03, request="other") == [RETRY], "there or not, it is asked for anew"
    assert lookups.end_pass(0.03) == [A]
    lookups.answered({A: True}, now=10)
    assert ask(lookups, A, now=10) == [MISS]
    assert ask(lookups, A, now=10, request="other") == [HIT]
    lookups.end("r")
    assert ask(lookups, A, now=10) == [HIT]


def test_a_failure_after_the_request_has_ended_leaves_nothing_behind(lookups: Lookups) -> None:
    lookups.begin("r")
    ask(lookups, A, now=0)
    lookups.end("r")
    lookups.failed([A], "r")
    assert lookups.n_requests == 0
    assert lookups.end_pass(0.2) == [A]


def test_what_was_stored_is_not_a_miss_any_more(lookups: Lookups) -> None:
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    lookups.answered({A: False}, now=0.01)
    lookups.changed([A, B])
    assert ask(lookups, A, now=0.02, request="other") == [RETRY]


def test_what_is_known_is_bounded_and_forgotten_in_time() -> None:
    lookups = Lookups(wait_s=0.1, chunks_max=100)
    hashes = list(map(block_hash, range(150)))
    assert ask(lookups, *hashes, now=0) == [RETRY] * 100 + [MISS] * 50
    lookups.answered(dict.fromkeys(lookups.end_pass(0), True), now=0.01)
    assert lookups.n_known == 100
    lookups.end_pass(KEPT_S + 1)
    assert lookups.n_known == 0
    assert ask(lookups, *hashes[100:], now=KEPT_S + 2, request="other") == [RETRY] * 50


def test_a_question_that_is_out_is_not_forgotten() -> None:
    lookups = Lookups(wait_s=0.1)
    ask(lookups, A, now=0)
    lookups.end_pass(0)
    lookups.end_pass(10 * KEPT_S)
    assert lookups.n_known == 1
    lookups.unanswered([A], now=10 * KEPT_S)
    lookups.end_pass(12 * KEPT_S)
    assert lookups.n_known == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_request_ever_waits_longer_than_it_may(seed: int) -> None:
    """Random passes, late, wrong and missing answers: a run of RETRY ends within its time, whatever happens."""
    chance = random.Random(seed)
    lookups = Lookups(wait_s=0.1, chunks_max=20)
    hashes, out = list(map(block_hash, range(30))), []
    now, since = 0.0, dict.fromkeys("xyz", -1.0)
    for request in since:
        lookups.begin(request)
    for _ in range(400):
        now += chance.choice([0.001, 0.02, 0.3, 2.0])
        for request in chance.sample("xyz", chance.randint(1, 3)):
            answers = ask(lookups, *chance.sample(hashes, 5), now=now, request=request)
            if RETRY not in answers:
                since[request] = -1.0
                continue
            since[request] = now if since[request] < 0 else since[request]
            assert now - since[request] < 0.1
        out += lookups.end_pass(now)
        chance.shuffle(out)
        n_back = chance.randint(0, len(out))
        back, out = out[:n_back], out[n_back:]
        lookups.answered({h: chance.random() < 0.5 for h in back}, now=now)
        lookups.failed(chance.sample(hashes, 2), chance.choice("xyz"))
        assert lookups.n_known <= 20
