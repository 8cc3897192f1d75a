"""Clients of the shared Redis, and the translation of their errors: how everyone else here speaks to it.

Every call through these clients is bounded by its timeout. Nothing is retried here: a command whose answer was lost
may have run, and whoever sent it knows whether it may run twice. Only what a server refused to run, because the key
is another's, goes to that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis

from tiered.cluster.routing import Command, Part, RoutedClient
from tiered.cluster.servers import SingleServer, Topology, client_of, invalid_url, topology_of
from tiered.config import RedisSettings, mask_secrets
from tiered.errors import ConfigError, TierError, TierTimeout, TierUnavailable

Client: TypeAlias = redis.Redis | RoutedClient


def connect(settings: RedisSettings, *, timeout_s: float, topology: Topology | None = None) -> Client:
    """A client for calls of at most timeout_s each; it connects with its first call.

    topology: what several clients of these settings are to know together.
    Errors: ConfigError for a URL with a port or an option that redis-py does not understand.
    """
    topology = topology or topology_of(settings)
    connect_timeout_s = settings.connect_timeout_s
    if not isinstance(topology, SingleServer):
        return RoutedClient(topology, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s)
    try:
        return client_of(settings.url, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s)
    except (TypeError, ValueError) as error:
        raise invalid_url(settings, error) from None


def require_reachable(client: Client, settings: RedisSettings) -> None:
    """For start-up: ConfigError naming the setting, the server and the fix, unless the server answers."""
    try:
        ping(client)
    except TierError as error:
        url = mask_secrets("redis.url", settings.url)
        raise ConfigError(
            f"redis.url: no usable server at {url} ({error}); start one there or set redis.url to a running one",
            field="redis.url",
        ) from error


def ping(client: Client) -> None:
    """Errors: TierError unless a server, of several the one of the first slot, answers."""
    command(client, "PING", key=b"{06S}")


def command(client: Client, *parts: Part, key: bytes | None = None) -> Any:
    """Send one command; the caller gives the reply its type at once.

    key: which server is meant, where the command's second word is not that key.
    Errors: TierError, as with translated(). redis-py's own methods are typed for both of its clients, sync and async,
    and so are of no use to a type checker.
    """
    with translated():
        if isinstance(client, RoutedClient):
            reply = client.run([Command(parts, _key(parts) if key is None else key)])[0]
            if isinstance(reply, Exception):
                raise reply
            return reply
        return client.execute_command(*parts)  # type: ignore[no-untyped-call]


def pipelined(client: Client, commands: Sequence[Command]) -> list[Any]:
    """Send all at once; in order, each one's reply or the exception that took its place.

    One round trip to each server concerned. Errors: TierError when the only server does not answer.
    """
    if isinstance(client, RoutedClient):
        return client.run(commands)
    with translated(), client.pipeline(transaction=False) as pipeline:
        for one in commands:
            pipeline.execute_command(*one.parts)  # type: ignore[no-untyped-call]
        return list(pipeline.execute(raise_on_error=False))


def answered(replies: Sequence[Any]) -> list[Any]:
    """The replies, if all are. Errors: TierError for the first that is none."""
    for reply in replies:
        if isinstance(reply, Exception):
            with translated():
                raise reply
    return list(replies)


def _key(parts: Sequence[Part]) -> bytes:
    key = parts[1]
    return key if isinstance(key, bytes) else str(key).encode()


@contextmanager
def translated() -> Iterator[None]:
    """Turn redis-py's errors into TierTimeout and TierUnavailable."""
    try:
        yield
    except redis.TimeoutError as error:
        raise TierTimeout(f"redis: {error}") from error
    except redis.RedisError as error:
        raise TierUnavailable(f"redis: {error}") from error
