"""Which lives are ended and which are cleared: the decision alone, then applied to a real server."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from coordinator.leader.runner import Sweeper
from coordinator.leader.sweep import EMPTY_ROUNDS, Life, SweepPlan, note, plan_sweep, settle
from tests.support.redis_server import eventually
from tests.unit.coordinator.builders import node_info, node_stats, node_view, tokens
from tests.unit.coordinator.conftest import Parts
from tiered.cluster.connection import command
from tiered.cluster.membership import Membership, UnreadNode
from tiered.types import BlockHash, Epoch, NodeId, NodeView, TenantId, TenantStats

N1 = NodeId("n1")
HASHES = [BlockHash(bytes([i]) * 32) for i in range(5)]


def life(name: str, epoch: int) -> Life:
    return Life(NodeId(name), Epoch(epoch))


def test_nothing_is_done_while_every_lease_runs() -> None:
    nodes = [node_view("n1", epoch=1), node_view("n2", epoch=2)]
    assert plan_sweep(nodes, note({}, nodes)) == SweepPlan(retire=(), sweep=())


def test_a_lapsed_node_is_retired_and_not_swept_before() -> None:
    nodes = [node_view("n1", epoch=1, alive=False), node_view("n2", epoch=2)]
    assert plan_sweep(nodes, {}) == SweepPlan(retire=(life("n1", 1),), sweep=())


def test_an_earlier_life_is_swept_but_the_rejoined_node_is_left_alone() -> None:
    seen = note({}, [node_view("n1", epoch=1)])
    assert plan_sweep([node_view("n1", epoch=4)], seen) == SweepPlan(retire=(), sweep=(life("n1", 1),))


def test_a_life_that_another_coordinator_retired_is_swept_all_the_same() -> None:
    seen = note({}, [node_view("n1", epoch=1)])
    assert plan_sweep([], seen) == SweepPlan(retire=(), sweep=(life("n1", 1),))


def test_a_life_of_which_not_all_can_be_read_is_as_alive_as_its_lease() -> None:
    seen = note({}, [node_view("n1", epoch=1), node_view("n2", epoch=2), node_view("n3", epoch=3)])
    unread = [
        UnreadNode(NodeId("n1"), Epoch(1), is_alive=True),
        UnreadNode(NodeId("n2"), Epoch(5), is_alive=False),
        UnreadNode(NodeId("n3"), None, is_alive=True),
    ]
    assert plan_sweep([], seen, unread) == SweepPlan(retire=(life("n2", 5),), sweep=(life("n2", 2),))
    assert life("n2", 5) in note(seen, [], unread)


def test_the_order_of_work_does_not_depend_on_the_order_of_nodes() -> None:
    nodes = [node_view("n2", epoch=2, alive=False), node_view("n1", epoch=1, alive=False)]
    assert plan_sweep(nodes, {}) == plan_sweep(nodes[::-1], {})
    assert plan_sweep(nodes, {}).retire == (life("n1", 1), life("n2", 2))


def test_an_ended_life_is_forgotten_after_enough_empty_rounds_in_a_row() -> None:
    ended = life("n1", 1)
    seen = settle({ended: EMPTY_ROUNDS - 2}, swept={ended}, empty={ended})
    assert ended in seen
    assert settle(seen, swept={ended}, empty={ended}) == {}


def test_a_late_announcement_makes_the_count_of_empty_rounds_start_again() -> None:
    ended = life("n1", 1)
    assert settle({ended: EMPTY_ROUNDS - 1}, swept={ended}, empty=()) == {ended: 0}


def test_a_life_that_the_round_did_not_reach_is_remembered_as_it_was() -> None:
    assert settle({life("n1", 1): 3, life("n2", 2): 0}, swept={life("n2", 2)}, empty=()) == {
        life("n1", 1): 3,
        life("n2", 2): 0,
    }


def lease_lapses(parts: Parts) -> None:
    eventually(lambda: not parts.client.exists(parts.keys.node_lease(N1)))


def join_and_hold(parts: Parts, *, lease_ttl_s: float) -> Epoch:
    """n1 joins, counts ten tokens of one tenant and announces five blocks."""
    epoch = parts.membership.join(node_info("n1"), lease_ttl_s=60.0)
    stats = node_stats(acme=TenantStats(tokens=tokens(hot=8, missed=2), hot_blocks=5, hot_bytes=50))
    parts.membership.renew(N1, epoch, stats, lease_ttl_s=lease_ttl_s)
    parts.directory.announce(N1, epoch, stored=HASHES, removed=[])
    return epoch


def test_a_node_whose_lease_lapsed_leaves_nothing_but_its_token_counts(parts: Parts) -> None:
    epoch = join_and_hold(parts, lease_ttl_s=0.05)
    lease_lapses(parts)
    before = parts.keeper.refresh().tokens
    parts.sweeper.round()
    assert parts.membership.nodes() == []
    assert parts.directory.count(N1, epoch) == 0
    assert all(not place.owners for place in parts.directory.lookup(HASHES))
    assert parts.membership.retired_tokens() == {TenantId("acme"): tokens(hot=8, missed=2)}
    assert parts.keeper.refresh().tokens == before == tokens(hot=8, missed=2)


def test_a_life_that_redis_does_not_let_be_retired_keeps_its_entries(parts: Parts) -> None:
    class LooksLapsed(Membership):
        """Lists a member in the last moment of its lease, just before it is renewed."""

        def readable(self) -> tuple[list[NodeView], list[UnreadNode]]:
            nodes, unread = super().readable()
            return [replace(node, lease_left_s=0.0) for node in nodes], unread

    epoch = join_and_hold(parts, lease_ttl_s=60.0)
    sweeper = Sweeper(membership=LooksLapsed(parts.client, parts.keys), directory=parts.directory)
    sweeper.round()
    assert parts.directory.count(N1, epoch) == len(HASHES)
    assert [node.epoch for node in parts.membership.nodes()] == [epoch]


@pytest.mark.parametrize("what", ["entry", "stats", "epoch"])
def test_a_living_node_of_which_not_all_can_be_read_keeps_its_entries(
    parts: Parts, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a later release may be."""
    epoch = join_and_hold(parts, lease_ttl_s=60.0)
    parts.sweeper.round()
    key = parts.keys.node_stats() if what == "stats" else parts.keys.nodes()
    bad = msgspec.msgpack.encode(({"node": 7}, epoch)) if what == "entry" else b"\xc1 of a later version"
    command(parts.client, "HSET", key, N1, bad)
    for _ in range(3):
        parts.sweeper.round()
    assert parts.membership.nodes() == []
    assert parts.directory.count(N1, epoch) == len(HASHES)
    assert caplog.text.count("cannot be read") == 1, "once, not in every round"


@pytest.mark.parametrize("what", ["entry", "stats"])
def test_a_node_of_which_not_all_can_be_read_is_retired_and_swept_when_its_lease_lapsed(
    parts: Parts, what: str
) -> None:
    epoch = join_and_hold(parts, lease_ttl_s=60.0)
    key = parts.keys.node_stats() if what == "stats" else parts.keys.nodes()
    bad = msgspec.msgpack.encode(({"node": 7}, epoch)) if what == "entry" else b"\xc1 of a later version"
    command(parts.client, "HSET", key, N1, bad)
    command(parts.client, "DEL", parts.keys.node_lease(N1))
    parts.sweeper.round()
    assert parts.membership.registered() == {}
    assert parts.directory.count(N1, epoch) == 0


def test_a_live_node_is_not_touched(parts: Parts) -> None:
    epoch = join_and_hold(parts, lease_ttl_s=60.0)
    parts.sweeper.round()
    assert [node.epoch for node in parts.membership.nodes()] == [epoch]
    assert parts.directory.count(N1, epoch) == len(HASHES)


def test_what_a_rejoined_nodes_earlier_life_left_is_swept(parts: Parts) -> None:
    old = join_and_hold(parts, lease_ttl_s=60.0)
    parts.sweeper.round()
    new = parts.membership.join(node_info("n1"), lease_ttl_s=60.0)
    parts.directory.announce(N1, new, stored=HASHES[:2], removed=[])
    parts.sweeper.round()
    assert parts.directory.count(N1, old) == 0
    assert parts.directory.count(N1, new) == 2
    assert [len(place.owners) for place in parts.directory.lookup(HASHES)] == [1, 1, 0, 0, 0]
    assert [node.epoch for node in parts.membership.nodes()] == [new]


def test_two_coordinators_sweeping_at_once_count_a_dead_node_once(parts: Parts) -> None:
    epoch = join_and_hold(parts, lease_ttl_s=0.05)
    other = Sweeper(membership=parts.membership, directory=parts.directory)
    other.round()
    lease_lapses(parts)
    parts.sweeper.round()
    other.round()
    assert parts.membership.retired_tokens() == {TenantId("acme"): tokens(hot=8, missed=2)}
    assert parts.directory.count(N1, epoch) == 0


def test_an_announcement_that_came_after_the_sweep_is_cleared_by_a_later_round(parts: Parts) -> None:
    epoch = join_and_hold(parts, lease_ttl_s=0.05)
    lease_lapses(parts)
    parts.sweeper.round()
    parts.directory.announce(N1, epoch, stored=HASHES[:1], removed=[])
    parts.sweeper.round()
    assert parts.directory.count(N1, epoch) == 0


def test_a_life_is_forgotten_once_nothing_of_it_is_found_for_long_enough(parts: Parts) -> None:
    join_and_hold(parts, lease_ttl_s=0.05)
    lease_lapses(parts)
    for _ in range(EMPTY_ROUNDS):
        assert parts.sweeper.seen or parts.membership.nodes()
        parts.sweeper.round()
    assert parts.sweeper.seen == {}
