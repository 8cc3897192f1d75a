"""Which server has which values of one call, and what the servers' answers change of that.

Owns no connection: says what to ask of whom, and is told how that went. Where keys are is
:mod:`tiered.cluster.servers`' to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiered.cluster.servers import Topology
from tiered.errors import TierError, TierUnavailable
from tiered.tiers.redis.resp import SentElsewhere

_SENDINGS_MAX: Final = 3
"""One, and one more for each way in which a slot that is moving sends us on: MOVED, ASK."""


@dataclass(slots=True)
class Parcel:
    """Values of one call that are one server's, by their places in the call. sent_on: those it does not have."""

    url: str
    places: list[int]
    asking: bool
    sent_on: list[tuple[int, SentElsewhere]] = field(default_factory=list)


class Route:
    """Which server has which values of a call, as far as is known, and what the servers' answers change of that."""

    def __init__(self, topology: Topology, keys: Sequence[bytes], timeout_s: float) -> None:
        self._topology = topology
        self._timeout_s = timeout_s
        self._keys = keys
        self._error: TierError | None = None
        self._n_answered = 0
        self._sent_on: list[tuple[int, SentElsewhere]] = []

    def parcels(self) -> Iterator[Parcel]:
        """All values by server; then again those that were sent on, as far as a slot on the move may need."""
        yield from self._by_owner(range(len(self._keys)))
        for _ in range(_SENDINGS_MAX - 1):
            sent_on, self._sent_on = self._sent_on, []
            asked: dict[str, Parcel] = {}
            moved: list[int] = []
            for place, error in sent_on:
                if error.asking:
                    url = self._topology.at(error.address)
                    asked.setdefault(url, Parcel(url, [], asking=True)).places.append(place)
                else:
                    self._topology.moved(error.slot, error.address)
                    moved.append(place)
            yield from asked.values()
            yield from self._by_owner(moved)

    def answered(self, parcel: Parcel) -> None:
        self._n_answered += len(parcel.sent_on) < len(parcel.places)
        self._sent_on += parcel.sent_on

    def failed(self, error: TierError) -> None:
        self._topology.suspect()
        self._error = error

    def end(self) -> None:
        if self._error is not None and not self._n_answered:
            raise self._error

    def _by_owner(self, places: Sequence[int]) -> list[Parcel]:
        parcels: dict[str, Parcel] = {}
        for place in places:
            try:
                url = self._topology.url_of(self._keys[place], within_s=self._timeout_s)
            except TierUnavailable as error:
                self._error = error
                continue
            parcels.setdefault(url, Parcel(url, [], asking=False)).places.append(place)
        return list(parcels.values())
