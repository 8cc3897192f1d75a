"""The worker's clearing leaves the loop to others again and again, however much there is to clear."""

from __future__ import annotations

import asyncio

import pytest

import tiered.core.clear
from tests.unit.core.builders import RED, SCOPE, World, chain
from tiered.cluster.clears import ClearRequest, What
from tiered.core.why import WhyLog, tenant_of, what_of
from worker.clear import ClearTask

N = 64


class FakeClears:
    def __init__(self, *requests: ClearRequest) -> None:
        self.requests = dict(enumerate(requests, 1))

    def standing(self) -> dict[int, ClearRequest]:
        return dict(self.requests)


class FakeHot:
    """A pool's worth of made-up blocks."""

    pool = object()

    def __init__(self, world: World) -> None:
        self.core = world.core
        self.turn = world.turn


@pytest.mark.parametrize("what", ["tenant", "scope", "prefix"])
def test_others_have_their_turn_between_the_steps_and_all_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, what: What
) -> None:
    monkeypatch.setattr(tiered.core.clear, "STEP_BLOCKS", 4)
    world, hashes = World(N), chain("p", N)
    world.save(hashes)
    world.core.why = WhyLog()
    name = {"tenant": RED, "scope": SCOPE.hex(), "prefix": hashes[0].hex()}[what]
    task = ClearTask(FakeClears(ClearRequest(what, name)), FakeHot(world))  # type: ignore[arg-type]

    async def look() -> list[int]:
        seen = [world.hot(hashes)]
        looking = asyncio.create_task(task.look())
        while not looking.done():
            await asyncio.sleep(0)
            if world.hot(hashes) != seen[-1]:
                seen.append(world.hot(hashes))
        await looking
        return seen

    assert asyncio.run(look()) == list(range(N, -1, -4))
    assert {(what_of(told), tenant_of(told)) for told in world.core.why.take()} == {("cleared", RED)}


def test_what_is_in_use_goes_at_a_later_look_and_what_was_saved_since_stays() -> None:
    world, hashes = World(N), chain("p", 4)
    world.save(hashes)
    lease = world.match(hashes[:2])
    clears = FakeClears(ClearRequest("tenant", RED))
    task = ClearTask(clears, FakeHot(world))  # type: ignore[arg-type]
    asyncio.run(task.look())
    assert world.hot(hashes) == 2
    world.save(chain("q", 3))
    clears.requests.clear()
    asyncio.run(task.look())
    assert world.hot(hashes) == 2
    world.release(lease)
    asyncio.run(task.look())
    assert (world.hot(hashes), world.hot(chain("q", 3))) == (0, 3)
