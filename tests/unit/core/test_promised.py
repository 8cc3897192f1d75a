"""A reservation holds against a tenant that has none, whatever that one does: looks up, stores, and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.core.builders import BLOCK_TOKENS, BLUE, RED, SCOPE, World, chain
from tests.unit.core.test_sequences import opened
from tiered.core.sequences import drop
from tiered.hashing.chain import chain_hashes
from tiered.types import TenantId

POOL, RESERVED, CHAIN = 64, 32, 8

Ask = Callable[[World, int], int]
"""RED asks for a prompt of CHAIN blocks, and what was not hot is stored; returns how many were."""


def by_lookup(world: World, number: int) -> int:
    prompt = chain(f"p{number}", CHAIN)
    n_hot = look_up(world, f"p{number}", tenant=RED)
    if n_hot < CHAIN:
        world.save(prompt, tenant=RED)
    return n_hot


def by_sequence(world: World, number: int) -> int:
    tokens = [number] * CHAIN * BLOCK_TOKENS
    n_hot = world.hot(chain_hashes(SCOPE, tokens, block_tokens=BLOCK_TOKENS))
    drop(world.core, opened(world, tokens, tenant=RED))
    return n_hot


def look_up(world: World, name: str, *, tenant: TenantId) -> int:
    lease = world.match(chain(name, CHAIN), tenant=tenant)
    n_hot = len(lease.pinned)
    world.release(lease)
    return n_hot


@pytest.mark.parametrize("ask", [by_lookup, by_sequence])
def test_lookups_of_a_tenant_without_a_reservation_make_nothing_look_idle(ask: Ask) -> None:
    world = World(POOL, lower_tier=False)
    world.limit(RED, None, hot_reserved_blocks=RESERVED)
    world.limit(BLUE, None, weight=1_000.0)  # RED borrows nothing
    world.save(chain("blue", CHAIN), tenant=BLUE)
    for number in range(3 * POOL // CHAIN):  # until it is known how old blocks get
        ask(world, number)
        look_up(world, "blue", tenant=BLUE)
    world.save(chain("more of blue", POOL - RESERVED - CHAIN), tenant=BLUE)
    assert world.used(RED) == RESERVED
    assert world.core.leaving_age.too_idle < float("inf")

    def asked() -> int:
        return sum(ask(world, 1_000 + number) for number in range(RESERVED // CHAIN))

    asked()
    hits = []
    for turn in range(1, 5):
        for _ in range(400 * turn):
            look_up(world, "blue", tenant=BLUE)
        for number in range(15):
            world.save(chain(f"flood{turn}/{number}", CHAIN), tenant=BLUE)
        world.save(chain("blue", CHAIN), tenant=BLUE)
        hits.append(asked())
    assert hits == [RESERVED] * 4


def test_what_a_sequence_reuses_is_a_use() -> None:
    world = World(POOL, lower_tier=False)
    world.limit(RED, None, hot_reserved_blocks=RESERVED)
    by_sequence(world, 1)
    used_at = [record.used_at for record in world.core.table.records[:CHAIN]]
    by_sequence(world, 2)
    by_sequence(world, 1)
    assert all(record.used_at > before for record, before in zip(world.core.table.records, used_at, strict=False))
