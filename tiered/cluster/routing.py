"""A client for more than one server: each command goes to the server that answers for its key.

Owns the way of a command: to whom, what a server's "not here" means, and that all servers of one call work at the
same time. A command is sent again only when the server said that it did not run it. Where keys are is
:mod:`tiered.cluster.servers`' to know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import redis
from redis.exceptions import AskError, ClusterError, MovedError, ReadOnlyError

from tiered.cluster.servers import Topology, client_of
from tiered.errors import TierError
from tiered.redis_url import Address

Part: TypeAlias = bytes | str | int

_SENDINGS_MAX: Final = 3
"""One, and one more for each way in which a slot that is moving sends us on: MOVED, ASK."""


@dataclass(frozen=True, slots=True)
class Command:
    """key decides which server runs it; it need not be among the parts."""

    parts: Sequence[Part]
    key: bytes


@dataclass(slots=True)
class _Parcel:
    """Commands of one call that go to one server."""

    url: str
    places: list[int]
    asking: bool


class RoutedClient:
    """Commands in, replies out, for any number of threads; connects with its first call.

    A call ends within twice its timeout however many servers it concerns: once to learn anew where things are, if
    that is due, and once for the replies.
    """

    def __init__(self, topology: Topology, *, connect_timeout_s: float, timeout_s: float) -> None:
        self._topology = topology
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._servers: dict[str, redis.Redis] = {}
        self._troubled: dict[str, bool] = {}  # by URL: whether its last call failed

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """The reply to each, or the exception in its place: redis-py's errors, or TierError."""
        replies: list[Any] = [None] * len(commands)
        deadline = time.monotonic() + 2 * self._timeout_s
        parcels = self._parcels(commands, range(len(commands)), replies)
        for _ in range(_SENDINGS_MAX):
            self._exchange(parcels, commands, replies)
            parcels = self._to_send_again(parcels, commands, replies)
            if not parcels or time.monotonic() > deadline:
                break
        return replies

    def close(self) -> None:
        with self._lock:
            servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()

    def _parcels(self, commands: Sequence[Command], places: Sequence[int], replies: list[Any]) -> list[_Parcel]:
        parcels: dict[str, _Parcel] = {}
        urls: dict[bytes, str] = {}
        for place in places:
            key = commands[place].key
            try:
                url = urls.get(key) or urls.setdefault(key, self._topology.url_of(key, within_s=self._timeout_s))
            except TierError as error:
                replies[place] = error
                continue
            parcels.setdefault(url, _Parcel(url, [], asking=False)).places.append(place)
        return list(parcels.values())

    def _to_send_again(
        self, parcels: Sequence[_Parcel], commands: Sequence[Command], replies: list[Any]
    ) -> list[_Parcel]:
        """Those that a server did not run because the key is elsewhere. Notes what that says of where keys are."""
        asked: dict[str, _Parcel] = {}
        rest: list[int] = []
        for parcel in parcels:
            for place in parcel.places:
                reply = replies[place]
                if isinstance(reply, AskError) and not reply.port:
                    self._topology.suspect()
                    replies[place] = ClusterError("the server that was asked does not know where that key is now")
                elif isinstance(reply, MovedError):  # which redis-py derives from AskError
                    self._topology.moved(reply.slot_id, _named(reply, parcel.url))
                    rest.append(place)
                elif isinstance(reply, AskError):
                    url = self._topology.at(_named(reply, parcel.url))
                    asked.setdefault(url, _Parcel(url, [], asking=True)).places.append(place)
                elif isinstance(reply, ReadOnlyError):  # a master that was demoted: another one answers now
                    self._topology.suspect()
                    rest.append(place)
                elif isinstance(reply, (redis.ConnectionError, redis.TimeoutError, ClusterError)):
                    self._topology.suspect()
        return [*asked.values(), *self._parcels(commands, rest, replies)]

    def _exchange(self, parcels: Sequence[_Parcel], commands: Sequence[Command], replies: list[Any]) -> None:
        """Send to all servers, then read from all: one round trip, however many there are.

        Connecting may take a silent server's whole time, so those whose last call failed come last.
        """
        deadline = time.monotonic() + self._timeout_s
        parcels = sorted(parcels, key=lambda parcel: self._troubled.get(parcel.url, False))
        under_way: list[tuple[_Parcel, redis.Redis, Any]] = []  # redis-py does not type its connections
        try:
            for parcel in parcels:
                server = self._server(parcel.url)
                if time.monotonic() > deadline:
                    _fill(replies, parcel.places, redis.TimeoutError("Timeout while another server was asked"))
                    continue
                try:
                    connection: Any = server.connection_pool.get_connection()
                except redis.RedisError as error:
                    _fill(replies, parcel.places, error)
                    continue
                under_way.append((parcel, server, connection))
                try:
                    connection.send_packed_command(connection.pack_commands(_lines(parcel, commands)))
                except redis.RedisError as error:
                    connection.disconnect()
                    _fill(replies, parcel.places, error)
                    under_way[-1] = (_Parcel(parcel.url, [], asking=False), server, connection)  # nothing to read
            for parcel, server, connection in under_way:
                _read(server, connection, parcel, commands, replies, deadline)
        except BaseException:
            for _, _, connection in under_way:  # a reply that nobody will read must not be the next one's
                connection.disconnect()
            raise
        finally:
            for _, server, connection in under_way:
                server.connection_pool.release(connection)
        for parcel in parcels:
            lost = any(
                isinstance(replies[place], (redis.ConnectionError, redis.TimeoutError)) for place in parcel.places
            )
            self._troubled[parcel.url] = lost

    def _server(self, url: str) -> redis.Redis:
        with self._lock:
            server = self._servers.get(url)
            if server is None:
                server = client_of(url, connect_timeout_s=self._connect_timeout_s, timeout_s=self._timeout_s)
                self._servers[url] = server
            return server


def _lines(parcel: _Parcel, commands: Sequence[Command]) -> list[Sequence[Part]]:
    lines: list[Sequence[Part]] = []
    for place in parcel.places:
        if parcel.asking:
            lines.append(("ASKING",))
        lines.append(commands[place].parts)
    return lines


def _read(
    server: redis.Redis,
    connection: Any,
    parcel: _Parcel,
    commands: Sequence[Command],
    replies: list[Any],
    deadline: float,
) -> None:
    unread = list(parcel.places)
    try:
        if unread and not connection.can_read(timeout=max(0.0, deadline - time.monotonic())):
            raise redis.TimeoutError("Timeout reading from socket")
        for place in parcel.places:
            if parcel.asking:
                with suppress(redis.ResponseError):  # the command's own reply says what is wrong
                    server.parse_response(connection, "ASKING")  # type: ignore[no-untyped-call]
            try:
                replies[place] = server.parse_response(connection, str(commands[place].parts[0]))  # type: ignore[no-untyped-call]
            except redis.ResponseError as error:
                replies[place] = error
            unread.remove(place)
    except redis.RedisError as error:
        connection.disconnect()
        _fill(replies, unread, error)


def _fill(replies: list[Any], places: Sequence[int], error: Exception) -> None:
    for place in places:
        replies[place] = error


def _named(error: AskError, url: str) -> Address:
    """Where the server sent us; without a host, it means another port of its own."""
    host = error.host or url.rpartition("@")[2].rpartition("://")[2].rpartition(":")[0].strip("[]")
    return Address(host, error.port)
