"""The bodies of what happened, and of who gave no answer; shared by the blocks and the evictions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Depends, Request
from pydantic import BaseModel, Field

from coordinator.server.services import services_of
from coordinator.view.explainer import Event, Explainer, Silent
from coordinator.view.sentences import sentence

_AT_MAX: Final = 253_402_300_799.0
"""The last second that a date can say: no clock is believed blindly."""


class EventBody(BaseModel):
    at: datetime = Field(description="By the clock of the machine that tells it.")
    where: str = Field(description="The node that remembers it, or redis.")
    what: str = Field(description="One word, such as stored, evicted or refused.")
    block: str | None = Field(description="Hash of the block, of several the first; null where it had none yet.")
    tenant: str
    tier: str
    blocks: int = Field(description="Neighbours in one prefix to which it happened at once.")
    sentence: str
    detail: dict[str, int | float | str] = Field(
        description="The numbers at that moment. Bytes; a limit or capacity of -1 is none."
    )


class SilentBody(BaseModel):
    """A source that could have known more and gave no answer."""

    who: str
    reason: str


def event_bodies(events: Iterable[Event]) -> list[EventBody]:
    return [
        EventBody(
            at=datetime.fromtimestamp(min(max(event.at, 0.0), _AT_MAX), UTC),
            where=event.where,
            what=event.happening.what,
            block=event.happening.block_hash.hex() or None,
            tenant=event.happening.tenant,
            tier=event.happening.tier,
            blocks=event.happening.n_blocks,
            sentence=sentence(event.happening),
            detail=event.happening.detail,
        )
        for event in events
    ]


def silent_bodies(silent: Iterable[Silent]) -> list[SilentBody]:
    return [SilentBody(who=each.who, reason=each.reason) for each in silent]


def explainer_of(request: Request) -> Explainer:
    explainer = services_of(request).explainer
    if explainer is None:
        raise RuntimeError("this coordinator was built without an explainer")
    return explainer


ExplainerDep = Annotated[Explainer, Depends(explainer_of)]
