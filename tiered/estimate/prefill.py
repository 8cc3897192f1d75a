"""How fast the attached engines compute prompts, learned from what they report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORT_TOKENS_MIN: Final = 64
"""Shorter computations are all overhead and say nothing of the rate."""

_HALF_TOKENS: Final = 4_096
"""Half of the estimate rests on the last so many tokens: short reports count for little."""

_FAR: Final = 4.0
"""No report counts as further off than this many times: one that was held up moves the estimate, and no more."""

_REPORT_TOKENS_MAX: Final = 1 << 30
_TOOK_S_MAX: Final = 3_600.0
_TOKENS_PER_S_MAX: Final = 1e8
"""Whatever lies beyond these was not measured."""


def is_measurement(n_tokens: int, took_s: float) -> bool:
    """Whether a report says anything."""
    if not (REPORT_TOKENS_MIN <= n_tokens <= _REPORT_TOKENS_MAX and 0 < took_s <= _TOOK_S_MAX):
        return False
    return n_tokens <= _TOKENS_PER_S_MAX * took_s


@dataclass(slots=True)
class PrefillRate:
    """Of all engines of the node together, as if they were one."""

    _n_tokens: float = 0.0
    _took_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0 until an engine has reported."""
        return self._n_tokens / self._took_s if self._took_s else 0.0

    def note(self, n_tokens: int, took_s: float) -> None:
        """An engine computed n_tokens in took_s. What cannot be a measurement is left out."""
        if not is_measurement(n_tokens, took_s):
            return
        if self._took_s:
            expected_s = n_tokens / self.tokens_per_s
            took_s = min(max(took_s, expected_s / _FAR), expected_s * _FAR)
        keep = 0.5 ** (n_tokens / _HALF_TOKENS)
        self._n_tokens = keep * self._n_tokens + n_tokens
        self._took_s = keep * self._took_s + took_s
