"""A lease: all that one request holds, given back together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiered.core.fetch_plan import FetchPlan
from tiered.jobs import Origin
from tiered.types import BlockHash, BlockId, LeaseId, Source, TenantId


@dataclass(slots=True)
class Lease:
    """Pins and unfinished blocks of one request.

    pinned:    READY blocks, each pinned once. Of a match: from the first hash on, gap-free, and sources says where
               each was found. Of a save: what it has committed.
    filling:   blocks this request is writing, in chain order; they end with the connection, never by time, because
               the engine may be in the middle of a copy.
    origins:   for the hashes after the hot ones, where each may be fetched from, the first to be asked first.
    plan:      why just these; None where all that may be had is fetched.
    has_grown: blocks became resident under it; see :func:`tiered.core.match.touch_prefix`.
    is_told:   a policy was told of its request and not yet of its end; output_tokens: of the answer, if known.
    trace:     the span to which its fetches belong, as it is named to others.
    gave:      how many blocks of whom have left so that this request could have the room.
    expires_at: when the pins end by themselves.
    """

    lease_id: LeaseId
    connection: int
    tenant: TenantId
    scope_id: bytes
    hashes: Sequence[BlockHash]
    asked_tokens: int
    expires_at: float
    pinned: list[BlockId] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    filling: list[BlockId] = field(default_factory=list)
    origins: dict[int, tuple[Origin, ...]] = field(default_factory=dict)
    plan: FetchPlan | None = None
    has_grown: bool = False
    counted: bool = False
    is_told: bool = False
    gave: Counter[TenantId] = field(default_factory=Counter)
    output_tokens: int | None = None
    trace: str = ""
