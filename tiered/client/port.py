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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tiered.hashing.chain import Extras, chain_hashes
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.types import NO_HINTS, BlockHash, BlockId, Hints, LeaseId, Source, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Chain:
    """A tenant's tokens as block hashes, of the full blocks; what a match or a save asks for.

    root: the scope's id, under which the tenant's blocks are found. n_tokens: with those of the partial last block.
    """

    tenant: TenantId
    root: bytes
    hashes: Sequence[BlockHash]
    n_tokens: int
    block_tokens: int
    extras: Extras | None = None

    @classmethod
    def of(
        cls, root: bytes, tokens: Sequence[int], *, tenant: TenantId, block_tokens: int, extras: Extras | None
    ) -> Chain:
        """Errors: ValueError for tokens outside u32."""
        hashes = chain_hashes(root, tokens, block_tokens=block_tokens, extras=extras)
        return cls(tenant, root, hashes, len(tokens), block_tokens, extras)

    def grown(self, tail: Sequence[int]) -> Chain:
        """The chain of a longer sequence. tail: its tokens from the first that no full block covers on."""
        n_blocks = len(self.hashes)
        link = self.hashes[-1] if n_blocks else self.root
        more = chain_hashes(link, tail, block_tokens=self.block_tokens, extras=self.extras, first_index=n_blocks)
        return replace(self, hashes=[*self.hashes, *more], n_tokens=n_blocks * self.block_tokens + len(tail))


@dataclass(frozen=True, slots=True)
class Voucher:
    """Names a match's pins to another process of the same engine, which asks ``vouch`` for them.

    pool: whose blocks the match's ids are. connection: as the worker counts them.
    """

    pool: bytes
    connection: int
    lease: int


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt is cached. lease is None when nothing is held, so there is nothing to release.

    block_ids: hot and pinned; n_peer and n_redis blocks after them could be loaded. trace: the span of the match, to
    which its load belongs.
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
    voucher: Voucher | None = None
    trace: str = ""

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
    def scope(self) -> ModelScope: ...

    @property
    def layout(self) -> KvLayout: ...

    @property
    def pool(self) -> BlockPool | None:
        """The blocks' memory; None while there is no worker. May change after a reconnect: ask each time."""

    def chain(self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None) -> Chain:
        """The tokens as this tenant's blocks are called now. ValueError for tokens outside u32."""

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        """The longest cached prefix of the full blocks of ``tokens``. ValueError for tokens outside u32."""

    def match_chain(self, chain: Chain, *, hints: Hints = NO_HINTS, is_counted: bool = True) -> Match:
        """The same for a chain. is_counted: its tokens are asked for, which the tenant's token counts say."""

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        """Bring up what lies in lower tiers; returns what may be read when done, or when the deadline is over."""

    def release(self, match: Match, *, used_tokens: int, own_tokens: int = 0) -> bool:
        """End the match's pins. False when they had ended before: what was copied meanwhile is not to be used.

        used_tokens: of the prompt's first, those that were not computed. own_tokens: of them, those that the engine
        had itself; they count as not asked for.
        """

    def vouch(self, voucher: Voucher) -> bool:
        """Whether ``pool`` is the voucher's and its pins are held: what was copied before is then what was named."""

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

    def save_chain(self, chain: Chain, *, fill: Fill, wait_s: float = 0.25, hints: Hints = NO_HINTS) -> Saved:
        """The same for a chain. What ``fill`` raises ends the save and is raised; what it began is not stored."""

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        """The engine computed n_tokens of a prompt in took_s: what fetching has to beat. What was loaded is not
        counted; what cannot be a measurement, or is too short for one, is left out."""

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        """The conversation that hints named so is over; its blocks need not be kept for its sake."""

    def close(self) -> None: ...
