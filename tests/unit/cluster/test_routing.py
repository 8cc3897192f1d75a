"""The way of a command among several servers, against servers that say what the test wants."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tiered.cluster.connection import command, connect
from tiered.cluster.routing import Command, RoutedClient
from tiered.cluster.servers import ClusterTopology, SentinelTopology
from tiered.config import RedisSettings
from tiered.errors import ConfigError, TierTimeout, TierUnavailable
from tiered.redis_url import Address, parse_redis_url

KEY = b"k"


class Scripted:
    """A server on 127.0.0.1 that answers each request of a connection with the next reply; b"" hangs up."""

    def __init__(self, *replies: bytes, silent: bool = False) -> None:
        self.requests: list[bytes] = []
        self._replies = list(replies)
        self._silent = silent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        with ExitStack() as held:
            while not self._stopped.is_set():
                with suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    held.enter_context(connection)
                    self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(0.05)
        while not self._stopped.is_set():
            try:
                request = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return
            if not request:
                return
            if b"CLIENT" in request:  # redis-py says its name and version when it connects
                connection.sendall(b"+OK\r\n" * request.count(b"SETINFO"))
                continue
            if b"PING" in request and not self._silent:  # which it does at the end of connecting
                connection.sendall(b"+PONG\r\n")
                continue
            self.requests.append(request)
            if self._silent:
                continue
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
            if not reply:
                connection.close()
                return
            connection.sendall(reply)


class Known:
    """A topology that is told where keys are."""

    def __init__(self, **places: Address) -> None:
        self.places = {key.encode(): place for key, place in places.items()}
        self.suspected = 0

    def url_of(self, key: bytes, *, within_s: float) -> str:
        if key not in self.places:
            raise TierUnavailable("nobody knows")
        return self.at(self.places[key])

    def suspect(self) -> None:
        self.suspected += 1

    def moved(self, slot: int, address: Address) -> None:
        for key in self.places:
            if key_slot(key) == slot:
                self.places[key] = address

    def at(self, address: Address) -> str:
        return f"redis://{address}"


@contextmanager
def client(topology: Known, timeout_s: float = 2.0) -> Iterator[RoutedClient]:
    with closing(RoutedClient(topology, connect_timeout_s=timeout_s, timeout_s=timeout_s)) as routed:
        yield routed


def get(routed: RoutedClient, *keys: bytes) -> list[Any]:
    return routed.run([Command(("GET", key), key) for key in keys])


def moved(key: bytes, to: Address) -> bytes:
    return b"-MOVED %d %b\r\n" % (key_slot(key), str(to).encode())


def test_a_moved_key_is_asked_for_where_it_went_and_from_then_on_there() -> None:
    with Scripted(b"$1\r\nv\r\n") as new, Scripted(moved(KEY, new.address)) as old:
        topology = Known(k=old.address)
        with client(topology) as routed:
            assert [get(routed, KEY), get(routed, KEY)] == [[b"v"], [b"v"]]
        assert (len(old.requests), len(new.requests)) == (1, 2)


def test_a_slot_on_the_move_is_asked_at_its_new_place_once_with_asking() -> None:
    with Scripted(b"+OK\r\n$1\r\nv\r\n") as new:
        ask = b"-ASK %d %b\r\n" % (key_slot(KEY), str(new.address).encode())
        with Scripted(ask) as old, client(Known(k=old.address)) as routed:
            assert [get(routed, KEY), get(routed, KEY)] == [[b"v"], [b"v"]]
        assert len(old.requests) == 2, "ASK is for one command only"
        assert all(b"ASKING" in request for request in new.requests)


def test_a_server_that_has_lost_sight_of_the_keys_server_sends_nobody_anywhere() -> None:
    with Scripted(b"-MOVED %d :0\r\n" % key_slot(KEY)) as server:
        topology = Known(k=server.address)
        with client(topology) as routed, pytest.raises(TierUnavailable, match="does not know where"):
            command(routed, "GET", KEY)
        assert (topology.places[KEY], topology.suspected) == (server.address, 1)


def test_servers_that_send_each_other_on_for_ever_are_left_after_three_sendings() -> None:
    with Scripted(b"?") as one, Scripted(b"?") as two:
        one._replies, two._replies = [moved(KEY, two.address)], [moved(KEY, one.address)]
        with client(Known(k=one.address)) as routed:
            (reply,) = get(routed, KEY)
        assert isinstance(reply, redis.exceptions.MovedError)
        assert len(one.requests) + len(two.requests) == 3


def test_a_master_that_was_demoted_is_asked_for_the_next_one() -> None:
    with Scripted(b"-READONLY You can't write against a read only replica.\r\n", b"+OK\r\n") as server:
        topology = Known(k=server.address)
        with client(topology) as routed:
            assert routed.run([Command(("SET", KEY, b"v"), KEY)]) == [True]
        assert topology.suspected == 1


@pytest.mark.parametrize("reply", [b"", b"-TRYAGAIN later\r\n", b"-CLUSTERDOWN down\r\n", b"-LOADING busy\r\n"])
def test_what_may_have_run_or_cannot_run_yet_is_not_sent_again(reply: bytes) -> None:
    with Scripted(reply) as server:
        topology = Known(k=server.address)
        with client(topology) as routed:
            with pytest.raises(TierUnavailable):
                command(routed, "EVALSHA", "sha", 1, KEY, key=KEY)
            assert len(server.requests) == 1
        assert topology.suspected == 1 or b"TRYAGAIN" in reply


def test_one_server_that_fails_costs_the_others_nothing() -> None:
    with Scripted(b"$1\r\na\r\n") as good, Scripted(b"") as bad:
        with client(Known(a=good.address, b=bad.address)) as routed:
            first, second, third = get(routed, b"a", b"b", b"unknown")
        assert first == b"a"
        assert isinstance(second, redis.ConnectionError)
        assert isinstance(third, TierUnavailable)


def test_several_silent_servers_cost_one_timeout_together() -> None:
    with Scripted(silent=True) as one, Scripted(silent=True) as two, Scripted(silent=True) as three:
        with client(Known(a=one.address, b=two.address, c=three.address), timeout_s=0.3) as routed:
            get(routed, b"a")  # connects, which on this machine takes no time worth counting
            started = time.monotonic()
            replies = get(routed, b"a", b"b", b"c")
            assert 0.25 <= time.monotonic() - started < 1.0
        assert all(isinstance(reply, redis.TimeoutError) for reply in replies)


def test_a_reply_that_came_too_late_is_never_taken_for_another_ones() -> None:
    with Scripted(silent=True) as slow, client(Known(k=slow.address), timeout_s=0.1) as routed:
        with pytest.raises(TierTimeout):
            command(routed, "GET", KEY)
        slow._silent, slow._replies = False, [b"$3\r\nnew\r\n"]
        assert command(routed, "GET", KEY) == b"new"


@pytest.mark.parametrize("url", ["redis+cluster://192.0.2.1:1,192.0.2.2:1", "rediss+sentinel://192.0.2.1:1/kv"])
def test_connecting_to_several_servers_does_no_io(url: str) -> None:
    connect(RedisSettings(url=url), timeout_s=60.0).close()


@pytest.mark.parametrize("url", ["redis+cluster://a:1?no_such_option=1", "redis+sentinel://a:1/kv?no_such_option=1"])
def test_an_option_that_nobody_knows_stops_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="no_such_option") as refused:
        connect(RedisSettings(url=url), timeout_s=1.0)
    assert refused.value.field == "redis.url"


def test_a_cluster_of_which_no_seed_answers_is_unavailable_in_time() -> None:
    with Scripted(silent=True) as one, Scripted(silent=True) as two:
        topology = ClusterTopology(parse_redis_url(f"redis+cluster://{one.address},{two.address}"))
        started = time.monotonic()
        with pytest.raises(TierUnavailable):
            topology.url_of(KEY, within_s=0.3)
        assert time.monotonic() - started < 1.0
        assert one.requests
        assert two.requests


def test_sentinels_that_know_no_such_service_are_unavailable() -> None:
    with Scripted(b"*0\r\n") as one, Scripted(b"-ERR unknown command\r\n") as two:
        topology = SentinelTopology(parse_redis_url(f"redis+sentinel://{one.address},{two.address}/kv"))
        with pytest.raises(TierUnavailable, match="'kv'"):
            topology.url_of(KEY, within_s=2.0)
