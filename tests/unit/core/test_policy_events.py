"""What the core tells a policy: each block once as it comes, and each use once however often it is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.core.builders import BLOCK_TOKENS, REDIS, World, chain
from tiered.blocks.record import NO_PARENT, NO_TENANT
from tiered.core.core import ATTENTION_EVEN_TOKENS
from tiered.core.demote import make_room
from tiered.eviction.policy import EvictionPolicy
from tiered.eviction.registry import POLICIES
from tiered.types import BlockHash, BlockId


class Recorder:
    """First in, first out, with a record of what it was told."""

    def __init__(self) -> None:
        self.known: dict[BlockId, BlockHash] = {}
        self.parents: list[tuple[BlockHash, BlockHash | None]] = []
        self.costs: dict[BlockHash, float] = {}
        self.hits: list[BlockHash] = []
        self.touched: list[BlockHash] = []

    def __len__(self) -> int:
        return len(self.known)

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        self.known[block_id] = key
        self.parents.append((key, None if parent == NO_PARENT else self.known.get(parent)))
        self.costs[key] = recompute_cost

    def on_hit(self, block_id: BlockId) -> None:
        self.hits.append(self.known[block_id])

    def on_touch(self, block_id: BlockId) -> None:
        self.touched.append(self.known[block_id])

    def on_remove(self, block_id: BlockId) -> None:
        del self.known[block_id]

    def victims(self) -> Iterator[BlockId]:
        return iter(self.known)


def recorded(n_blocks: int) -> tuple[World, Recorder]:
    world, recorder = World(n_blocks), Recorder()
    sizes: list[int] = []

    def factory(n_pool_blocks: int) -> EvictionPolicy:
        sizes.append(n_pool_blocks)
        assert sizes == [n_blocks], "one policy for one tenant, and it is told of the pool"
        return recorder

    world.core.options.policy = factory
    return world, recorder


def test_a_saved_block_is_no_hit_and_neither_is_the_end_of_its_save() -> None:
    world, told = recorded(8)
    prompt = chain("p", 4)
    world.save(prompt, window=2)
    assert told.hits == []
    assert told.touched == prompt[::-1]


def test_a_match_is_one_hit_for_each_block_though_a_load_and_a_save_follow() -> None:
    world, told = recorded(16)
    prompt = chain("p", 6)
    world.save(prompt[:2])
    lease = world.match(prompt[:4], below={2: [REDIS], 3: [REDIS]})
    world.load(lease)
    world.answer(world.seam.fetches[0])
    world.release(lease)
    world.save(prompt)
    assert told.hits == [prompt[1], prompt[0]]


def test_the_end_of_a_prompt_is_told_of_first_and_each_block_with_what_it_hangs_on() -> None:
    world, told = recorded(8)
    prompt = chain("p", 4)
    world.save(prompt, window=2)
    assert [key for key, _ in told.parents] == [prompt[1], prompt[0], prompt[3], prompt[2]]
    assert told.parents[1] == (prompt[0], None)
    assert told.parents[3] == (prompt[2], prompt[1])


def test_the_cost_of_a_block_grows_with_the_prefix_that_it_attends_to() -> None:
    world, told = recorded(8)
    prompt = chain("p", 4)
    world.save(prompt)
    costs = [told.costs[block_hash] for block_hash in prompt]
    step = BLOCK_TOKENS * BLOCK_TOKENS / ATTENTION_EVEN_TOKENS
    assert costs == [BLOCK_TOKENS + step * depth for depth in range(4)]


def test_a_block_called_back_is_told_of_by_the_same_key() -> None:
    world, told = recorded(2)
    prompt = chain("p", 1)
    world.save(prompt)
    make_room(world.core, asking=NO_TENANT, n_blocks=1)
    assert len(told) == 0
    world.match(prompt)
    assert [key for key, _ in told.parents] == prompt * 2


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_finds_what_may_leave_beside_a_prompt_as_large_as_the_pool_allows(name: str) -> None:
    """Ten times over: many short prompts, then a long one that takes all of their room while it is pinned."""
    world = World(24, policy=name, lower_tier=False)
    for turn in range(10):
        for short in range(8):
            world.save(chain(f"short{short}", 3))
        assert world.save(chain(f"long{turn}", 23))[0] == 23
        assert world.hot(chain(f"long{turn}", 23)) == 23
