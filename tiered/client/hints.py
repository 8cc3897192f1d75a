"""Hints as they are written into a request, in JSON, by whoever runs an engine's front end.

Owns what each may look like. What to do about one that cannot be is the connector's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tiered.types import NO_HINTS, Continues, Hints

HINT_NAMES: Final = ("continues", "ttl_s", "session", "labels")
"""As in Hints. How long an answer was is for the engine to say."""


def hints_of(given: Mapping[str, Any]) -> Hints:
    """What is named so among ``given``; the rest is not looked at.

    continues: a truth value, or one of the words. ttl_s: a number, or one in a string.
    Errors: ValueError naming the field, and not what stands there: it comes from outside, and is logged.
    """
    named = {name: given[name] for name in HINT_NAMES if given.get(name) is not None}
    if not named:
        return NO_HINTS
    session, labels = named.get("session", ""), named.get("labels", [])
    if not isinstance(session, str):
        raise ValueError(f"session: a {type(session).__name__} is no string")
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise ValueError("labels: it is no list of strings")
    continues, ttl_s = _continues(named.get("continues")), _seconds(named.get("ttl_s"))
    return Hints(continues=continues, ttl_s=ttl_s, session=session, labels=tuple(labels))


def _continues(said: object) -> Continues:
    if said is None:
        return Continues.UNKNOWN
    if isinstance(said, bool):
        return Continues.YES if said else Continues.NO
    if not isinstance(said, str) or said not in tuple(Continues):
        raise ValueError(f"continues: it is none of {', '.join(Continues)}, nor a truth value")
    return Continues(said)


def _seconds(said: object) -> float | None:
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float | str):
        raise ValueError(f"ttl_s: a {type(said).__name__} is no number of seconds")
    try:
        return float(said)
    except (ValueError, OverflowError):
        raise ValueError("ttl_s: it is no number of seconds that can be counted") from None
