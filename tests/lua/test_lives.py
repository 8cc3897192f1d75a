"""A node's name gets its next life whatever lies in the stats of the one before."""

from __future__ import annotations

import msgspec
import pytest
import redis

from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.membership import Membership
from tiered.types import NodeId, NodeInfo, NodeStats, TenantId, TenantStats, TokenCounts

NODE, INFO = NodeId("a"), NodeInfo("a", "h", 1, 2, "/s", 3)
RED, BLUE = TenantId("red"), TenantId("blue")
FINE = {"blue": {"tokens": {"asked": 5, "hot": 5}}}
TTL_S = 30.0


def of_red(tokens: object) -> bytes:
    return msgspec.msgpack.encode({"tenants": {"red": {"tokens": tokens}, **FINE}})


@pytest.fixture
def membership(redis_client: redis.Redis, redis_keys: Keys) -> Membership:
    return Membership(redis_client, redis_keys)


@pytest.mark.parametrize("ends", ["leave", "lapsed", "join"])
@pytest.mark.parametrize(
    "stats",
    [
        of_red({"asked": 2**63 - 1}),
        of_red({"asked": 2**64 - 1}),
        of_red({"asked": float("nan")}),
        of_red({"asked": float("inf")}),
        of_red({"asked": "many"}),
        of_red({"asked": {"n": 1}}),
        of_red(7),
        of_red(None),
    ],
    ids=["near 2**63", "near 2**64", "nan", "inf", "text", "table", "number for a table", "nothing"],
)
def test_a_count_that_is_none_is_left_out_and_the_life_ends(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys, stats: bytes, ends: str
) -> None:
    epoch = membership.join(INFO, lease_ttl_s=TTL_S)
    command(redis_client, "HSET", redis_keys.node_stats(), NODE, stats)
    if ends == "leave":
        membership.leave(NODE, epoch)
    elif ends == "lapsed":
        command(redis_client, "DEL", redis_keys.node_lease(NODE))
        assert membership.retire(NODE, epoch)
    assert membership.join(INFO, lease_ttl_s=TTL_S) > epoch
    assert membership.retired_tokens() == {BLUE: TokenCounts(asked=5, hot=5)}


@pytest.mark.parametrize(
    "stats",
    [b"\xc1", b"", b"\x07", msgspec.msgpack.encode({"tenants": 3}), b"\x80"],
    ids=["noise", "empty", "number", "number for tenants", "no tenants"],
)
def test_stats_that_cannot_be_read_end_with_their_life(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys, stats: bytes
) -> None:
    epoch = membership.join(INFO, lease_ttl_s=TTL_S)
    command(redis_client, "HSET", redis_keys.node_stats(), NODE, stats)
    membership.leave(NODE, epoch)
    assert membership.registered() == {}
    assert membership.join(INFO, lease_ttl_s=TTL_S) > epoch
    assert membership.retired_tokens() == {}


@pytest.mark.parametrize("sum_before", [str(2**63 - 1), "junk"])
def test_a_sum_that_takes_no_more_keeps_nobody_from_leaving(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys, sum_before: str
) -> None:
    command(redis_client, "HSET", redis_keys.retired_tokens(), "red|asked", sum_before)
    epoch = membership.join(INFO, lease_ttl_s=TTL_S)
    stats = NodeStats(tenants={"red": TenantStats(tokens=TokenCounts(asked=1, hot=1))})
    membership.renew(NODE, epoch, stats, lease_ttl_s=TTL_S)
    membership.leave(NODE, epoch)
    assert membership.retired_tokens()[RED].hot == 1


def test_an_entry_that_cannot_be_read_is_no_life_and_the_name_joins(
    membership: Membership, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    command(redis_client, "HSET", redis_keys.nodes(), NODE, b"\xc1")
    membership.leave(NODE, membership.join(INFO, lease_ttl_s=TTL_S))
    assert membership.registered() == {}
