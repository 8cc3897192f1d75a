"""Pins: the right to read a match's blocks, held for a while and given back once.

Owns when they end; refuses to know who reads under them.
"""

from __future__ import annotations

import time

from tiered.client.port import CacheClient, Match


class PinsEnded(Exception):
    """The pins had ended before they were given back: what was read under them may be anybody's bytes."""


class Pins:
    """hold_s: from now on, how long they should be held at most."""

    def __init__(self, client: CacheClient, match: Match, *, hold_s: float) -> None:
        self._client = client
        self._match = match
        self._due_at = time.monotonic() + hold_s
        self._held = match.lease is not None

    @property
    def due(self) -> bool:
        """Held for as long as they should be."""
        return self._held and time.monotonic() >= self._due_at

    def vouch(self) -> None:
        """What was read up to now may be passed on. Nothing to do once they are given back. Errors: PinsEnded."""
        voucher = self._match.voucher
        if self._held and (voucher is None or not self._client.vouch(voucher)):
            raise PinsEnded

    def give_back(self, *, used_tokens: int) -> None:
        """Nothing to do when that was done before. Errors: PinsEnded."""
        if self._held:
            self._held = False
            if not self._client.release(self._match, used_tokens=used_tokens):
                raise PinsEnded

    def abandon(self) -> None:
        """Give back what is still held, after a failure: nothing that was read is used."""
        if self._held:
            self._held = False
            self._client.release(self._match, used_tokens=0)
