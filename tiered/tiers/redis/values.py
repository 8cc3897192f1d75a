"""Bulk values over a few raw connections: a sliding window of GETs and SETs, straight from and into buffers.

Owns what is in flight and how a long value is split; does not know what a value means. A value longer
than PART_BYTES lies in several strings, under its key and then ``key:1``, ``key:2``, ...

Why not redis-py: measured on 2 MiB values, a raw socket that receives into place moves 2.5 to 4 times as much, and
more than 8 MiB of replies in flight halves what some servers send.
"""

from __future__ import annotations

import enum
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tiered.cluster.servers import Topology, topology_of
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.errors import TierTimeout, TierUnavailable
from tiered.tiers.redis.connections import RawConnections
from tiered.tiers.redis.resp import RawConnection, SentElsewhere, ServerFullError, WrongLength
from tiered.tiers.redis.route import Parcel, Route

WINDOW_VALUES: Final = 8
WINDOW_BYTES: Final = 8 << 20
"""What one connection has in flight at most. GETs are sent again only once half of it is through, several in one
system call: a send wakes the server, which costs more than all else that a small value does here."""

PART_BYTES: Final = 4 << 20
"""As lua/books.lua has it: the longest string, within which servers are at their best."""

_NO_HEADER: Final = memoryview(bytearray())


@dataclass(frozen=True, slots=True)
class ValueToRead:
    """payload.nbytes says how long the value may be, its header of HEADER_BYTES not counted."""

    key: bytes
    payload: memoryview


@dataclass(frozen=True, slots=True)
class ValueToWrite:
    key: bytes
    header: bytes
    payload: memoryview


class Fetched(enum.Enum):
    HERE = "here"
    ABSENT = "absent"
    WRONG_LENGTH = "wrong_length"


@dataclass(frozen=True, slots=True)
class Received:
    """What came of the wanted value at place ``index``: its header, valid until the next step, and how many bytes of
    payload."""

    fetched: Fetched
    header: memoryview = _NO_HEADER
    n_bytes: int = 0
    index: int = 0


class Written(enum.Enum):
    STORED = "stored"
    KEPT = "kept"
    """A value was there already; it was left as it is."""
    NO_MEMORY = "no_memory"
    UNKNOWN = "unknown"
    """Its server did not answer, while others did."""


class ValueClient:
    """Reads and writes values from any number of threads; connects with the first call.

    Of several servers each gets its own values, one server after the other.
    """

    def __init__(self, settings: RedisSettings, topology: Topology | None = None) -> None:
        self._connections = RawConnections(settings)
        self._topology = topology or topology_of(settings)
        self._timeout_s = settings.value_timeout_s

    def get(self, wanted: Sequence[ValueToRead], *, within_s: float = math.inf) -> Iterator[Received]:
        """For each wanted value what came: of one server in order, and nothing for those of a server that failed.

        The caller works on one value while the next ones arrive. A value of a wrong length costs a new connection;
        its buffer may hold anything then. within_s: of all of it, the caller's work on the values included; what has
        not come by then is unknown.
        Errors: TierUnavailable, TierTimeout when no server gave all that was asked of it; the values not yet answered
        are then unknown.
        """
        header = memoryview(bytearray(HEADER_BYTES))
        ends_at = time.monotonic() + within_s
        route = Route(self._topology, [value.key for value in wanted], self._timeout_s)
        for parcel in route.parcels():
            try:
                yield from self._get_from(parcel, wanted, header, ends_at)
            except (TierUnavailable, TierTimeout) as error:
                route.failed(error)
            else:
                route.answered(parcel)
        route.end()

    def put(self, values: Sequence[ValueToWrite], *, ttl_ms: int) -> list[Written]:
        """For each value, in order, what became of it. Errors: as get(), and all of it within ``ttl_ms``."""
        ends_at = time.monotonic() + ttl_ms / 1e3
        outcomes = [Written.UNKNOWN] * len(values)
        route = Route(self._topology, [value.key for value in values], self._timeout_s)
        for parcel in route.parcels():
            try:
                with self._connections.lent(parcel.url, ends_at=ends_at) as connection:
                    _window_of_sets(connection, parcel, values, outcomes, ttl_ms=ttl_ms)
            except (TierUnavailable, TierTimeout) as error:
                route.failed(error)
            else:
                route.answered(parcel)
        route.end()
        return outcomes

    def close(self) -> None:
        self._connections.close()

    def _get_from(
        self, parcel: Parcel, wanted: Sequence[ValueToRead], header: memoryview, ends_at: float
    ) -> Iterator[Received]:
        done = 0
        while done < len(parcel.places):
            with self._connections.lent(parcel.url, ends_at=ends_at) as connection:
                try:
                    for received in _window_of_gets(connection, parcel, done, wanted, header):
                        done += 1
                        if received is not None:
                            yield received
                except WrongLength:
                    done += 1
                    yield Received(Fetched.WRONG_LENGTH, index=parcel.places[done - 1])


@dataclass(frozen=True, slots=True)
class _Part:
    """One string of a value: the first bears the header. body: the slice of the payload from ``offset`` on in it."""

    key: bytes
    header: bytes
    body: memoryview
    offset: int
    is_last: bool


def part_key(key: bytes, index: int) -> bytes:
    """As lua/books.lua names them."""
    return key if index == 0 else b"%b:%d" % (key, index)


def _split(key: bytes, header: bytes, payload: memoryview) -> list[_Part]:
    first = PART_BYTES - HEADER_BYTES
    if payload.nbytes <= first:
        return [_Part(key, header, payload, offset=0, is_last=True)]
    cuts = [0, *range(first, payload.nbytes, PART_BYTES), payload.nbytes]
    return [
        _Part(
            key=part_key(key, index),
            header=header if index == 0 else b"",
            body=payload[start:end],
            offset=start,
            is_last=index == len(cuts) - 2,
        )
        for index, (start, end) in enumerate(pairwise(cuts))
    ]


def _window_of_gets(
    connection: RawConnection, parcel: Parcel, done: int, wanted: Sequence[ValueToRead], header: memoryview
) -> Iterator[Received | None]:
    """Each value in order, from the parcel's ``done``-th on; the payloads land in place. None for one sent on.

    Of a value that is shorter than its buffer, as a codec may make it, the last parts are not there.
    """
    places = parcel.places[done:]
    parts = [(place, part) for place in places for part in _split(wanted[place].key, b"", wanted[place].payload)]
    sent = 0
    in_flight: deque[int] = deque()
    found, n_bytes, has_gap = False, 0, False
    elsewhere: SentElsewhere | None = None
    for place, part in parts:
        if sent < len(parts) and _is_half_empty(in_flight):
            keys = []
            while sent < len(parts) and _fits(in_flight, parts[sent][1].body.nbytes):
                keys.append(parts[sent][1].key)
                in_flight.append(parts[sent][1].body.nbytes)
                sent += 1
            connection.send_gets(keys, asking=parcel.asking)
        is_first = part.offset == 0
        if is_first:
            found, n_bytes, has_gap, elsewhere = False, 0, False, None
        try:
            n = connection.read_value(header if is_first else _NO_HEADER, part.body, asking=parcel.asking)
        except SentElsewhere as error:
            n, elsewhere = None, error
        in_flight.popleft()
        if n is not None:
            found = found or is_first
            has_gap = has_gap or n_bytes != part.offset
            n_bytes += n
        if not part.is_last:
            continue
        if elsewhere is not None:
            parcel.sent_on.append((place, elsewhere))
            yield None
        elif has_gap:
            yield Received(Fetched.WRONG_LENGTH, index=place)
        elif found:
            yield Received(Fetched.HERE, header, n_bytes, place)
        else:
            yield Received(Fetched.ABSENT, index=place)


def _window_of_sets(
    connection: RawConnection,
    parcel: Parcel,
    values: Sequence[ValueToWrite],
    outcomes: list[Written],
    *,
    ttl_ms: int,
) -> None:
    parts = [
        (place, part)
        for place in parcel.places
        for part in _split(values[place].key, values[place].header, values[place].payload)
    ]
    sent = 0
    in_flight: deque[int] = deque()
    answer = Written.STORED
    elsewhere: SentElsewhere | None = None
    for place, part in parts:
        while sent < len(parts) and _fits(in_flight, parts[sent][1].body.nbytes):
            queued = parts[sent][1]
            connection.send_set(queued.key, queued.header, queued.body, ttl_ms=ttl_ms, asking=parcel.asking)
            in_flight.append(queued.body.nbytes)
            sent += 1
        try:
            if not connection.read_stored(asking=parcel.asking) and answer is Written.STORED:
                answer = Written.KEPT
        except ServerFullError:
            answer = Written.NO_MEMORY
        except SentElsewhere as error:
            elsewhere = error
        in_flight.popleft()
        if part.is_last:
            if elsewhere is None:
                outcomes[place] = answer
            else:
                parcel.sent_on.append((place, elsewhere))
            answer, elsewhere = Written.STORED, None


def _fits(in_flight: deque[int], nbytes: int) -> bool:
    """Whether one more value may be in flight; one alone always may."""
    return not in_flight or (len(in_flight) < WINDOW_VALUES and sum(in_flight) + nbytes <= WINDOW_BYTES)


def _is_half_empty(in_flight: deque[int]) -> bool:
    return 2 * len(in_flight) <= WINDOW_VALUES and 2 * sum(in_flight) <= WINDOW_BYTES
