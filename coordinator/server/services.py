"""What the routes may use: the view to read from, the tenants to change, and the token that allows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from coordinator.view.keeper import ViewKeeper
from tiered.cluster.audit import Findings
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants


@dataclass(frozen=True, slots=True)
class Services:
    """changing is held while a change reads, decides and writes; each of its calls of Redis is bounded."""

    keeper: ViewKeeper
    tenants: Tenants
    admin_token: str
    ledger: RedisLedger
    findings: Callable[[], Findings | None] = lambda: None
    """Of the last whole audit of the Redis tier."""
    changing: threading.Lock = field(default_factory=threading.Lock)


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


ServicesDep = Annotated[Services, Depends(services_of)]
