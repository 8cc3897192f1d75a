"""A server whose every byte comes in time, and whose answer does not: the whole of a transfer has an end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.redis_server import eventually
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.errors import TierTimeout
from tiered.tiers.redis.values import Fetched, ValueClient, ValueToRead, ValueToWrite

N_BYTES = 1_000
WITHIN_S = 0.3
SLACK_S = 2.0
"""The crawl alone would take twenty seconds and more."""

HEADER = bytes(HEADER_BYTES)
VALUE = b"$%d\r\n" % (HEADER_BYTES + N_BYTES) + HEADER + b"v" * N_BYTES + b"\r\n"


@contextmanager
def crawling(path: Path, fast: bytes, slow: bytes) -> Iterator[str]:
    """One connection: what is asked is answered with ``fast`` at once, then with ``slow`` byte by byte."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(10)
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client hangs up
            connection.settimeout(10)
            connection.recv(1 << 16)
            connection.sendall(fast)
            for byte in slow:
                connection.sendall(bytes([byte]))
                if over.wait(0.02):
                    return
            over.wait(10)

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield f"unix://{path}"
    finally:
        over.set()
        server.join(10)
        listener.close()


@pytest.mark.parametrize("n_fast", [0, 3, len(b"$1192\r\n") + 10, len(VALUE) - 20])
def test_a_value_that_crawls_is_given_up_wherever_it_has_got_to(tmp_path: Path, n_fast: int) -> None:
    wanted = [ValueToRead(b"k", memoryview(bytearray(N_BYTES)))]
    with crawling(tmp_path / "s", VALUE[:n_fast], VALUE[n_fast : len(VALUE) - 1]) as url:
        client = ValueClient(RedisSettings(url=url, value_timeout_s=5.0))
        began = time.monotonic()
        with pytest.raises(TierTimeout):
            list(client.get(wanted, within_s=WITHIN_S))
        assert time.monotonic() - began < SLACK_S
        client.close()


def test_what_had_come_when_the_time_was_over_is_had(tmp_path: Path) -> None:
    wanted = [ValueToRead(key, memoryview(bytearray(N_BYTES))) for key in (b"a", b"b")]
    with crawling(tmp_path / "s", VALUE, VALUE) as url:
        client = ValueClient(RedisSettings(url=url, value_timeout_s=5.0))
        received = client.get(wanted, within_s=WITHIN_S)
        assert next(received).fetched is Fetched.HERE
        with pytest.raises(TierTimeout):
            next(received)
        client.close()
    assert bytes(wanted[0].payload) == b"v" * N_BYTES


def test_a_put_whose_answer_crawls_ends_when_its_reservation_does(tmp_path: Path) -> None:
    value = ValueToWrite(b"k", HEADER, memoryview(bytes(N_BYTES)))
    with crawling(tmp_path / "s", b"", b"-" + b"x" * 500) as url:
        client = ValueClient(RedisSettings(url=url, value_timeout_s=5.0))
        began = time.monotonic()
        with pytest.raises(TierTimeout):
            client.put([value], ttl_ms=round(WITHIN_S * 1e3))
        assert time.monotonic() - began < SLACK_S
        client.close()


def test_the_next_transfer_on_a_connection_has_its_own_time(redis_settings: RedisSettings) -> None:
    client = ValueClient(redis_settings)
    key = f"{redis_settings.namespace}k".encode()
    client.put([ValueToWrite(key, HEADER, memoryview(b"w" * N_BYTES))], ttl_ms=60_000)
    wanted = [ValueToRead(key, memoryview(bytearray(N_BYTES)))]
    for within_s in (WITHIN_S, 5.0):
        assert [received.fetched for received in client.get(wanted, within_s=within_s)] == [Fetched.HERE]
        began = time.monotonic()
        eventually(lambda began=began: time.monotonic() - began > WITHIN_S)  # type: ignore[misc]
    client.close()
