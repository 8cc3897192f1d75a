"""Which books the shared state keeps: the same as before, or others, because a server has lost everything.

The first deal in an empty state notes its time there (deal.lua); whoever remembers another one knows that the state
was lost, however much was written since. What was given back into new books is noted beside it, so that it is given
back once: a policy that is deleted after that stays deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys

_BORN: Final = "born"
_BEFORE: Final = "before"
_BEFORE_MAX: Final = 32
"""Losses remembered; nobody is cut off from Redis for longer than that many."""


@dataclass(frozen=True, slots=True)
class Birth:
    """born: "" until the first deal, and for ever under releases that did not note it. before: the births of the
    books that were given back into these, newest first."""

    born: str = ""
    before: tuple[str, ...] = ()

    def follows(self, known: Birth) -> bool:
        """Whether these are the books once known, or have all that was remembered of them."""
        return known.born in ("", self.born, *self.before)

    def to_note(self) -> str:
        """For the books that these are given back into: what their ``before`` is then."""
        return " ".join((self.born, *self.before)[:_BEFORE_MAX])


class Births:
    """Written by deal.lua and give_back.lua. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def read(self) -> Birth:
        fields: list[bytes | None] = command(self._client, "HMGET", self._keys.shape(), _BORN, _BEFORE)
        born, before = ((field or b"").decode() for field in fields)
        return Birth(born, tuple(before.split()))
