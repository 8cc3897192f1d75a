"""Clients of the shared Redis, and the translation of their errors; the one place that configures redis-py.

Every call through these clients ends within its timeout. Nothing is retried here: a command whose answer was lost
may have run, and whoever sent it knows whether it may run twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tiered.config import RedisSettings, mask_secrets
from tiered.errors import ConfigError, TierError, TierTimeout, TierUnavailable

_CONNECTIONS_MAX: Final = 16
"""A process has a handful of threads; one that finds none free waits at most its timeout."""
_HEALTH_CHECK_S: Final = 30
"""After this much silence a PING precedes the command, so that a path that died quietly costs no command."""


def connect(settings: RedisSettings, *, timeout_s: float) -> redis.Redis:
    """A client for calls of at most timeout_s each; it connects with its first call.

    RESP2, because its handshake has fewer round trips and nothing here needs RESP3's types.

    Errors: ConfigError for a URL with a port or an option that redis-py does not understand.
    """
    try:
        pool = redis.BlockingConnectionPool.from_url(
            settings.url,
            max_connections=_CONNECTIONS_MAX,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(settings.connect_timeout_s, timeout_s),
            health_check_interval=_HEALTH_CHECK_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            protocol=2,
        )
        pool.connection_class(**pool.connection_kwargs)  # no I/O: it only refuses what it does not know
    except (TypeError, ValueError) as error:
        url = mask_secrets("redis.url", settings.url)
        raise ConfigError(
            f"redis.url: {url} is not valid: {error}; write redis://host:port", field="redis.url"
        ) from None
    return redis.Redis.from_pool(pool)


def require_reachable(client: redis.Redis, settings: RedisSettings) -> None:
    """For start-up: ConfigError naming the setting, the server and the fix, unless the server answers."""
    try:
        with translated():
            client.ping()
    except TierError as error:
        url = mask_secrets("redis.url", settings.url)
        raise ConfigError(
            f"redis.url: no usable server at {url} ({error}); start one there or set redis.url to a running one",
            field="redis.url",
        ) from error


def command(client: redis.Redis, *parts: bytes | str | int) -> Any:
    """Send one command, or queue it on a pipeline; the caller gives the reply its type at once.

    Errors: TierError, as with translated(). redis-py's own methods are typed for both of its clients, sync and async,
    and so are of no use to a type checker.
    """
    with translated():
        return client.execute_command(*parts)  # type: ignore[no-untyped-call]


@contextmanager
def translated() -> Iterator[None]:
    """Turn redis-py's errors into TierTimeout and TierUnavailable."""
    try:
        yield
    except redis.TimeoutError as error:
        raise TierTimeout(f"redis: {error}") from error
    except redis.RedisError as error:
        raise TierUnavailable(f"redis: {error}") from error
