from __future__ import annotations

import random
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.redis_server import settings_for
from tests.unit.tiers.redis.fake_server import answering
from tests.unit.tiers.redis.tls_relay import relaying
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.codec.frame import HEADER_BYTES
from tiered.config import RedisSettings
from tiered.errors import TierError, TierUnavailable
from tiered.tiers.redis.values import (
    PART_BYTES,
    Fetched,
    ValueClient,
    ValueToRead,
    ValueToWrite,
    Written,
    part_key,
)

HEADER = bytes(range(HEADER_BYTES))


def read(client: ValueClient, *wanted: tuple[bytes, int]) -> list[tuple[Fetched, bytes, bytes]]:
    buffers = [memoryview(bytearray(nbytes)) for _, nbytes in wanted]
    values = [ValueToRead(key, buffer) for (key, _), buffer in zip(wanted, buffers, strict=True)]
    got = [(received.fetched, bytes(received.header), received.n_bytes) for received in client.get(values)]
    return [(fetched, header, bytes(b[:n])) for (fetched, header, n), b in zip(got, buffers, strict=True)]


def write(client: ValueClient, *values: tuple[bytes, bytes]) -> list[Written]:
    return list(client.put([ValueToWrite(k, HEADER, memoryview(v)) for k, v in values], ttl_ms=60_000))


@pytest.mark.parametrize("nbytes", [1, 100, 64 << 10, 3 << 20, 9 << 20])
def test_values_of_any_size_come_back_bit_equal(redis_settings: RedisSettings, nbytes: int) -> None:
    client = ValueClient(redis_settings)
    values = {f"{redis_settings.namespace}{i}".encode(): random.Random(i).randbytes(nbytes) for i in range(6)}
    assert write(client, *values.items()) == [Written.STORED] * 6
    assert read(client, *((key, nbytes) for key in values)) == [
        (Fetched.HERE, HEADER, value) for value in values.values()
    ]
    client.close()


def test_missing_and_wrong_values_between_good_ones_never_misalign_the_rest(
    redis_settings: RedisSettings,
) -> None:
    client, rng = ValueClient(redis_settings), random.Random(5)
    expected, wanted = [], []
    for i in range(120):
        key = f"{redis_settings.namespace}{i}".encode()
        nbytes, kind = rng.choice((1, 700, 70_000)), rng.choice(("here", "here", "absent", "short", "long"))
        value = rng.randbytes(nbytes)
        if kind != "absent":
            write(client, (key, {"here": value, "short": value[:-1], "long": value + b"$-1\r\n"}[kind]))
        wanted.append((key, nbytes))
        right = {"here": (Fetched.HERE, value), "short": (Fetched.HERE, value[:-1]), "absent": (Fetched.ABSENT, b"")}
        expected.append(right.get(kind, (Fetched.WRONG_LENGTH, b"")))
    assert [(fetched, payload) for fetched, _, payload in read(client, *wanted)] == expected
    client.close()


@pytest.mark.parametrize("loses", ["none", "the middle", "the end", "a byte of the middle", "all but the end"])
def test_a_long_value_lies_in_parts_and_one_with_a_gap_is_never_taken_for_whole(
    redis_settings: RedisSettings, loses: str
) -> None:
    client, key = ValueClient(redis_settings), redis_settings.namespace.encode()
    value = random.Random(1).randbytes(2 * PART_BYTES + 1_000)
    assert write(client, (key, value), (key + b"next", b"abc")) == [Written.STORED] * 2
    control = connect(redis_settings, timeout_s=5.0)
    assert [command(control, "STRLEN", part_key(key, i)) for i in range(3)] == [PART_BYTES] * 2 + [
        1_000 + HEADER_BYTES
    ]
    gone = {"the middle": [1], "the end": [2], "all but the end": [0, 1]}.get(loses, [])
    for index in gone:
        command(control, "DEL", part_key(key, index))
    if loses == "a byte of the middle":
        command(control, "SET", part_key(key, 1), b"x" * (PART_BYTES - 1))
    (fetched, _, payload), following = read(client, (key, len(value)), (key + b"next", 3))
    assert following == (Fetched.HERE, HEADER, b"abc")
    if loses == "none":
        assert (fetched, payload) == (Fetched.HERE, value)
    elif loses == "the end":
        assert (fetched, payload) == (Fetched.HERE, value[: 2 * PART_BYTES - HEADER_BYTES])
    else:
        assert fetched is Fetched.WRONG_LENGTH
    control.close()
    client.close()


def test_a_value_that_is_there_is_kept(redis_settings: RedisSettings) -> None:
    client, key = ValueClient(redis_settings), redis_settings.namespace.encode()
    assert write(client, (key, b"first")) == [Written.STORED]
    assert write(client, (key, b"other")) == [Written.KEPT]
    assert read(client, (key, 5)) == [(Fetched.HERE, HEADER, b"first")]
    client.close()


def test_a_value_that_nobody_commits_ends_by_itself(redis_settings: RedisSettings) -> None:
    client, key = ValueClient(redis_settings), redis_settings.namespace.encode()
    write(client, (key, b"value"))
    control = connect(redis_settings, timeout_s=5.0)
    assert 0 < command(control, "PTTL", key) <= 60_000
    control.close()
    client.close()


def test_a_full_server_refuses_each_value_and_stays_connected(private_redis_server: EmbeddedServer) -> None:
    settings = settings_for(private_redis_server)
    client, control = ValueClient(settings), connect(settings, timeout_s=5.0)
    write(client, (b"there", b"value"))
    command(control, "CONFIG", "SET", "maxmemory", 1)
    before = command(control, "INFO", "stats")["total_connections_received"]
    assert write(client, *((b"%d" % i, b"value") for i in range(9))) == [Written.NO_MEMORY] * 9
    assert read(client, (b"there", 5)) == [(Fetched.HERE, HEADER, b"value")]
    assert command(control, "INFO", "stats")["total_connections_received"] == before
    control.close()
    client.close()


def test_a_connection_of_the_servers_last_life_is_not_used(private_redis_server: EmbeddedServer) -> None:
    client = ValueClient(settings_for(private_redis_server))
    write(client, (b"a", b"value"))
    private_redis_server.kill()
    with EmbeddedServer.start(private_redis_server.socket_path.parent, maxmemory_bytes=None):
        assert read(client, (b"a", 5)) == [(Fetched.ABSENT, b"", b"")]
    client.close()


def test_the_password_and_the_database_of_the_url_are_used(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None) as server:
        control = connect(RedisSettings(url=f"{server.url}?db=3"), timeout_s=5.0)
        command(control, "CONFIG", "SET", "requirepass", "geheim")
        command(control, "ACL", "SETUSER", "me", "on", ">mine", "~*", "+@all")
        path = server.url.removeprefix("unix://")
        for login in (":geheim", "me:mine"):
            client = ValueClient(RedisSettings(url=f"unix://{login}@{path}?db=3"))
            assert write(client, (login.encode(), b"value")) == [Written.STORED]
            assert command(control, "EXISTS", login) == 1
            client.close()
        for login in ("", ":wrong@", "me:wrong@"):
            client = ValueClient(RedisSettings(url=f"unix://{login}{path}?db=3"))
            with pytest.raises(TierUnavailable, match=r"NOAUTH|WRONGPASS"):
                read(client, (b"a", 5))
            client.close()
        control.close()


def test_values_move_over_tcp(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    value = random.Random(0).randbytes(5 << 20)
    with EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None, port=port):
        client = ValueClient(RedisSettings(url=f"redis://127.0.0.1:{port}/1"))
        assert write(client, (b"a", value)) == [Written.STORED]
        assert read(client, (b"a", len(value)), (b"b", 1), (b"a", len(value))) == [
            (Fetched.HERE, HEADER, value),
            (Fetched.ABSENT, b"", b""),
            (Fetched.HERE, HEADER, value),
        ]
        client.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"$19",
        b"$195\r\n" + HEADER + b"ab",
        b"$195\r\n" + HEADER + b"abcXY",
        b"-LOADING Redis is loading\r\n",
        b"-ERR " + b"x" * 5_000,
        b"-ERR torn",
        b"$194\r\nxx",
    ],
)
def test_a_torn_or_wrong_reply_is_an_error_and_never_a_value(tmp_path: Path, reply: bytes) -> None:
    with answering(tmp_path / "s", reply) as url:
        client = ValueClient(RedisSettings(url=url))
        with pytest.raises(TierError):
            read(client, (b"a", 3))
        client.close()


@pytest.mark.parametrize("reply", [b"+NOK\r\n", b"*2\r\n$1\r\n", b"$1950\r\nxx", b"$1\r\na\r\n", b":1\r\n:2\r\n"])
def test_a_reply_of_another_length_is_read_no_further(tmp_path: Path, reply: bytes) -> None:
    with answering(tmp_path / "s", reply, b"$195\r\n" + HEADER + b"abc\r\n") as url:
        client = ValueClient(RedisSettings(url=url))
        first, second = read(client, (b"a", 3), (b"b", 3))
        assert first[0] is Fetched.WRONG_LENGTH
        assert second == (Fetched.HERE, HEADER, b"abc")
        client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_values_move_over_tls(tmp_path: Path) -> None:
    """The embedded server has no TLS, so a few lines of Python speak it on its behalf."""
    certify = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem "
        "-days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(certify.split(), cwd=tmp_path, check=True, capture_output=True)
    value = random.Random(0).randbytes(1 << 20)
    with (
        EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None) as server,
        relaying(server.socket_path, tmp_path / "cert.pem", tmp_path / "key.pem") as port,
    ):
        client = ValueClient(RedisSettings(url=f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'cert.pem'}"))
        assert write(client, *((b"%d" % i, value) for i in range(3))) == [Written.STORED] * 3
        assert read(client, (b"0", len(value)), (b"9", 1)) == [
            (Fetched.HERE, HEADER, value),
            (Fetched.ABSENT, b"", b""),
        ]
        client.close()
        untrusting = ValueClient(RedisSettings(url=f"rediss://localhost:{port}"))
        with pytest.raises(TierUnavailable, match="certificate"):
            read(untrusting, (b"0", 1))
        untrusting.close()
