"""Whether the Redis named on the command line can be used, said before anything is started.

It knows the flags; how a client is made and how errors are translated is :mod:`tiered.cluster.connection`'s business.
"""

from __future__ import annotations

from contextlib import closing

from pydantic import ValidationError

from tiered.cluster.connection import connect, ping
from tiered.config import RedisSettings, mask_secrets
from tiered.errors import ConfigError, TierError


def check_redis(*, url: str | None, namespace: str) -> None:
    """Errors: ConfigError when the namespace or the URL is not one, or nothing answers at a given URL."""
    try:
        settings = RedisSettings(namespace=namespace) if url is None else RedisSettings(url=url, namespace=namespace)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = "--namespace" if first["loc"][0] == "namespace" else "--redis-url"
        shown = mask_secrets("url", first["input"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{flag}: {shown!r} is not valid: {message}", field=flag) from None
    if url is None:
        return
    try:
        with closing(connect(settings, timeout_s=settings.control_timeout_s)) as client:
            ping(client)
    except ConfigError as error:
        raise ConfigError(f"--redis-url: {str(error).removeprefix('redis.url: ')}", field="redis_url") from None
    except TierError as error:
        raise ConfigError(
            f"--redis-url: no usable server at {mask_secrets('url', url)} ({error}); start one there, or leave the "
            "flag out to use the embedded one",
            field="redis_url",
        ) from None
