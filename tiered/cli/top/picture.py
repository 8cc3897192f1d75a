"""What the screen shows: the last sample, what has changed since the one before, and whether it is still true.

Owns what is remembered from one sample to the next. A value: whatever happens gives a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiered.cli.top.flow import NO_FLOW, Flow, flow_between
from tiered.cli.top.sample import Detail, Sample


@dataclass(frozen=True, slots=True)
class Picture:
    """failure: why the sample is old, in one sentence; empty while the cluster answers. The clock is this process's
    monotonic one."""

    sample: Sample
    now: float
    flow: Flow = NO_FLOW
    failure: str = ""
    detail: Detail | None = None
    detail_failure: str = ""

    @property
    def age_s(self) -> float:
        return max(0.0, self.now - self.sample.at)

    @property
    def since_asked_s(self) -> float:
        return max(0.0, self.now - self.sample.asked_at)


def first_picture(sample: Sample, *, now: float) -> Picture:
    return Picture(sample=sample, now=now)


def seen(picture: Picture, sample: Sample, *, now: float) -> Picture:
    """The cluster has answered. Numbers of the same read as before keep the rates that were computed then.

    What a coordinator shows that cannot read Redis is as old as ours or older, and one that has just started shows
    nothing at all: ours stay.
    """
    if sample.stats.stale and not picture.sample.stats.stale:
        return failed(picture, f"the coordinator at {sample.url} cannot read Redis", now=now)
    flow = None if picture.sample.stats.stale else flow_between(picture.sample, sample)
    return replace(picture, sample=sample, now=now, flow=flow or picture.flow, failure="")


def failed(picture: Picture, failure: str, *, now: float) -> Picture:
    """Nobody has answered: the last numbers stay, with their age."""
    return replace(picture, failure=failure, now=now)


def looked(picture: Picture, detail: Detail | None, failure: str = "") -> Picture:
    """What is known of the open subject; of a failure, the last stays if it was of the same one."""
    return replace(picture, detail=detail, detail_failure=failure)
