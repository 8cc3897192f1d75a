"""CacheClient: match, load, save, release - all a connector may call.

A cache is only ever an optimisation: none of these raises because the cache is slow, full, empty or gone. A miss is
an empty match, a save that could not be done is a result with its reason.

Use, for one request::

    match = client.match(tokens, tenant=tenant)
    loaded = client.load(match)                # bytes of loaded.block_ids may be read until release
    ... copy them out of client.pool ...
    if not client.release(match, used_tokens=n):
        ... the pins had ended: drop the copy, compute instead ...
    client.save(tokens, tenant=tenant, fill=copy_my_kv_into_blocks)

A caller that knows whether the conversation goes on says so in ``hints``; eviction policies may learn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tiered.hashing.chain import Extras
from tiered.layout import KvLayout
from tiered.types import NO_HINTS, BlockHash, BlockId, Hints, LeaseId, Source, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt is cached. lease is None when nothing is held, so there is nothing to release.

    block_ids: hot and pinned; n_peer and n_redis blocks after them could be loaded.
    """

    tenant: TenantId
    scope_id: bytes
    hashes: Sequence[BlockHash]
    asked_tokens: int
    lease: LeaseId | None = None
    connection: int = 0
    block_ids: Sequence[BlockId] = ()
    checksums: Sequence[bytes | None] = ()
    n_peer: int = 0
    n_redis: int = 0

    @property
    def n_blocks(self) -> int:
        """Blocks that load can be expected to bring, hot ones included."""
        return len(self.block_ids) + self.n_peer + self.n_redis


@dataclass(frozen=True, slots=True)
class Loaded:
    """The gap-free run of blocks that may be read now, where each was found, and its checksum if known."""

    block_ids: Sequence[BlockId] = ()
    sources: Sequence[Source] = ()
    checksums: Sequence[bytes | None] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a save.

    first_index: how many of the chain's blocks were here before. reason: why less than all was stored, or ''.
    gave:        how many blocks of which tenant left so that these could be stored.
    answer:      all of that as a phrase: ``granted``, ``granted after evicting own``, ``granted after reclaiming from
                 X``, ``refused: reason``; of a save that was stored in part, why the rest was not.
    """

    n_stored: int = 0
    first_index: int = 0
    reason: str = ""
    gave: Mapping[TenantId, int] = field(default_factory=dict)
    answer: str = ""
    checksums: Sequence[bytes | None] = field(default=())


Fill: TypeAlias = "Callable[[BlockPool, Sequence[BlockId], int], None]"
"""fill(pool, block_ids, first_index): write the prompt's blocks from first_index on into their slots."""


class CacheClient(Protocol):
    @property
    def layout(self) -> KvLayout: ...

    @property
    def pool(self) -> BlockPool | None:
        """The blocks' memory; None while there is no worker. May change after a reconnect: ask each time."""

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        """The longest cached prefix of the full blocks of ``tokens``. ValueError for tokens outside u32."""

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        """Bring up what lies in lower tiers; returns what may be read when done, or when the deadline is over."""

    def release(self, match: Match, *, used_tokens: int) -> bool:
        """End the match's pins. False when they had ended before: what was copied meanwhile is not to be used."""

    def save(
        self,
        tokens: Sequence[int],
        *,
        tenant: TenantId,
        fill: Fill,
        extras: Extras | None = None,
        wait_s: float = 0.25,
        hints: Hints = NO_HINTS,
    ) -> Saved:
        """Store the full blocks of ``tokens`` that are not here yet; waits for room at most ``wait_s`` in all."""

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        """The engine computed n_tokens of a prompt in took_s: what fetching has to beat. What was loaded is not
        counted; what cannot be a measurement, or is too short for one, is left out."""

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        """The conversation that hints named so is over; its blocks need not be kept for its sake."""

    def close(self) -> None: ...
