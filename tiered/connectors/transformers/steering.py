"""Steering: how a caller takes part in an answer while it is made: sampling, streaming, stopping.

Owns what is asked and told at each step; refuses to know who asks, and what for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tiered.types import Source


class Abandoned(Exception):
    """``Steering.wanted`` said no before the prompt was computed; nothing was stored."""


def greedy(logits: torch.Tensor) -> int:
    """The likeliest token. Shapes: logits is (vocab,)."""
    return int(logits.argmax())


@dataclass(frozen=True, slots=True)
class Steering:
    """How a caller takes part in an answer while it is made. All calls come from the thread of ``generate``.

    choose:   the next token, from its logits.
    on_token: told of each token once, and how many of the prompt's were reused from where; False ends the answer.
    wanted:   asked before each chunk of the prefill, where False raises Abandoned, and before an answer is kept.

    With paged storage an answer may have to be computed anew in its middle, without what was reused. It goes on after
    the tokens that were told, which are neither chosen nor told again.
    """

    choose: Callable[[torch.Tensor], int] = greedy
    on_token: Callable[[int, Mapping[Source, int]], bool] = lambda token, hit_tokens: True
    wanted: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Told:
    """The tokens of an answer up to now. What its caller was told of stays, also if the answer is computed anew.

    is_heard: a token may be passed on at once, so none is to be told that may come from blocks whose pins had ended.
    goes_on:  the caller wants more. first_at: when the first token was there, by ``time.perf_counter``.
    """

    steering: Steering
    is_heard: bool
    tokens: list[int] = field(default_factory=list)
    goes_on: bool = True
    first_at: float = 0.0

    def add(self, logits: torch.Tensor, hit_tokens: Mapping[Source, int]) -> None:
        """Choose the next token and tell of it."""
        token = self.steering.choose(logits)
        if not self.tokens:
            self.first_at = time.perf_counter()
        self.tokens.append(token)
        self.goes_on = self.steering.on_token(token, hit_tokens)
