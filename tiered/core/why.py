"""Why: what happened to blocks in this core, kept until the host takes it away, stamps it and shows it.

Owns the bound and the form. What is worth noting is for each verb to say. Blocks come and go by the thousand, so what
is noted of each of them is a record of what differs from one to the next; it is put into words when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import msgspec

from tiered.types import BlockHash, Happening, Source

UNTAKEN_MAX: Final = 65_536
"""Between two turns of a host; older ones are lost then, and counted."""

RUN_BLOCKS_MAX: Final = 256
"""A longer run is noted as several."""

NO_LIMIT: Final = -1
"""In place of a limit in bytes, of a tenant that has none."""


class Noting(Protocol):
    """Whoever may be told of what happened to a block; see :class:`tiered.types.Happening`."""

    def note(
        self,
        what: str,
        block_hash: BlockHash,
        tenant: str,
        *,
        tier: str = ...,
        n_blocks: int = ...,
        **detail: int | float | str,
    ) -> None: ...


class Run(msgspec.Struct, frozen=True, gc=False):
    """One happening of several blocks, each the parent of the next; ``first`` is told of the first of them."""

    first: Happening
    hashes: tuple[BlockHash, ...]


class Terms(msgspec.Struct, frozen=True, gc=False):
    """On what terms blocks of one tenant leave in one go, so that somebody has room.

    why: ``room`` where another block is to come, ``own limit``, ``limit lowered``, ``ahead of need``, or ``larger
    part``: of a shared block that another tenant parts from. for_tenant: who is to have the room, the giver itself at
    its own limit; empty where nobody in particular is. Limits in bytes, NO_LIMIT for none.
    """

    tenant: str
    policy: str
    why: str
    for_tenant: str
    limit: int
    reserved: int
    weight: float
    for_used: int
    for_limit: int
    for_reserved: int
    for_weight: float


class Evicted(msgspec.Struct, frozen=True, gc=False):
    """One block was chosen to leave.

    rank: how many the policy proposed before it that might not leave. idle: uses of the pool's blocks since its last.
    used: the giver's bytes before it left. copy: whether it leaves by way of a copy, or why not.
    """

    block_hash: BlockHash
    terms: Terms
    rank: int
    depth: int
    hits: int
    idle: int
    used: int
    copy: str


Entry: TypeAlias = Happening | Run | Evicted


def hashes_of(entry: Entry) -> Sequence[BlockHash]:
    """The blocks that it happened to."""
    return entry.hashes if isinstance(entry, Run) else (entry.block_hash,)


def tenant_of(entry: Entry) -> str:
    if isinstance(entry, Happening):
        return entry.tenant
    return entry.first.tenant if isinstance(entry, Run) else entry.terms.tenant


def what_of(entry: Entry) -> str:
    if isinstance(entry, Happening):
        return entry.what
    return entry.first.what if isinstance(entry, Run) else "evicted"


def happening_of(entry: Entry, block_hash: BlockHash | None = None) -> Happening:
    """In full; of a run as the block of that hash saw it, its place in the run named, else as a whole."""
    if isinstance(entry, Happening):
        return entry
    if isinstance(entry, Evicted):
        return _evicted(entry)
    if block_hash is None:
        return entry.first
    place = entry.hashes.index(block_hash)
    return msgspec.structs.replace(entry.first, block_hash=block_hash, detail={**entry.first.detail, "place": place})


def _evicted(entry: Evicted) -> Happening:
    terms = entry.terms
    detail: dict[str, int | float | str] = {
        "policy": terms.policy,
        "why": terms.why,
        "for_tenant": terms.for_tenant,
        "rank": entry.rank,
        "depth": entry.depth,
        "hits": entry.hits,
        "idle": entry.idle,
        "copy": entry.copy,
        "used": entry.used,
        "limit": terms.limit,
        "reserved": terms.reserved,
        "weight": terms.weight,
    }
    if terms.for_tenant not in ("", terms.tenant):
        detail |= {
            "for_used": terms.for_used,
            "for_limit": terms.for_limit,
            "for_reserved": terms.for_reserved,
            "for_weight": terms.for_weight,
        }
    return Happening("evicted", entry.block_hash, terms.tenant, Source.HOT.value, 1, detail)


@dataclass(slots=True)
class WhyLog:
    lost: int = 0
    push: Callable[[Entry], None] = field(init=False)
    """As :meth:`add`, without the bound: of evictions, whose caller calls :meth:`make_room` once for many."""
    _entries: deque[Entry] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.push = self._entries.append

    def note(
        self,
        what: str,
        block_hash: BlockHash,
        tenant: str,
        *,
        tier: str = Source.HOT.value,
        n_blocks: int = 1,
        **detail: int | float | str,
    ) -> None:
        self.add(Happening(what, block_hash, tenant, tier, n_blocks, detail))

    def note_run(
        self, what: str, hashes: Sequence[BlockHash], tenant: str, *, depth: int, **detail: int | float | str
    ) -> None:
        """Of blocks that are each the parent of the next; depth: of the first."""
        for start in range(0, len(hashes), RUN_BLOCKS_MAX):
            part = tuple(hashes[start : start + RUN_BLOCKS_MAX])
            about = {"depth": depth + start, **detail}
            self.add(Run(Happening(what, part[0], tenant, Source.HOT.value, len(part), about), part))

    def add(self, entry: Entry) -> None:
        self.make_room()
        self.push(entry)

    def make_room(self) -> None:
        """For one more, by losing the oldest."""
        while len(self._entries) >= UNTAKEN_MAX:
            self._entries.popleft()
            self.lost += 1

    def take(self) -> list[Entry]:
        """All since the last time, oldest first."""
        taken = list(self._entries)
        self._entries.clear()
        return taken
