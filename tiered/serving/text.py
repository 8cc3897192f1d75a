"""From tokens to text that may be shown: whole characters only, and nothing that might be the start of a stop string.

Owns what is held back and for how long; it knows neither models nor requests. A tokeniser is only asked to decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Decode = Callable[[Sequence[int]], str]

_HALF: Final = "\ufffd"
"""What a decoder shows for bytes that are no character, or not yet."""

_CONTEXT_TOKENS: Final = 6
"""Of the prompt: some tokenisers drop a space at the start of a text, and an answer is none."""

_HALF_TOKENS_MAX: Final = 4
"""A character has at most four bytes, a token at least one: after so many there are other bytes than characters."""

_WINDOW_TOKENS_MAX: Final = 64
"""How far back an answer of such bytes is decoded again with each token."""


class Characters:
    """Decodes an answer as it grows. The pieces together are the decoded answer, less half a character at its end."""

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        context = list(prompt[-_CONTEXT_TOKENS:])
        shown = decode(context)
        if shown.endswith(_HALF):  # a prompt that ends within a character: what completes it is no text of ours
            context, shown = [], ""
        self._window = context
        self._n_shown = len(shown)
        """Characters of the decoded window that were shown, or are the prompt's."""
        self._n_held = 0
        """Tokens of the window that are not shown, or not wholly."""

    def add(self, token: int) -> str:
        """What can be shown now; often the token's own text, sometimes nothing yet."""
        self._window.append(token)
        self._n_held += 1
        text = self._decode(self._window)
        if not text.endswith(_HALF):
            new = text[self._n_shown :]
            self._begin(self._n_held)
            return new
        if self._n_held < _HALF_TOKENS_MAX:
            return ""
        new = _whole(text)[self._n_shown :]
        self._n_shown += len(new)
        if self._n_held >= _WINDOW_TOKENS_MAX:
            self._begin(_HALF_TOKENS_MAX)
        return new

    def end(self) -> str:
        """What was held back, without half a character at the end."""
        return _whole(self._decode(self._window))[self._n_shown :] if self._n_held else ""

    def _begin(self, n_tokens: int) -> None:
        """A window of the last tokens alone, of which all whole characters were shown."""
        self._window = self._window[-n_tokens:]
        text = self._decode(self._window)
        self._n_shown = len(_whole(text))
        self._n_held = n_tokens if text.endswith(_HALF) else 0


def _whole(text: str) -> str:
    """Without what may yet become a character: a decoder shows up to three of them for its first bytes."""
    n_half = len(text) - len(text.rstrip(_HALF))
    return text[: len(text) - min(n_half, _HALF_TOKENS_MAX - 1)]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown, and whether a stop string followed it."""

    text: str
    stopped: bool = False


class StopStrings:
    """Lets text through up to the first stop string, which is not part of the answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, text: str) -> Piece:
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return Piece(shown, stopped=True)
        n_shown = len(self._held) - self._n_doubtful()
        shown, self._held = self._held[:n_shown], self._held[n_shown:]
        return Piece(shown)

    def end(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _n_doubtful(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0
