"""What one life says to the directory and when, and that a directory which lost or misheard it ends up right."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

import tiered.cluster.announcing
from tests.support.redis_server import block_hash
from tiered.cluster.announcement import BLOCKS_MAX, Heard, announcements
from tiered.cluster.announcing import (
    BATCH_MAX,
    CHECK_S,
    RECHECK_S,
    REFRESH_LAP_S,
    REFRESH_MAX,
    Announcing,
    Compare,
    Read,
    Say,
)
from tiered.cluster.digest import Digest, digest_of
from tiered.cluster.keys import partition_of
from tiered.types import BlockHash, Epoch

A, B, C = (block_hash(name) for name in "abc")
MANY = [block_hash(i) for i in range(2 * BATCH_MAX + 100)]
ONE, TWO = Epoch(1), Epoch(2)


class NaiveDirectory:
    """One life's sets as the scripts keep them, with as little code as possible."""

    def __init__(self, partitions: int = 1) -> None:
        self.sets: list[set[BlockHash]] = [set() for _ in range(partitions)]
        self.digests = [Digest()] * partitions
        self.last = [0] * partitions

    def hear(self, say: Say) -> list[Heard | None]:
        answers: list[Heard | None] = []
        for one in say.announcements:
            p = one.partition
            if one.number <= self.last[p]:
                answers.append(Heard(False, self.last[p]))
                continue
            lost_digest = self.digests[p] != digest_of(self.sets[p])
            self.sets[p] = (self.sets[p] | set(one.stored)) - set(one.removed)
            if not lost_digest:
                self.digests[p] = digest_of(self.sets[p])
            elif one.whole is not None and one.whole.count == len(self.sets[p]):
                self.digests[p] = one.whole
            self.last[p] = one.number if self.sets[p] else 0
            answers.append(Heard(True, len(one.stored) + len(one.removed)))
        return answers

    @property
    def all(self) -> set[BlockHash]:
        return set().union(*self.sets)


def make(*resident: BlockHash, partitions: int = 1) -> tuple[Announcing, NaiveDirectory]:
    announcing, directory = Announcing(partitions), NaiveDirectory(partitions)
    announcing.begin_life(ONE, resident, 0.0)
    return announcing, directory


def settle(announcing: Announcing, directory: NaiveDirectory, now: float) -> int:
    """Do all that is due, without any trouble; how many things that was."""
    n = 0
    while (ask := announcing.next(now)) is not None:
        n += 1
        assert n < 100
        if isinstance(ask, Say):
            announcing.heard(ask, directory.hear(ask))
        elif isinstance(ask, Compare):
            announcing.compared(ask, directory.digests, now)
        else:
            announcing.read(ask, directory.sets[ask.partition])
    return n


def say(announcing: Announcing, now: float = 0.0) -> Say:
    ask = announcing.next(now)
    assert isinstance(ask, Say)
    return ask


def said(ask: Say) -> tuple[set[BlockHash], set[BlockHash]]:
    return (
        {h for one in ask.announcements for h in one.stored},
        {h for one in ask.announcements for h in one.removed},
    )


def test_nothing_new_is_nothing_said() -> None:
    announcing, _ = make()
    assert announcing.next(0.0) is None


def test_before_a_life_begins_and_after_it_ended_nothing_is_said() -> None:
    announcing = Announcing()
    announcing.note([A], [])
    assert announcing.next(CHECK_S) is None
    announcing.begin_life(ONE, [A], 0.0)
    announcing.end_life()
    announcing.note([B], [])
    assert announcing.next(CHECK_S) is None


def test_a_new_life_says_all_that_is_here_and_nothing_of_the_old_one() -> None:
    announcing, directory = make(A)
    announcing.note([B], [])
    under_way = say(announcing)
    announcing.begin_life(TWO, [B, C], 0.0)
    announcing.heard(under_way, directory.hear(under_way))
    again = say(announcing)
    assert again.epoch == TWO
    assert said(again) == ({B, C}, set())


def test_one_thing_is_under_way_at_a_time() -> None:
    announcing, directory = make(A)
    first = say(announcing)
    announcing.note([B], [])
    assert announcing.next(CHECK_S) is None
    announcing.heard(first, directory.hear(first))
    assert said(say(announcing)) == ({B}, set())


def test_what_was_not_heard_is_said_again_as_it_is_by_then() -> None:
    announcing, directory = make(A, B)
    lost = say(announcing)
    announcing.note([C], [A])
    announcing.failed(lost, 0.0)
    again = say(announcing)
    assert said(again) == ({B, C}, {A})
    announcing.heard(again, directory.hear(again))
    assert directory.all == {B, C}
    assert announcing.next(0.0) is None


def test_an_answer_that_comes_after_it_was_given_up_changes_nothing() -> None:
    announcing, directory = make(A)
    lost = say(announcing)
    announcing.failed(lost, 0.0)
    announcing.heard(lost, directory.hear(lost))
    assert announcing.pending_blocks == 1
    assert announcing.counters.announced_blocks == 0


def test_a_late_removal_never_deletes_what_was_stored_later() -> None:
    announcing, directory = make(A, B)
    settle(announcing, directory, 0.0)
    announcing.note([], [A])
    late = say(announcing)
    announcing.failed(late, 0.0)
    announcing.note([A], [])
    settle(announcing, directory, 0.0)
    assert directory.hear(late) == [Heard(False, 3)]
    assert directory.all == {A, B}


def test_one_that_was_refused_is_said_again_under_a_later_number() -> None:
    announcing, directory = make(A)
    directory.last = [7]
    settle(announcing, directory, 0.0)
    assert directory.all == {A}
    assert directory.last == [8]


def test_a_block_too_many_that_a_late_batch_left_is_found() -> None:
    announcing, directory = make(A)
    late = say(announcing)
    announcing.failed(late, 0.0)
    announcing.note([], [A])
    settle(announcing, directory, 0.0)
    directory.hear(late)  # the set was empty, and the number had ended with it
    assert directory.all == {A}
    settle(announcing, directory, CHECK_S)
    settle(announcing, directory, CHECK_S + RECHECK_S)
    assert directory.all == set()
    assert announcing.counters.repairs == 1


@pytest.mark.parametrize("partitions", [1, 4])
def test_only_a_difference_that_stands_is_repaired_and_only_where_it_is(partitions: int) -> None:
    announcing, directory = make(*MANY[:100], partitions=partitions)
    settle(announcing, directory, 0.0)
    for h in (MANY[0], MANY[1]):
        p = partition_of(h, partitions)
        directory.sets[p].remove(h)
        directory.digests[p] = digest_of(directory.sets[p])
    hurt = {partition_of(h, partitions) for h in MANY[:2]}
    settle(announcing, directory, CHECK_S)
    assert announcing.counters.repairs == 0
    assert announcing.next(CHECK_S + RECHECK_S / 2) is None
    settle(announcing, directory, CHECK_S + RECHECK_S)
    assert directory.all == set(MANY[:100])
    assert announcing.counters.repairs == len(hurt)
    assert announcing.counters.repaired_blocks == 2
    settle(announcing, directory, 2 * CHECK_S + RECHECK_S)
    assert announcing.counters.repairs == len(hurt)


def test_a_difference_that_goes_away_is_no_repair() -> None:
    announcing, directory = make(A)
    settle(announcing, directory, 0.0)
    directory.digests = [Digest()]
    settle(announcing, directory, CHECK_S)
    directory.digests = [digest_of([A])]
    settle(announcing, directory, CHECK_S + RECHECK_S)
    directory.digests = [Digest()]
    settle(announcing, directory, 2 * CHECK_S + RECHECK_S)
    assert announcing.counters.repairs == 0


def test_a_digest_that_was_lost_is_restated() -> None:
    announcing, directory = make(A, B)
    settle(announcing, directory, 0.0)
    directory.digests = [Digest(-1, 0)]
    for now in (CHECK_S, CHECK_S + RECHECK_S, 2 * CHECK_S + RECHECK_S):
        settle(announcing, directory, now)
    assert directory.digests == [digest_of([A, B])]
    assert announcing.counters.repairs == 1
    assert announcing.counters.repaired_blocks == 0


def test_partitions_are_compared_as_they_were_when_that_was_asked() -> None:
    announcing, directory = make(A)
    settle(announcing, directory, 0.0)
    for now in (CHECK_S, 2 * CHECK_S, 3 * CHECK_S):
        ask = announcing.next(now)
        assert isinstance(ask, Compare)
        announcing.note(*(([B], []) if B not in directory.all else ([], [B])))
        announcing.compared(ask, directory.digests, now)
        settle(announcing, directory, now)
    assert announcing.counters.repairs == 0


def test_a_silent_partition_is_neither_wrong_nor_in_the_way_of_the_others() -> None:
    announcing, directory = make(*MANY, partitions=2)
    while announcing.pending_blocks > len(MANY) // 2 + 200:
        ask = say(announcing)
        heard = directory.hear(ask)
        quiet = [None if one.partition == 0 else answer for one, answer in zip(ask.announcements, heard, strict=True)]
        announcing.heard(ask, quiet)
    directory.sets[0], directory.digests[0], directory.last[0] = set(), Digest(), 0
    assert directory.sets[1] >= {h for h in MANY if h[0] & 1}
    settle(announcing, directory, 0.0)
    assert directory.all == set(MANY)
    ask = announcing.next(CHECK_S)
    assert isinstance(ask, Compare)
    announcing.compared(ask, [None, directory.digests[1]], CHECK_S)
    settle(announcing, directory, CHECK_S + RECHECK_S)
    assert announcing.counters.repairs == 0


def test_a_set_that_cannot_be_read_does_not_keep_the_others_from_hearing() -> None:
    announcing, directory = make(A)
    settle(announcing, directory, 0.0)
    directory.digests = [Digest()]
    settle(announcing, directory, CHECK_S)
    now = CHECK_S + RECHECK_S
    compare = announcing.next(now)
    assert isinstance(compare, Compare)
    announcing.compared(compare, directory.digests, now)
    read = announcing.next(now)
    assert isinstance(read, Read)
    announcing.failed(read, now)
    announcing.note([B], [])
    assert said(say(announcing, now)) == ({B}, set())


def test_batches_are_bounded_and_each_call_concerns_one_partition() -> None:
    announcing, directory = make(*MANY, partitions=4)
    seen: set[BlockHash] = set()
    while announcing.pending_blocks:
        ask = say(announcing)
        assert ask.n_blocks <= BATCH_MAX + 4
        for one in ask.announcements:
            assert len(one.stored) + len(one.removed) <= BLOCKS_MAX
            assert {partition_of(h, 4) for h in one.stored} == {one.partition}
        seen |= said(ask)[0]
        announcing.heard(ask, directory.hear(ask))
    assert seen == set(MANY)


def test_too_many_removals_that_nobody_hears_are_forgotten_and_found_by_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiered.cluster.announcing, "GONE_MAX", 10)
    announcing, directory = make(*MANY[:100])
    settle(announcing, directory, 0.0)
    for h in MANY[:90]:
        announcing.note([], [h])
    assert announcing.pending_blocks <= 90
    assert announcing.pending_blocks < 21, "bounded by what is here and what may be gone"
    settle(announcing, directory, 0.0)
    assert directory.all == set(MANY[90:100])


def test_all_that_is_here_is_said_again_in_the_end_a_part_at_a_time() -> None:
    announcing, directory = make(*MANY)
    settle(announcing, directory, 0.0)
    again: set[BlockHash] = set()
    now = 0.0
    for _ in range(-(-len(MANY) // REFRESH_MAX) + int(REFRESH_LAP_S / CHECK_S) + 1):
        now += CHECK_S
        ask = announcing.next(now)
        assert isinstance(ask, Compare)
        announcing.compared(ask, directory.digests, now)
        ask = announcing.next(now)
        if ask is not None:
            assert isinstance(ask, Say)
            assert ask.n_blocks <= REFRESH_MAX
            again |= said(ask)[0]
            announcing.heard(ask, directory.hear(ask))
    assert again == set(MANY)


def test_a_small_pool_is_not_said_again_all_the_time() -> None:
    announcing, directory = make(A)
    settle(announcing, directory, 0.0)
    n_rounds = 100
    for i in range(n_rounds):
        settle(announcing, directory, (i + 1) * CHECK_S)
    assert 1 <= announcing.counters.refreshed_blocks <= n_rounds * CHECK_S / REFRESH_LAP_S


def test_what_is_only_said_again_is_no_news() -> None:
    announcing, directory = make(A, B)
    settle(announcing, directory, 0.0)
    assert announcing.counters.announced_blocks == 2
    settle(announcing, directory, REFRESH_LAP_S)
    settle(announcing, directory, 2 * REFRESH_LAP_S)
    assert announcing.counters.refreshed_blocks >= 2
    assert announcing.counters.announced_blocks == 2
    announcing.note([C], [A])
    settle(announcing, directory, 2 * REFRESH_LAP_S)
    assert announcing.counters.announced_blocks == 4


def test_what_changes_while_it_waits_to_be_said_again_is_news() -> None:
    announcing, directory = make(A)
    settle(announcing, directory, 0.0)
    ask = announcing.next(REFRESH_LAP_S)
    assert isinstance(ask, Compare)
    announcing.compared(ask, directory.digests, REFRESH_LAP_S)
    announcing.note([], [A])
    settle(announcing, directory, REFRESH_LAP_S)
    assert announcing.counters.announced_blocks == 2
    assert directory.all == set()


def test_partitions_that_differ_are_counted_until_they_are_put_right() -> None:
    announcing, directory = make(A, B)
    settle(announcing, directory, 0.0)
    assert announcing.differing == 0
    directory.sets[0].discard(A)
    directory.digests[0] = digest_of(directory.sets[0])
    ask = announcing.next(CHECK_S)
    assert isinstance(ask, Compare)
    announcing.compared(ask, directory.digests, CHECK_S)
    assert announcing.differing == 1
    settle(announcing, directory, CHECK_S + RECHECK_S)
    assert announcing.differing == 0
    assert directory.all == {A, B}


def test_a_block_that_left_is_not_said_to_be_here_by_a_refresh() -> None:
    announcing, directory = make(*MANY[: REFRESH_MAX + 50])
    settle(announcing, directory, 0.0)
    settle(announcing, directory, REFRESH_LAP_S)
    announcing.note([], MANY[: REFRESH_MAX + 49])
    settle(announcing, directory, REFRESH_LAP_S)
    settle(announcing, directory, REFRESH_LAP_S + CHECK_S)
    assert directory.all == {MANY[REFRESH_MAX + 49]}


@pytest.mark.parametrize("n_hashes", [0, 1, BLOCKS_MAX - 1, BLOCKS_MAX, BLOCKS_MAX + 1, 3 * BLOCKS_MAX])
def test_every_hash_is_said_once(n_hashes: int) -> None:
    here = {h: i % 3 > 0 for i, h in enumerate(MANY[:n_hashes])}
    calls = list(announcements(here, 2))
    assert sorted(h for one in calls for h in one.stored) == sorted(h for h, is_here in here.items() if is_here)
    assert sorted(h for one in calls for h in one.removed) == sorted(h for h, is_here in here.items() if not is_here)


def test_a_digest_is_the_same_whatever_the_order() -> None:
    assert digest_of([A, B, C]) == digest_of([C, A, B])
    assert digest_of([A, B]) != digest_of([A, C])
    assert digest_of([]) == Digest()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_lost_late_or_answered_twice_the_directory_ends_up_right(seed: int) -> None:
    """Batches are lost before or after they are heard, arrive late and out of order, and memory is lost."""
    rng = random.Random(seed)
    partitions = rng.choice([1, 2, 8])
    announcing, directory = make(*MANY[:20], partitions=partitions)
    here = set(MANY[:20])
    late: list[Say] = []
    now = 0.0
    for _ in range(600):
        now += rng.choice([0.05, 0.3, 2.0])
        if rng.random() < 0.5:
            announcing.note(*change(rng, here))
        if late and rng.random() < 0.3:
            directory.hear(late.pop(rng.randrange(len(late))))
        if rng.random() < 0.01:
            p = rng.randrange(partitions)
            directory.sets[p], directory.digests[p], directory.last[p] = set(), Digest(), 0
        ask = announcing.next(now)
        if ask is None:
            continue
        fate = rng.random()
        if fate < 0.2:
            announcing.failed(ask, now)
            if isinstance(ask, Say):
                late += [ask] * rng.randrange(3)
        elif isinstance(ask, Say):
            answers = directory.hear(ask)
            if fate < 0.3:
                announcing.failed(ask, now)
            else:
                announcing.heard(ask, [None if rng.random() < 0.1 else answer for answer in answers])
        elif isinstance(ask, Compare):
            announcing.compared(ask, [None if rng.random() < 0.1 else d for d in directory.digests], now)
        else:
            announcing.read(ask, set(directory.sets[ask.partition]))
    for one in late:
        directory.hear(one)
    for _ in range(8):
        now += CHECK_S
        settle(announcing, directory, now)
    assert directory.all == here
    assert directory.digests == [digest_of(members) for members in directory.sets]


def change(rng: random.Random, here: set[BlockHash]) -> tuple[Collection[BlockHash], Collection[BlockHash]]:
    stored, removed = [], []
    for h in rng.sample(MANY[:60], rng.randrange(1, 8)):
        if h in here:
            here.remove(h)
            removed.append(h)
        else:
            here.add(h)
            stored.append(h)
    return stored, removed
