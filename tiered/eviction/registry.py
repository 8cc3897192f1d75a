"""Policy name -> factory. An unknown name is a ConfigError that lists the known ones.

Others add policies by the entry point group ``tiered.policies``: the entry's name is the policy's, its object a
:data:`~tiered.eviction.policy.PolicyFactory`. They are looked for only when a name is not one of ours, and only the
one that was asked for is imported. Our names cannot be taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from tiered.errors import ConfigError
from tiered.eviction.arc import ArcPolicy
from tiered.eviction.cost import CostPolicy
from tiered.eviction.fifo import FifoPolicy
from tiered.eviction.hazard.policy import HazardPolicy
from tiered.eviction.lfu import LfuPolicy
from tiered.eviction.lirs import LirsPolicy
from tiered.eviction.lru import LruPolicy
from tiered.eviction.policy import EvictionPolicy, PolicyFactory
from tiered.eviction.s3fifo import S3FifoPolicy
from tiered.eviction.sieve import SievePolicy

ENTRY_POINT_GROUP: Final = "tiered.policies"
POLICIES: Final[Mapping[str, PolicyFactory]] = MappingProxyType(
    {
        "arc": ArcPolicy,
        "cost": lambda _: CostPolicy(),
        "fifo": lambda _: FifoPolicy(),
        "hazard": HazardPolicy,
        "lfu": lambda _: LfuPolicy(),
        "lirs": LirsPolicy,
        "lru": lambda _: LruPolicy(),
        "s3fifo": S3FifoPolicy,
        "sieve": lambda _: SievePolicy(),
    }
)

_FIELD: Final = "pool.policy"
_PROTOCOL: Final = ("on_insert", "on_hit", "on_touch", "on_remove", "victims", "__len__")


def policy_factory(name: str) -> PolicyFactory:
    """Errors: ConfigError for a name that nobody offers, that two offer, or whose entry point gives no policy."""
    ours = POLICIES.get(name)
    if ours is not None:
        return ours
    offered = entry_points(group=ENTRY_POINT_GROUP)
    named = [entry for entry in offered if entry.name == name]
    if not named:
        known = ", ".join(sorted({*POLICIES, *offered.names}))
        raise ConfigError(f"{_FIELD}: {name!r} is unknown; known policies: {known}", field=_FIELD)
    if len(named) > 1:
        sources = " and ".join(sorted(entry.value for entry in named))
        raise ConfigError(f"{_FIELD}: {name!r} is offered by {sources}; uninstall all but one", field=_FIELD)
    return _load(named[0])


def _load(entry: EntryPoint) -> PolicyFactory:
    """Import it and build one policy, so that what cannot work stops the start and not the first engine."""
    try:
        factory: PolicyFactory = entry.load()
        policy: EvictionPolicy = factory(1)
    except Exception as error:  # whatever foreign code raises, the name in the settings is what is wrong
        raise ConfigError(
            f"{_FIELD}: {entry.name!r}, entry point {entry.value!r} of {ENTRY_POINT_GROUP}, failed: {error!r}",
            field=_FIELD,
        ) from error
    missing = [method for method in _PROTOCOL if not callable(getattr(policy, method, None))]
    if missing:
        raise ConfigError(
            f"{_FIELD}: {entry.name!r}, entry point {entry.value!r} of {ENTRY_POINT_GROUP}, gives a "
            f"{type(policy).__name__} without {', '.join(missing)}",
            field=_FIELD,
        )
    return factory
