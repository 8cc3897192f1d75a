"""LRU decides where it has nothing to lose, and for a while where it has been better."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.eviction.hazard.builders import QUICK
from tiered.eviction.hazard.safety import Safety, ShadowLru


def watched(safety: Safety, n_requests: int, *, hits: int, lru_hits: int, n_known: int = 10) -> list[bool]:
    """Whether LRU decides after each."""
    answers = []
    for _ in range(n_requests):
        safety.note_request(n_blocks=10, n_known=n_known, hits=hits, lru_hits=lru_hits)
        answers.append(safety.prefers_lru)
    return answers


def test_at_first_the_index_decides() -> None:
    assert not Safety(QUICK).prefers_lru


def test_where_lru_would_hit_all_that_is_known_it_decides() -> None:
    assert all(watched(Safety(QUICK), 5, hits=10, lru_hits=10))


def test_where_lru_would_lose_more_than_the_gates_share_the_index_decides() -> None:
    assert not any(watched(Safety(QUICK), 30, hits=9, lru_hits=9))


def test_lru_decides_for_a_while_after_it_was_better_and_for_longer_each_time() -> None:
    answers = watched(Safety(QUICK), 60, hits=4, lru_hits=6)
    pauses, length = [], 0
    for is_lru in answers:
        if is_lru:
            length += 1
        elif length:
            pauses.append(length)
            length = 0
    assert pauses[0] < pauses[1] < pauses[2]
    assert max(pauses) <= QUICK.pause_requests_max + 1


def test_what_lru_would_gain_by_chance_is_forgiven() -> None:
    safety = Safety(QUICK)
    for _ in range(100):
        assert not any(watched(safety, 1, hits=4, lru_hits=6))
        assert not any(watched(safety, 1, hits=6, lru_hits=4))


def test_equal_hits_never_add_up_to_a_loss() -> None:
    assert not any(watched(Safety(QUICK), 5_000, hits=7, lru_hits=7))


@given(
    requests=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)), capacity=st.integers(1, 20)
)
def test_the_shadow_holds_what_the_newest_requests_used_last(requests: list[list[int]], capacity: int) -> None:
    shadow, last_user, held_since = ShadowLru(), dict[int, int](), 0
    for number, blocks in enumerate(requests):
        for block in blocks:
            if block in last_user:
                assert shadow.leave(last_user[block], 1) == (last_user[block] >= held_since)
            last_user[block] = number
        shadow.use(number, len(blocks), capacity=capacity)
        used = [sum(user == n for user in last_user.values()) for n in range(number + 1)]
        while sum(used[held_since:]) > capacity and sum(n > 0 for n in used[held_since:]) > 1:
            held_since += 1


def test_what_the_shadow_remembers_is_bounded_by_what_is_owned() -> None:
    """One prompt again and again: each request takes over all of the one before."""
    shadow = ShadowLru()
    for number in range(1_000):
        assert shadow.leave(number - 1, 5) == (5 if number else 0)
        shadow.use(number, 5, capacity=100)
    assert len(shadow) == 1
