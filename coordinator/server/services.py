"""What the routes may use: the view to read from, the tenants to change, and who is let in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from coordinator.leader.leading import LeaderView
from coordinator.leader.stock import Stock
from coordinator.server.credentials import Credentials
from coordinator.view.bad_blocks import BadBlocks
from coordinator.view.explainer import Explainer
from coordinator.view.follower import MirrorFacts
from coordinator.view.history import History
from coordinator.view.keeper import ViewKeeper
from coordinator.view.mirror import Mirror
from tiered.cluster.audit import Findings
from tiered.cluster.clears import Clears
from tiered.cluster.drains import Drains
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Services:
    """changing is held while a change reads, decides and writes, so that those of this replica need not be decided
    anew; each of its calls of Redis is bounded."""

    keeper: ViewKeeper
    tenants: Tenants
    credentials: Credentials
    ledger: RedisLedger
    drains: Drains
    clears: Clears
    findings: Callable[[], Findings | None] = lambda: None
    """Of the last whole audit of the Redis tier."""
    quiet_findings: Callable[[], Findings | None] = lambda: None
    """Of the last one that nobody wrote during."""
    lost_nodes: Callable[[], int] = lambda: 0
    """Lives that this replica has struck off because their lease had lapsed."""
    explainer: Explainer | None = None
    bad_blocks: BadBlocks = field(default_factory=BadBlocks)
    history: History = field(default_factory=History)
    mirror: Mirror = field(default_factory=Mirror)
    mirror_facts: Callable[[], MirrorFacts | None] = lambda: None
    standing: Callable[[], LeaderView | None] = lambda: None
    """Whether this replica leads, and who does."""
    stock: Callable[[], Stock | None] = lambda: None
    """What was found in the shared state at the start."""
    changing: threading.Lock = field(default_factory=threading.Lock)


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


ServicesDep = Annotated[Services, Depends(services_of)]
