"""Job and Completion: the only sentences spoken across the seam between decisions and moving bytes.

A job says what should move, a completion what did. Both carry ids and hashes only; the movers find the bytes
through the pool, and a block named by a job stays theirs until its completion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tiered.types import NO_HASH, BlockHash, BlockId, Source, TenantId, Ticket


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where one life of a node serves blocks."""

    node: str
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Origin:
    """One place a block may be fetched from; peer is None for Redis."""

    source: Source
    peer: PeerAddress | None = None


@dataclass(frozen=True, slots=True)
class FetchJob:
    """Bring blocks of one scope from one origin into slots that are FILLING.

    first_depth: blocks before these in their prefix. before: those of them whose use is to be told of with this job,
    as a prefix is only as good as its beginning; the other jobs of one load have none.
    trace: the span it belongs to, as it is named to others.
    exact_only: values of a lossy codec do not count. Others may read the scope, and none of them may have chosen one.
    """

    ticket: Ticket
    origin: Origin
    scope_id: bytes
    tenant: TenantId
    block_ids: tuple[BlockId, ...]
    hashes: tuple[BlockHash, ...]
    exact_only: bool = False
    first_depth: int = 0
    before: tuple[BlockHash, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class DemoteJob:
    """Copy one LEAVING block out of the pool, then put the copy into Redis.

    parent: hash of the block before it. codec: how its tenant wants it stored; copies: and in how many places.
    """

    ticket: Ticket
    block_id: BlockId
    block_hash: BlockHash
    scope_id: bytes
    tenant: TenantId
    depth: int
    checksum: bytes | None
    parent: BlockHash = NO_HASH
    codec: str = "none"
    copies: int = 1


Job: TypeAlias = FetchJob | DemoteJob


@dataclass(frozen=True, slots=True)
class FetchDone:
    """Per block its verified checksum, or None where the origin had no good copy.

    took_s: from when a mover took the job; 0 for a job that no mover ran.
    """

    ticket: Ticket
    checksums: tuple[bytes | None, ...]
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The pool's bytes of a LEAVING block are no longer needed (copied), or could not be copied."""

    ticket: Ticket
    copied: bool


Completion: TypeAlias = FetchDone | CopyDone
