"""Tenants take turns, whoever has the most makes way, and nobody is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tiered.serving.queue import FairQueue
from tiered.types import TenantId


@dataclass(eq=False)
class One:
    tenant: TenantId
    name: str = ""


def line(tenant: str, n: int) -> list[One]:
    return [One(TenantId(tenant), f"{tenant}{index}") for index in range(n)]


def drain(queue: FairQueue[One]) -> list[str]:
    taken = []
    while (one := queue.take()) is not None:
        taken.append(one.name)
    return taken


def test_tenants_take_turns_and_each_is_served_in_its_order() -> None:
    queue: FairQueue[One] = FairQueue(10)
    for one in [*line("a", 4), *line("b", 2), *line("c", 1)]:
        assert queue.add([one]).admitted
    assert drain(queue) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_one_who_comes_late_waits_for_one_of_each_other_tenant_at_most() -> None:
    queue: FairQueue[One] = FairQueue(100)
    queue.add(line("a", 50))
    queue.take()
    queue.add(line("b", 1))
    assert drain(queue)[:2] == ["a1", "b0"]


def test_a_full_queue_refuses_the_tenant_that_fills_it() -> None:
    queue: FairQueue[One] = FairQueue(3)
    queue.add(line("a", 3))
    assert not queue.add(line("a", 1)).admitted
    assert drain(queue) == ["a0", "a1", "a2"]


def test_who_has_nothing_waiting_takes_the_place_of_the_last_of_who_has_most() -> None:
    queue: FairQueue[One] = FairQueue(3)
    queue.add(line("a", 3))
    admission = queue.add(line("b", 1))
    assert (admission.admitted, [one.name for one in admission.displaced]) == (True, ["a2"])
    assert not queue.add(line("c", 2)).admitted
    assert drain(queue) == ["a0", "b0", "a1"]


def test_requests_that_come_together_are_taken_together_or_not_at_all() -> None:
    queue: FairQueue[One] = FairQueue(4)
    queue.add(line("a", 4))
    assert not queue.add(line("b", 3)).admitted
    assert len(queue) == 4
    assert [one.name for one in queue.add(line("b", 2)).displaced] == ["a3", "a2"]
    assert not queue.add(line("c", 5)).admitted
    assert drain(queue) == ["a0", "b0", "a1", "b1"]


def test_one_that_was_removed_is_not_served_and_its_place_is_free() -> None:
    queue: FairQueue[One] = FairQueue(2)
    first, second = line("a", 2)
    queue.add([first, second])
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.add(line("b", 1)).displaced == ()
    assert drain(queue) == ["a1", "b0"]
    assert queue.take() is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4), st.booleans()), max_size=60), st.integers(1, 8))
def test_nobody_is_lost_and_the_bound_holds(steps: list[tuple[str, int, bool]], length_max: int) -> None:
    queue: FairQueue[One] = FairQueue(length_max)
    waiting: list[One] = []
    for tenant, n, takes in steps:
        came = line(tenant, n)
        admission = queue.add(came)
        if admission.admitted:
            waiting = [one for one in waiting if one not in admission.displaced] + came
            counts = Counter(one.tenant for one in waiting)
            assert all(counts[one.tenant] >= counts[TenantId(tenant)] for one in admission.displaced)
        else:
            assert admission.displaced == ()
        if takes and (one := queue.take()) is not None:
            waiting.remove(one)
        assert len(queue) == len(waiting) <= length_max
    assert {id(one) for one in queue.clear()} == {id(one) for one in waiting}
    assert len(queue) == 0
