"""Which server answers for a key: always the same one, a service's present master, or the owner of the key's slot.

Owns what is known of that, and when it is asked anew; nothing is read or written here but that. Whoever met a server
that is gone, demoted or no longer the owner says so with ``suspect`` or ``moved``, and the next question is answered
from a fresh look. Plain URLs come out, so redis-py and the raw connections for values follow alike.

redis-py's RedisCluster is not used: it asks the servers in its constructor, sleeps 250 ms when the cluster is down,
and looks for a new order of things within a call whose deadline may be 50 ms.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry
from redis.sentinel import Sentinel

from tiered.config import RedisSettings, mask_secrets
from tiered.errors import ConfigError, TierUnavailable
from tiered.redis_url import Address, Kind, RedisUrl, parse_redis_url

_CONNECTIONS_MAX: Final = 16
"""A process has a handful of threads; one that finds none free waits at most its timeout."""
_HEALTH_CHECK_S: Final = 30
"""After this much silence a PING precedes the command, so that a path that died quietly costs no command."""
_LOOK_AGAIN_S: Final = 0.05
"""Between two looks, so that a cluster in trouble is not asked by every call of every thread."""


class Topology(Protocol):
    """For any number of threads and clients, so that what one of them learns all know."""

    def url_of(self, key: bytes, *, within_s: float) -> str:
        """The plain URL of the server that answers for the key; a look at where things are ends within that time.

        Errors: TierUnavailable when nobody says where the key is.
        """

    def suspect(self) -> None:
        """What was answered may be out of date."""

    def moved(self, slot: int, address: Address) -> None:
        """A server named the new owner of a slot."""

    def at(self, address: Address) -> str:
        """The plain URL of a server that another one named."""


def topology_of(settings: RedisSettings) -> Topology:
    """No I/O. Errors: ConfigError for a URL with an option that redis-py does not understand."""
    url = parse_redis_url(settings.url)
    topology: Topology = SingleServer(settings.url)
    try:
        if url.kind is Kind.CLUSTER:
            topology = ClusterTopology(url)
        elif url.kind is Kind.SENTINEL:
            topology = SentinelTopology(url)
        for plain in (url.of_server, url.of_sentinel) if url.seeds else ():
            client_of(plain(url.seeds[0]), connect_timeout_s=1, timeout_s=1)
    except (TypeError, ValueError) as error:
        raise invalid_url(settings, error) from None
    return topology


def invalid_url(settings: RedisSettings, error: Exception) -> ConfigError:
    url = mask_secrets("redis.url", settings.url)
    return ConfigError(f"redis.url: {url} is not valid: {error}; write redis://host:port", field="redis.url")


def client_of(url: str, *, connect_timeout_s: float, timeout_s: float) -> redis.Redis:
    """A client of one server for calls of at most timeout_s each; it connects with its first one and retries nothing.

    RESP2, because its handshake has fewer round trips and nothing here needs RESP3's types.
    Errors: TypeError or ValueError for a URL with a port or an option that redis-py does not understand.
    """
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS_MAX,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(connect_timeout_s, timeout_s),
        health_check_interval=_HEALTH_CHECK_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
    )
    pool.connection_class(**pool.connection_kwargs)  # no I/O: it only refuses what it does not know
    return redis.Redis.from_pool(pool)


class SingleServer:
    def __init__(self, url: str) -> None:
        self._url = url

    def url_of(self, key: bytes, *, within_s: float) -> str:
        return self._url

    def suspect(self) -> None:
        """There is no other one."""

    def moved(self, slot: int, address: Address) -> None:
        """A server that is a Redis Cluster's; the caller's second try fails as the first one did."""

    def at(self, address: Address) -> str:
        return self._url


class _Looked:
    """When a look is due, and that one thread takes it while the others go on with what was known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_due = True
        self._last_look = float("-inf")

    def suspect(self) -> None:
        self._is_due = True

    def begin(self, *, is_known: bool, within_s: float) -> bool:
        """Whether the caller is to look now, and then call end(). With nothing known it waits for its turn."""
        if not self._is_due or (is_known and time.monotonic() < self._last_look + _LOOK_AGAIN_S):
            return False
        if not (self._lock.acquire(blocking=False) if is_known else self._lock.acquire(timeout=within_s)):
            return False
        if not self._is_due:  # another thread has looked meanwhile
            self._lock.release()
            return False
        self._is_due = False
        return True

    def end(self, *, found: bool) -> None:
        self._is_due = self._is_due or not found
        self._last_look = time.monotonic()
        self._lock.release()


class SentinelTopology:
    """The present master of a service, as the Sentinels name it."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._looked = _Looked()
        self._master: Address | None = None
        self._seeds = url.seeds

    def url_of(self, key: bytes, *, within_s: float) -> str:
        if self._looked.begin(is_known=self._master is not None, within_s=within_s):
            master = None
            try:
                master = self._ask(within_s)
                self._master = master or self._master
            finally:
                self._looked.end(found=master is not None)
        if self._master is None:
            raise TierUnavailable(f"redis: no Sentinel names a master of {self._url.service!r} that is up")
        return self._url.of_server(self._master)

    def suspect(self) -> None:
        self._looked.suspect()

    def moved(self, slot: int, address: Address) -> None:
        self._looked.suspect()

    def at(self, address: Address) -> str:
        return self._url.of_server(address)

    def _ask(self, within_s: float) -> Address | None:
        """Ask one Sentinel after the other, first who answered last."""
        deadline = time.monotonic() + within_s
        for seed in self._seeds:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            each_s = max(left_s / 2, 0.001)  # a silent one leaves time for another
            one = client_of(self._url.of_sentinel(seed), connect_timeout_s=each_s, timeout_s=each_s)
            sentinel: Any = Sentinel([])  # type: ignore[no-untyped-call]
            sentinel.sentinels = [one]
            try:
                host, port = sentinel.discover_master(self._url.service)
            except redis.RedisError:  # it does not answer, or knows of no master that is up
                continue
            finally:
                one.close()
            self._seeds = (seed, *(other for other in self._url.seeds if other != seed))
            return Address(host, int(port))
        return None


@dataclass(frozen=True, slots=True)
class _Slots:
    """Ranges of slots in order, and the owner of each."""

    starts: Sequence[int]
    ends: Sequence[int]
    owners: Sequence[Address]

    def owner_of(self, slot: int) -> Address | None:
        i = bisect_right(self.starts, slot) - 1
        return self.owners[i] if i >= 0 and slot <= self.ends[i] else None


class ClusterTopology:
    """The owners of a Redis Cluster's slots, as one of its servers lists them."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._looked = _Looked()
        self._slots = _Slots((), (), ())
        self._moved: dict[int, Address] = {}
        self._last_asked: tuple[Address, ...] = ()

    def url_of(self, key: bytes, *, within_s: float) -> str:
        if self._looked.begin(is_known=bool(self._slots.starts), within_s=within_s):
            slots = None
            try:
                slots = self._ask(within_s)
                if slots is not None:
                    self._slots, self._moved = slots, {}
            finally:
                self._looked.end(found=slots is not None)
        slot = key_slot(key)
        owner = self._moved.get(slot) or self._slots.owner_of(slot)
        if owner is None:
            raise TierUnavailable(f"redis: no server of the cluster is known to own slot {slot}")
        return self._url.of_server(owner)

    def suspect(self) -> None:
        self._looked.suspect()

    def moved(self, slot: int, address: Address) -> None:
        """Believed at once: who sent us there knows better than our list, which is read anew before the next key."""
        self._moved = {**self._moved, slot: address}
        self._looked.suspect()

    def at(self, address: Address) -> str:
        return self._url.of_server(address)

    def _ask(self, within_s: float) -> _Slots | None:
        """Ask one server after the other: those just named as owners, who answered last, the others, the URL's."""
        deadline = time.monotonic() + within_s
        known = (*self._moved.values(), *self._last_asked, *self._slots.owners, *self._url.seeds)
        for address in dict.fromkeys(known):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            each_s = max(left_s / 2, 0.001)  # a silent server leaves time for another one
            client = client_of(self._url.of_server(address), connect_timeout_s=each_s, timeout_s=each_s)
            try:
                rows = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except redis.RedisError:
                continue
            finally:
                client.close()
            if rows:
                self._last_asked = (address,)
                return _slots_of(rows, asked=address)
        return None


def _slots_of(rows: Sequence[Sequence[Any]], *, asked: Address) -> _Slots:
    """CLUSTER SLOTS: start, end, master (host, port, ...), replicas. No host means the one that was asked."""
    found = sorted(
        (start, end, Address((master[0] or b"").decode() or asked.host, master[1])) for start, end, master, *_ in rows
    )
    return _Slots(*map(tuple, zip(*found, strict=True)))
