from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.redis_server import settings_for
from tiered.cluster.connection import command, connect, require_reachable
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import RedisSettings
from tiered.errors import ConfigError, TierTimeout, TierUnavailable


def test_connecting_does_no_io() -> None:
    client = connect(RedisSettings(url="redis://192.0.2.1:1"), timeout_s=60.0)
    client.close()


def test_an_unreachable_server_stops_the_start_with_one_masked_sentence() -> None:
    settings = RedisSettings(url="redis://me:geheim@127.0.0.1:1")
    client = connect(settings, timeout_s=1.0)
    with pytest.raises(ConfigError) as refused:
        require_reachable(client, settings)
    client.close()
    assert refused.value.field == "redis.url"
    assert "redis.url" in str(refused.value)
    assert "***@127.0.0.1:1" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_reachable_server_passes(redis_settings: RedisSettings) -> None:
    client = connect(redis_settings, timeout_s=5.0)
    require_reachable(client, redis_settings)
    client.close()


def test_a_dead_server_is_unavailable_and_a_new_one_is_found_again(
    private_redis_server: EmbeddedServer,
) -> None:
    client = connect(settings_for(private_redis_server), timeout_s=5.0)
    command(client, "SET", "a", 1)
    private_redis_server.kill()
    with pytest.raises(TierUnavailable):
        command(client, "GET", "a")
    with EmbeddedServer.start(private_redis_server.socket_path.parent, maxmemory_bytes=None):
        assert command(client, "GET", "a") is None
    client.close()


def test_a_silent_server_costs_one_timeout_and_no_retry(private_redis_server: EmbeddedServer) -> None:
    client = connect(settings_for(private_redis_server), timeout_s=0.1)
    assert command(client, "PING")
    os.kill(private_redis_server.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(TierTimeout):
            command(client, "PING")
        with pytest.raises(TierTimeout):  # On a new connection.
            command(client, "PING")
        assert 0.2 <= time.monotonic() - started < 0.8
    finally:
        os.kill(private_redis_server.pid, signal.SIGCONT)
    client.close()


def test_a_full_server_is_unavailable(private_redis_server: EmbeddedServer) -> None:
    client = connect(settings_for(private_redis_server), timeout_s=5.0)
    command(client, "CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(TierUnavailable, match="maxmemory"):
        command(client, "SET", "a", 1)
    client.close()
