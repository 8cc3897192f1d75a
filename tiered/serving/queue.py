"""Who is answered next: tenants take turns, and within a tenant the first comes first.

Owns the order and the bound on how many wait. Plain synchronous code under its caller's lock; it knows nothing of
what waits but whose it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tiered.types import TenantId


class Waiting(Protocol):
    @property
    def tenant(self) -> TenantId: ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Admission(Generic[W]):
    """Whether all of what came together was taken, and who had to make way for it."""

    admitted: bool
    displaced: tuple[W, ...] = ()


class FairQueue(Generic[W]):
    """Holds at most ``length_max``. One who comes when it is full takes the place of the last of the tenant with the
    most, as long as that tenant then still has no less than the one who came."""

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._lines: OrderedDict[TenantId, deque[W]] = OrderedDict()
        """Of tenants with somebody waiting; whose turn is next comes first."""

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def add(self, together: Sequence[W]) -> Admission[W]:
        """All of them, of one tenant, or none."""
        tenant = together[0].tenant
        n_missing = len(self) + len(together) - self._length_max
        displaced: list[W] = []
        while len(displaced) < n_missing:
            longest = max(self._lines, key=lambda each: len(self._lines[each]), default=tenant)
            if longest == tenant or len(self._lines[longest]) - 1 < self._n_waiting(tenant) + len(together):
                for each in reversed(displaced):  # not enough would go: everybody stays
                    self._line(each.tenant).append(each)
                return Admission(admitted=False)
            displaced.append(self._lines[longest].pop())
        self._line(tenant).extend(together)
        return Admission(admitted=True, displaced=tuple(displaced))

    def take(self) -> W | None:
        """The next of the tenant whose turn it is, which then goes to the back."""
        if not self._lines:
            return None
        tenant, line = next(iter(self._lines.items()))
        taken = line.popleft()
        self._lines.move_to_end(tenant)
        if not line:
            del self._lines[tenant]
        return taken

    def remove(self, waiting: W) -> bool:
        """Somebody does not wait any more. False if it was not here."""
        line = self._lines.get(waiting.tenant)
        if line is None or waiting not in line:
            return False
        line.remove(waiting)
        if not line:
            del self._lines[waiting.tenant]
        return True

    def clear(self) -> list[W]:
        """Everybody who waited."""
        everybody = [each for line in self._lines.values() for each in line]
        self._lines.clear()
        return everybody

    def _n_waiting(self, tenant: TenantId) -> int:
        return len(self._lines.get(tenant, ()))

    def _line(self, tenant: TenantId) -> deque[W]:
        return self._lines.setdefault(tenant, deque())
