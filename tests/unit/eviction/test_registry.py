"""Names of policies: ours, those of others by entry point, and what is said when a name or an entry is no good."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tiered.errors import ConfigError
from tiered.eviction import registry
from tiered.eviction.fifo import FifoPolicy
from tiered.eviction.lru import LruPolicy
from tiered.eviction.policy import EvictionPolicy
from tiered.eviction.registry import ENTRY_POINT_GROUP, POLICIES, policy_factory

Install = Callable[..., None]


def newest(n_blocks: int) -> EvictionPolicy:
    assert n_blocks > 0
    return FifoPolicy()


def takes_nothing() -> EvictionPolicy:
    return FifoPolicy()


class HalfPolicy:
    def on_insert(self) -> None: ...

    def victims(self) -> None: ...


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Entry points as if distributions had brought them, all of one module."""
    module = types.ModuleType("someones_policies")
    module.newest = newest  # type: ignore[attr-defined]
    module.takes_nothing = takes_nothing  # type: ignore[attr-defined]
    module.half = lambda _: HalfPolicy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def install(**values: str) -> None:
        found = EntryPoints(
            EntryPoint(name=name.rstrip("_"), value=value, group=ENTRY_POINT_GROUP) for name, value in values.items()
        )
        monkeypatch.setattr(registry, "entry_points", lambda *, group: found.select(group=group))

    return install


def test_every_name_of_the_design_is_there() -> None:
    assert {"lru", "fifo", "lfu", "sieve", "s3fifo", "arc", "lirs", "cost"} <= set(POLICIES)


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"pool\.policy: 'lur' is unknown; known policies: arc, .*lru, .*sieve"
    ) as no:
        policy_factory("lur")
    assert no.value.field == "pool.policy"


def test_a_policy_of_others_is_found_by_its_name(install: Install) -> None:
    install(newest="someones_policies:newest")
    assert policy_factory("newest") is newest


def test_what_others_offer_is_listed_without_being_imported(install: Install) -> None:
    install(newest="module_that_is_not_there:newest")
    with pytest.raises(ConfigError, match=r"known policies: .*lru, newest, s3fifo"):
        policy_factory("lur")


def test_our_names_cannot_be_taken_over(install: Install) -> None:
    install(lru="someones_policies:newest")
    assert isinstance(policy_factory("lru")(1), LruPolicy)


def test_a_broken_entry_point_stops_only_those_who_ask_for_it(install: Install) -> None:
    install(newest="someones_policies:newest", broken="module_that_is_not_there:policy")
    assert policy_factory("newest") is newest
    with pytest.raises(ConfigError, match=r"'broken', entry point 'module_that_is_not_there:policy' .* failed") as no:
        policy_factory("broken")
    assert no.value.field == "pool.policy"
    assert isinstance(no.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("value", ["someones_policies:nothing", "someones_policies:takes_nothing"])
def test_an_entry_point_that_gives_no_factory_is_named(install: Install, value: str) -> None:
    install(other=value)
    with pytest.raises(ConfigError, match=rf"'other', entry point '{value}' of tiered\.policies, failed"):
        policy_factory("other")


def test_an_entry_point_that_gives_half_a_policy_is_told_what_is_missing(install: Install) -> None:
    install(other="someones_policies:half")
    with pytest.raises(ConfigError, match=r"HalfPolicy without on_hit, on_touch, on_remove, __len__"):
        policy_factory("other")


def test_a_name_that_two_offer_is_refused(install: Install) -> None:
    install(other="someones_policies:newest", other_="someones_policies:half")
    with pytest.raises(ConfigError, match=r"offered by someones_policies:half and someones_policies:newest"):
        policy_factory("other")
