"""Hashes come from engines: naming those of another scope's blocks brings nobody anything. Keeps I6."""

from __future__ import annotations

import hashlib

from tests.unit.core.builders import BLOCK_TOKENS, BLUE, REDIS, World, chain
from tiered.core.allocate import Shortfall, allocate
from tiered.core.match import match, note_origins, open_lease

OTHER = hashlib.sha256(b"another scope").digest()


def test_blocks_of_another_scope_are_no_hits() -> None:
    world = World(8)
    world.save(chain("p", 4))
    lease = match(
        world.core,
        chain("p", 4),
        connection=2,
        tenant=BLUE,
        scope_id=OTHER,
        asked_tokens=4 * BLOCK_TOKENS,
        now=0.0,
    )
    assert lease.pinned == []


def test_a_run_ends_where_another_scope_begins() -> None:
    world = World(8)
    world.save(chain("p", 2))
    own = chain("q", 2, scope=OTHER)
    lease = open_lease(world.core, own, connection=2, tenant=BLUE, scope_id=OTHER)
    world.allocate(lease)
    world.commit(lease)
    mixed = [*own, *chain("p", 2)]
    found = match(world.core, mixed, connection=2, tenant=BLUE, scope_id=OTHER, asked_tokens=16, now=0.0)
    assert len(found.pinned) == 2


def test_nothing_is_saved_upon_blocks_of_another_scope() -> None:
    world = World(8)
    theirs = chain("p", 4)
    world.save(theirs[:2])
    lease = open_lease(world.core, theirs, connection=2, tenant=BLUE, scope_id=OTHER)
    grant = allocate(world.core, lease, n_blocks_max=4)
    assert (grant.block_ids, grant.shortfall) == ((), Shortfall.BUSY)
    assert world.used(BLUE) == 0


def test_a_load_does_not_take_what_another_scope_made_resident_meanwhile() -> None:
    world = World(8)
    theirs = chain("p", 3)
    lease = match(world.core, theirs, connection=2, tenant=BLUE, scope_id=OTHER, asked_tokens=12, now=0.0)
    note_origins(lease, [(REDIS,), (REDIS,), (REDIS,)])
    world.load(lease)
    [job] = world.seam.fetches
    world.answer(job, good=())
    world.save(theirs)
    world.turn()
    assert lease.pinned == []
