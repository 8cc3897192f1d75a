"""What all that share a namespace must agree on: into how many partitions its blocks are dealt, and how its keys are
laid out.

Whoever comes first writes it down; whoever comes later with another number is told so before anything is stored,
since each would look for the other's blocks where they are not, or take the other's records for damage.
"""

from __future__ import annotations

from typing import Final

from redis.exceptions import MovedError, NoPermissionError, ReadOnlyError

from tiered.cluster.connection import Client, command
from tiered.cluster.keys import SCHEMA_VERSION, Keys
from tiered.config import RedisSettings, mask_secrets
from tiered.errors import ConfigError, TierError

_PARTITIONS: Final = "partitions"
_SCHEMA: Final = "schema"


def keys_of(settings: RedisSettings) -> Keys:
    return Keys(settings.namespace, partitions=settings.partitions)


def require_agreement(client: Client, settings: RedisSettings) -> Keys:
    """For start-up: the keys of the namespace.

    Errors: ConfigError naming the setting and the fix, if the namespace is dealt or laid out otherwise, or cannot be
    written to.
    """
    keys = keys_of(settings)
    try:
        schema = _agreed(client, keys, _SCHEMA, SCHEMA_VERSION)
        agreed = _agreed(client, keys, _PARTITIONS, settings.partitions)
    except TierError as error:
        raise _unusable(settings, error) from error
    if schema != SCHEMA_VERSION:
        raise ConfigError(
            f"redis.namespace: {settings.namespace!r} was begun by a release whose keys are of version {schema}, "
            f"this one's are of version {SCHEMA_VERSION}; take another redis.namespace, or start the release that "
            "the others run",
            field="redis.namespace",
        )
    if agreed != settings.partitions:
        raise ConfigError(
            f"redis.partitions: {settings.partitions} is not what namespace {settings.namespace!r} was begun with, "
            f"which is {agreed}; set redis.partitions to {agreed}, or take another redis.namespace",
            field="redis.partitions",
        )
    return keys


def _agreed(client: Client, keys: Keys, what: str, ours: int) -> int:
    """What was said first. Errors: TierError."""
    command(client, "HSETNX", keys.shape(), what, ours)
    return int(command(client, "HGET", keys.shape(), what))


def _unusable(settings: RedisSettings, error: TierError) -> ConfigError:
    url = mask_secrets("redis.url", settings.url)
    fix = "make it one that may be written to"
    if isinstance(error.__cause__, MovedError):
        fix = "it belongs to a Redis Cluster: write redis+cluster:// and the addresses of some of its servers"
    elif isinstance(error.__cause__, ReadOnlyError):
        fix = "it is a replica: name its master, or its Sentinels with redis+sentinel://"
    elif isinstance(error.__cause__, NoPermissionError):
        fix = "give its user the rights that docs/operations.md names"
    return ConfigError(f"redis.url: {url} cannot be used ({error}); {fix}", field="redis.url")


def keys_in_use(client: Client, namespace: str) -> Keys:
    """The keys of a namespace as it was begun, for who only looks. Errors: TierError."""
    found: bytes | None = command(client, "HGET", Keys(namespace).shape(), _PARTITIONS)
    return Keys(namespace, partitions=int(found or 1))
