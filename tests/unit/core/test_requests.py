"""What policies that learn from whole requests are told, through the core and through both clients' verbs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.core.builders import BLOCK_TOKENS, ENGINE, RED, SCOPE, World, chain
from tiered.core.core import CacheCore, CoreOptions
from tiered.core.match import match, open_lease
from tiered.core.release import drop_connection, expire, release
from tiered.core.requests import close_session, ended, saving
from tiered.eviction.lru import LruPolicy
from tiered.eviction.policy import RequestAware
from tiered.types import NO_HINTS, BlockHash, Continues, Hints, TenantId


class Listening(LruPolicy):
    """LRU that writes down what it is told of requests."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__()
        self.heard: list[tuple[object, ...]] = []

    def on_request(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        self.heard.append(("request", request, len(path), now, hints.continues))

    def on_save(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        self.heard.append(("save", request, len(path), now, hints.continues))

    def on_end(self, request: int, *, now: float, output_tokens: int | None) -> None:
        self.heard.append(("end", request, now, output_tokens))

    def on_close(self, session: str, *, now: float) -> None:
        self.heard.append(("close", session, now))

    def share_memory(self, n_policies: int) -> None:
        self.n_policies = n_policies


def listening_core() -> tuple[CacheCore, list[tuple[object, ...]]]:
    options = CoreOptions(block_bytes=1, block_tokens=BLOCK_TOKENS, policy=Listening)
    core = CacheCore(options, 8)
    policy = core.policy_of(RED)
    assert isinstance(policy, Listening)
    return core, policy.heard


def look_up(core: CacheCore, name: str, n_blocks: int, *, now: float, hints: Hints = NO_HINTS) -> int:
    hashes = chain(name, n_blocks)
    return match(
        core, hashes, connection=ENGINE, tenant=RED, scope_id=SCOPE, asked_tokens=0, now=now, hints=hints
    ).lease_id


def test_a_lookup_and_its_end_are_told_once_each() -> None:
    core, heard = listening_core()
    lease_id = look_up(core, "a", 3, now=1.0, hints=Hints(continues=Continues.YES))
    lease = core.leases[lease_id]
    release(core, lease, used_tokens=0, now=2.0)
    ended(core, lease, now=3.0)
    assert heard == [("request", lease_id, 3, 1.0, Continues.YES), ("end", lease_id, 2.0, None)]


def test_a_save_tells_of_the_answer_it_knew_the_length_of() -> None:
    core, heard = listening_core()
    lease = open_lease(core, chain("a", 2), connection=ENGINE, tenant=RED, scope_id=SCOPE)
    saving(core, lease, now=1.0, hints=Hints(continues=Continues.NO, output_tokens=7))
    release(core, lease, used_tokens=0, now=2.0)
    assert heard == [("save", lease.lease_id, 2, 1.0, Continues.NO), ("end", lease.lease_id, 2.0, 7)]


def test_a_release_without_a_time_leaves_the_end_to_be_told_later() -> None:
    core, heard = listening_core()
    lease = core.leases[look_up(core, "a", 1, now=1.0)]
    release(core, lease, used_tokens=0)
    assert heard[-1][0] == "request"
    ended(core, lease, now=9.0, output_tokens=3)
    assert heard[-1] == ("end", lease.lease_id, 9.0, 3)


def test_requests_end_with_their_time_and_with_their_connection() -> None:
    core, heard = listening_core()
    lapsed = look_up(core, "a", 1, now=0.0)
    expire(core, now=core.options.match_lease_s)
    assert heard[-1] == ("end", lapsed, core.options.match_lease_s, None)
    dropped = look_up(core, "b", 1, now=100.0)
    drop_connection(core, ENGINE, now=101.0)
    assert heard[-1] == ("end", dropped, 101.0, None)


def test_a_prompt_without_a_full_block_is_not_told_of() -> None:
    core, heard = listening_core()
    look_up(core, "a", 0, now=0.0)
    assert heard == []


def test_a_closed_session_is_told_to_its_tenants_policy() -> None:
    core, heard = listening_core()
    close_session(core, RED, "chat-7", now=4.0)
    assert heard == [("close", "chat-7", 4.0)]


def test_policies_are_told_how_many_share_what_is_remembered() -> None:
    core, _ = listening_core()
    others = [core.policy_of(TenantId(name)) for name in "abc"]
    policies = [core.policy_of(RED), *others]
    assert [policy.n_policies for policy in policies if isinstance(policy, Listening)] == [4] * 4


def test_policies_that_look_at_blocks_alone_are_told_nothing() -> None:
    world = World(n_blocks=4, policy="lru")
    lease = world.match(chain("a", 2))
    world.release(lease)
    close_session(world.core, RED, "chat-7", now=0.0)
    assert not isinstance(world.core.policy_of(RED), RequestAware)
    assert not lease.is_told


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ttl_s", -1.0, "hints.ttl_s"),
        ("ttl_s", float("nan"), "hints.ttl_s"),
        ("session", "x" * 257, "hints.session"),
        ("labels", ("a",) * 9, "hints.labels"),
        ("labels", ("x" * 257,), "hints.labels"),
        ("output_tokens", -1, "hints.output_tokens"),
    ],
)
def test_a_hint_out_of_bounds_names_its_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hints(**{field: value})  # type: ignore[arg-type]
