"""Groups by class and age, in order of their indices, and the order of last use beside them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.eviction.hazard.classes import N_BINS, N_CLASSES
from tiered.eviction.hazard.filing import Filing
from tiered.eviction.hazard.schedule import SPARE, Schedule
from tiered.eviction.hazard.segment import Segment


def segment(number: int, *, age_bin: int = 1, used_at: int | None = None) -> Segment:
    return Segment(number=number, began_at=0.0, used_at=number if used_at is None else used_at, age_bin=age_bin)


def indices(of: dict[tuple[int, int], float]) -> list[list[float]]:
    return [[of.get((c, a), 1.0) for a in range(N_BINS)] for c in range(N_CLASSES)]


def numbers(segments: object) -> list[int]:
    return [one.number for one in segments]  # type: ignore[attr-defined]


def test_the_group_with_the_lowest_index_comes_first_and_its_earliest_entry() -> None:
    filing = Filing(indices({(3, 1): 0.2, (4, 1): 0.1}))
    for number, block_class in ((1, 3), (2, 4), (3, 3), (4, 4), (5, 9)):
        filing.file(segment(number), block_class)
    assert numbers(filing.by_index()) == [2, 4, 1, 3, 5]


def test_groups_of_one_index_go_by_class_and_age() -> None:
    filing = Filing(indices({}))
    for number, (block_class, age_bin) in enumerate([(2, 1), (1, 5), (1, 2)]):
        filing.file(segment(number, age_bin=age_bin), block_class)
    assert numbers(filing.by_index()) == [2, 1, 0]


def test_filing_again_under_the_same_class_and_age_keeps_the_place() -> None:
    filing, first, second = Filing(indices({})), segment(1), segment(2)
    filing.file(first, 3)
    filing.file(second, 3)
    filing.file(first, 3)
    assert numbers(filing.by_index()) == [1, 2]
    filing.file(first, 4)
    filing.file(first, 3)
    assert numbers(filing.by_index()) == [2, 1]


def test_new_indices_move_groups_and_not_what_is_in_them() -> None:
    filing = Filing(indices({(3, 1): 0.1}))
    for number, block_class in ((1, 3), (2, 4), (3, 3)):
        filing.file(segment(number), block_class)
    filing.rank_anew(indices({(4, 1): 0.1}))
    assert numbers(filing.by_index()) == [2, 1, 3]


def test_what_is_taken_out_is_in_neither_order() -> None:
    filing, one, other = Filing(indices({})), segment(1), segment(2)
    filing.file(one, 3)
    filing.file(other, 3)
    filing.take_out(one)
    filing.take_out(one)
    assert numbers(filing.by_index()) == numbers(filing.by_use()) == [2]


def test_the_order_of_use_is_that_of_the_last_use_whatever_the_class() -> None:
    filing = Filing(indices({}))
    for number, used_at in ((1, 30), (2, 10), (3, 20)):
        filing.file(segment(number, used_at=used_at), number)
    assert numbers(filing.by_use()) == [2, 3, 1]
    assert numbers(filing.by_use()) == [2, 3, 1]


steps = st.lists(st.tuples(st.sampled_from(["put", "discard", "pop", "look"]), st.integers(0, 9), st.integers(0, 20)))


@given(steps=steps)
def test_a_schedule_is_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    schedule, model = Schedule(), dict[int, int]()
    segments = [segment(number) for number in range(10)]
    for verb, number, due in steps:
        if verb == "put":
            schedule.put(segments[number], due)
            model[number] = due
        elif verb == "discard":
            schedule.discard(segments[number])
            model.pop(number, None)
        elif verb == "pop":
            first = min(((d, n) for n, d in model.items() if d <= due), default=None)
            popped = schedule.pop_due(due)
            assert (None if popped is None else (popped[0], popped[1].number)) == first
            if first is not None:
                del model[first[1]]
        else:
            for _ in zip(range(number), schedule.in_order(), strict=False):
                pass
        in_order = sorted(model, key=lambda n: (model[n], n))
        assert numbers(schedule.in_order()) == in_order
    assert len(schedule) == len(model)


def test_a_schedule_gives_what_is_due_and_no_more() -> None:
    schedule, one, other = Schedule(), segment(1), segment(2)
    schedule.put(one, 5.0)
    schedule.put(other, 3.0)
    schedule.put(one, 9.0)
    assert schedule.pop_due(8.0) == (3.0, other)
    assert schedule.pop_due(8.0) is None
    assert schedule.pop_due(9.0) == (9.0, one)


def test_outdated_entries_of_a_schedule_are_bounded() -> None:
    schedule, one = Schedule(), segment(1)
    for due in range(10_000):
        schedule.put(one, 1e6 - due)
        schedule.discard(one)
        schedule.put(one, 1e6 - due)
    assert schedule.n_entries <= SPARE + 2
