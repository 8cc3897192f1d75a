"""What is known of second copies: where the blocks of tenants that ask for two were found, and when a second that
could not be made is tried again. Knows no block; :mod:`tiered.core.second` looks at those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tiered.types import SecondUse, TenantId

RETRY_S: Final = 2.0
RETRY_S_MAX: Final = 60.0
"""For as long a tenant's seconds wait that were refused, or were gone again: from the first to the most, doubling."""


@dataclass(slots=True)
class _Sum:
    """Of the turn that is under way."""

    second_blocks: int = 0
    second_bytes: int = 0
    single_blocks: int = 0


@dataclass(slots=True)
class _Standing:
    """failures: turns in a row in which seconds that had been made before were missing. stopped: not one of those
    asked for last was taken. has_single: something of it had one place only in this turn."""

    failures: int = 0
    not_before: float = 0.0
    again: bool = False
    stopped: bool = False
    has_single: bool = False


@dataclass(slots=True)
class SecondCopies:
    """Of one pool. A turn is one look at every block of it, in slices. Counters grow for the life of the worker."""

    looked: int = 0
    made: int = 0
    refused: int = 0
    """Seconds that were asked for and were not there afterwards."""
    uses: Mapping[TenantId, SecondUse] = field(default_factory=dict)
    """As the last whole turn found it."""
    cursor: int = 0
    """The slot with which the next slice begins."""
    _sums: dict[TenantId, _Sum] = field(default_factory=dict)
    _standings: dict[TenantId, _Standing] = field(default_factory=dict)

    def may_try(self, tenant: TenantId, now: float) -> bool:
        standing = self._standings.get(tenant)
        return standing is None or (not standing.stopped and now >= standing.not_before)

    def found(
        self, tenants: Iterable[TenantId], *, stored_bytes: int | None, is_single: bool, counts_here: bool
    ) -> None:
        """Where one block of the slice is. stored_bytes: as Redis has it, None for not there. counts_here: of several
        nodes that hold it, this one counts it."""
        for tenant in tenants:
            of = self._sums.setdefault(tenant, _Sum())
            if is_single:
                of.single_blocks += 1
                self._standings.setdefault(tenant, _Standing()).has_single = True
            elif stored_bytes is not None and counts_here:
                of.second_blocks += 1
                of.second_bytes += stored_bytes
        self.looked += 1

    def tried(self, tenant: TenantId, *, n_made: int, n_refused: int, n_again: int, now: float) -> None:
        """Seconds of a tenant were asked for. n_again: of those, how many were thought to be there already."""
        self.made += n_made
        self.refused += n_refused
        if n_again or n_refused:
            standing = self._standings.setdefault(tenant, _Standing())
            standing.again = True
            standing.stopped = n_made == 0
            if standing.stopped:
                standing.not_before = now + _delay(standing.failures + 1)

    def end_turn(self, now: float) -> None:
        """Every block was looked at."""
        self.uses = {
            tenant: SecondUse(of.second_blocks, of.second_bytes, of.single_blocks)
            for tenant, of in sorted(self._sums.items())
        }
        self._sums, self.cursor = {}, 0
        for tenant, standing in list(self._standings.items()):
            if standing.again:
                standing.failures += 1
                standing.not_before = now + _delay(standing.failures)
            elif not standing.has_single and now >= standing.not_before:
                del self._standings[tenant]
            standing.again = standing.stopped = standing.has_single = False


def _delay(failures: int) -> float:
    return min(RETRY_S_MAX, RETRY_S * 2.0 ** min(failures - 1, 16))
