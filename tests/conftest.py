"""Fixtures that need a Redis: one server for the session, a namespace for each test. And how examples are drawn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings

from tests.support.redis_server import settings_for
from tiered.cluster.connection import connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.config import RedisSettings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # who starts us in the background may have seen to that
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tiered", deadline=None)  # a busy machine is no defect of what is tested
settings.load_profile("tiered")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Shared: a test may not stop, slow down or empty it."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server:
        yield server


@pytest.fixture
def private_redis_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """For tests that do stop, slow down, fill or empty it."""
    with EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None) as server:
        yield server


@pytest.fixture
def redis_settings(redis_server: EmbeddedServer) -> RedisSettings:
    return settings_for(redis_server)


@pytest.fixture
def redis_client(redis_settings: RedisSettings) -> Iterator[redis.Redis]:
    client = connect(redis_settings, timeout_s=redis_settings.control_timeout_s)
    yield client
    client.close()


@pytest.fixture
def redis_keys(redis_settings: RedisSettings) -> Keys:
    return Keys(namespace=redis_settings.namespace)
