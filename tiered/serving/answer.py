"""One answer as it grows: tokens in, events out.

Owns when an answer is over and why, and what of its text may be shown. It knows neither the model nor who listens;
times come in as ``now``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tiered.serving.sampling import Sampling
from tiered.serving.text import Characters, Decode, StopStrings
from tiered.types import NO_HINTS, Hints, Source, TenantId


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Trouble(enum.StrEnum):
    """Why there is no answer, or no more of it."""

    DISPLACED = "displaced"
    """It waited, and made way for a tenant that had less."""
    STOPPING = "stopping"
    """The server's grace was over."""
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Usage:
    """hit_tokens: of the prompt's, those whose KV was reused, by where it was found."""

    prompt_tokens: int
    completion_tokens: int
    hit_tokens: Mapping[Source, int]


@dataclass(frozen=True, slots=True)
class Delta:
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """text: what is shown last, often nothing."""

    text: str
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    trouble: Trouble


Event: TypeAlias = Delta | Finished | Failed


@dataclass(slots=True, eq=False)
class Job:
    """One prompt to be answered. emit is called from the engine's thread; cancelled is set from any other."""

    tenant: TenantId
    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    emit: Callable[[Event], None]
    asked_at: float
    request_id: str = ""
    hints: Hints = NO_HINTS
    cancelled: bool = False


@dataclass(slots=True)
class Answer:
    """Of one job. finish is None until it is over."""

    job: Job
    decode: Decode
    stop_tokens: frozenset[int]
    n_tokens: int = 0
    hit_tokens: Mapping[Source, int] = field(default_factory=dict)
    finish: FinishReason | None = None
    _characters: Characters = field(init=False)
    _stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        self._characters = Characters(self.decode, self.job.prompt)
        self._stops = StopStrings(self.job.stops)

    def add(self, token: int, hit_tokens: Mapping[Source, int]) -> bool:
        """Tell of what the token brings; whether the answer goes on."""
        self.n_tokens += 1
        self.hit_tokens = hit_tokens
        if token in self.stop_tokens:  # it is counted, and it is no text
            return self._end(FinishReason.STOP, "")
        piece = self._stops.add(self._characters.add(token))
        if piece.stopped:
            return self._finish(FinishReason.STOP, piece.text)
        if self.n_tokens == self.job.max_new_tokens:
            return self._end(FinishReason.LENGTH, piece.text)
        if piece.text:
            self.job.emit(Delta(piece.text))
        return True

    def _end(self, reason: FinishReason, text: str) -> bool:
        """With what was held back: it may hold a stop string itself."""
        tail = self._stops.add(self._characters.end())
        if tail.stopped:
            return self._finish(FinishReason.STOP, text + tail.text)
        return self._finish(reason, text + tail.text + self._stops.end())

    def _finish(self, reason: FinishReason, text: str) -> bool:
        self.finish = reason
        self.job.emit(Finished(text, reason, Usage(len(self.job.prompt), self.n_tokens, dict(self.hit_tokens))))
        return False
