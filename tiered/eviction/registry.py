"""Policy name -> factory; an unknown name is a ConfigError that lists the known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiered.errors import ConfigError
from tiered.eviction.lru import LruPolicy
from tiered.eviction.policy import EvictionPolicy

POLICIES: Final[dict[str, Callable[[], EvictionPolicy]]] = {"lru": LruPolicy}


def policy_factory(name: str) -> Callable[[], EvictionPolicy]:
    try:
        return POLICIES[name]
    except KeyError:
        raise ConfigError(
            f"pool.policy: {name!r} is unknown; known policies: {', '.join(sorted(POLICIES))}",
            field="pool.policy",
        ) from None
