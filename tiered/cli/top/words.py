"""Numbers as a narrow screen shows them: short, aligned, and never more exact than they are."""

from __future__ import annotations

from typing import Final

from tiered.cli.output import human_bytes, human_share

FULL: Final = "█"
EMPTY: Final = "░"
NOTHING: Final = "-"

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def bar(part: float, whole: float, width: int) -> str:
    """Filled in proportion. Anything above nothing shows, and nothing but the whole fills it."""
    if whole <= 0 or width <= 0:
        return EMPTY * max(0, width)
    filled = round(width * min(1.0, max(0.0, part / whole)))
    if part > 0:
        filled = max(1, filled)
    if part < whole:
        filled = min(filled, width - 1)
    return FULL * filled + EMPTY * (width - filled)


def short(count: float) -> str:
    """``1.23M``; whole numbers below ten thousand as they are."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= max(scale, 9_999.5):
            return f"{count / scale:.3g}{unit}" if count < 999.5 * scale else f"{count / scale:.0f}{unit}"
    return f"{count:.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def per_second(rate: float | None) -> str:
    return NOTHING if rate is None else f"{short(rate)}/s"


def bytes_per_second(rate: float | None) -> str:
    return NOTHING if rate is None else f"{human_bytes(round(rate))}/s"


def share(part: float, whole: float) -> str:
    return human_share(round(part), round(whole))


def duration(seconds: float | None) -> str:
    """``3 h 12 min``: the two largest units that apply."""
    if seconds is None:
        return NOTHING
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def brief(sentence: str) -> str:
    """A failure without its advice, which is for who has just typed a command."""
    return sentence.removeprefix("coordinator: ").partition("; ")[0]


def cut(text: str, width: int) -> str:
    """At most so many characters, the end of a longer text said by an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
