from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import block_hash, eventually
from tiered.cluster import scripts
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, RedisUsage, ReserveRequest
from tiered.cluster.membership import Membership
from tiered.cluster.recount import mark_of, recount
from tiered.cluster.tenants import Tenants
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NO_EPOCH, NO_HASH, BlockHash, Epoch, NodeId, NodeInfo, TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
SIZE = 10


@pytest.fixture
def ledger(redis_client: redis.Redis, redis_keys: Keys) -> RedisLedger:
    return RedisLedger(redis_client, redis_keys)


def store(client: redis.Redis, keys: Keys, ledger: RedisLedger, names: list[str], tenant: TenantId = RED) -> None:
    """A chain of blocks."""
    hashes = [block_hash(name) for name in names]
    parents = [NO_HASH, *hashes]
    asked = [ReserveRequest(h, tenant, SIZE, d, parents[d]) for d, h in enumerate(hashes)]
    assert all(answer.reserved for answer in ledger.reserve(asked, ttl_s=30))
    for h in hashes:
        command(client, "SET", keys.block(h), b"x" * SIZE)
    assert all(ledger.commit([(h, tenant, SIZE) for h in hashes]))


def test_a_tier_in_order_is_conserved_to_the_byte_and_loses_nothing(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, [f"a{i}" for i in range(300)])
    store(redis_client, redis_keys, ledger, [f"b{i}" for i in range(7)], BLUE)
    ledger.touch([block_hash(f"a{i}") for i in range(3)], BLUE)
    auditor = Auditor(redis_client, redis_keys)
    for _ in range(2):
        findings = auditor.walk()
        assert findings.conserved
        assert (findings.blocks, findings.stored_bytes) == (307, 307 * SIZE)
        assert (findings.expired, findings.lost, findings.stray, findings.relisted, findings.orphans) == (0,) * 5
    assert sum(findings.charged.values()) == 307 * SIZE
    assert findings.charged[BLUE] == 7 * SIZE + 3 * (SIZE // 2)


def test_an_empty_tier_is_conserved(redis_client: redis.Redis, redis_keys: Keys) -> None:
    assert Auditor(redis_client, redis_keys).walk().conserved


def test_what_the_server_lost_is_found_and_settled(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    names = [f"p{i}" for i in range(4)]
    store(redis_client, redis_keys, ledger, names)
    command(redis_client, "DEL", redis_keys.block(block_hash("p3")))
    command(redis_client, "SET", redis_keys.block(block_hash("stray")), b"y")
    looking = Auditor(redis_client, redis_keys, settle=False).walk()
    assert (looking.lost, looking.stray, looking.conserved) == (1, 1, False)
    assert command(redis_client, "EXISTS", redis_keys.block(block_hash("stray"))) == 1
    settling = Auditor(redis_client, redis_keys)
    assert (settling.walk().lost, settling.walk().conserved) == (1, True)
    assert command(redis_client, "EXISTS", redis_keys.block(block_hash("stray"))) == 0
    assert ledger.total().used_bytes == 3 * SIZE


def test_a_book_that_says_too_much_is_not_conserved(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["a"])
    command(redis_client, "HINCRBY", redis_keys.usage(), "u:red", 1)
    assert Auditor(redis_client, redis_keys).walk().conserved is False


def test_an_orphan_goes_with_the_second_walk_that_sees_it(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["p0", "p1", "p2"])
    ledger.remove([block_hash("p0")])
    auditor = Auditor(redis_client, redis_keys)
    left = []
    for _ in range(4):
        assert auditor.walk().orphans <= 1
        left.append(ledger.total().blocks)
    assert left == [2, 1, 1, 0]


def test_a_block_whose_prefix_is_hot_somewhere_is_no_orphan(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["p0", "p1"])
    epoch = Membership(redis_client, redis_keys).join(info(NODE), lease_ttl_s=60.0)
    Directory(redis_client, redis_keys).announce(NODE, epoch, stored=[block_hash("p0")], removed=[])
    ledger.remove([block_hash("p0")])
    auditor = Auditor(redis_client, redis_keys)
    assert [auditor.walk().orphans for _ in range(3)] == [0, 0, 0]


def test_idle_blocks_go_by_their_tenants_time(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["red"])
    store(redis_client, redis_keys, ledger, ["blue"], BLUE)
    auditor = Auditor(redis_client, redis_keys)
    eventually(lambda: auditor.walk({RED: 0.05}).idle == 1)
    assert set(ledger.usage()) == {BLUE}


def test_keys_of_other_namespaces_are_left_alone(redis_client: redis.Redis, redis_keys: Keys) -> None:
    foreign = Keys(namespace=f"{redis_keys.namespace}x").block(BlockHash(bytes(32)))
    command(redis_client, "SET", foreign, b"theirs")
    Auditor(redis_client, redis_keys).walk()
    assert command(redis_client, "GET", foreign) == b"theirs"


PART = 4 << 20


def store_large(client: redis.Redis, keys: Keys, name: str, size: int = 2 * PART + 5) -> None:
    """One block whose value lies in several strings."""
    ledger, block, key = (
        RedisLedger(client, keys),
        block_hash(name),
        keys.of(block_hash(name)).block(block_hash(name)),
    )
    assert ledger.reserve([ReserveRequest(block, RED, size, 0)], ttl_s=30)[0].reserved
    for part, start in enumerate(range(0, size, PART)):
        command(client, "SET", key + (b":%d" % part if part else b""), b"x" * min(PART, size - start))
    assert ledger.commit([(block, RED, size)]) == [True]


def walks_until_conserved(client: redis.Redis, keys: Keys, at_most: int = 4) -> int:
    auditor = Auditor(client, keys)
    return next(n for n in range(1, at_most + 1) if auditor.walk().conserved)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_value_whose_record_the_server_lost_leaves_nothing_behind(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    size = 2 * PART + 5
    Tenants(redis_client, keys).create(TenantPolicy(tenant="red", redis_limit_bytes=size, over_quota="refuse"))
    before = keys_of(redis_client, keys.namespace)
    store_large(redis_client, keys, "a")
    command(redis_client, "DEL", keys.of(block_hash("a")).meta(block_hash("a")))
    assert walks_until_conserved(redis_client, keys) > 1
    left = {key for key in keys_of(redis_client, keys.namespace) if not key.endswith(b"}:y")}
    assert left == before
    store_large(redis_client, keys, "b")  # the whole limit is the tenant's again
    assert Auditor(redis_client, keys, settle=False).walk().conserved


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (0, 2)])
def test_a_stray_is_found_by_any_part_of_it(
    redis_client: redis.Redis, redis_keys: Keys, lost: tuple[int, ...]
) -> None:
    store_large(redis_client, redis_keys, "a")
    key = redis_keys.block(block_hash("a"))
    names = [key, key + b":1", key + b":2"]
    command(redis_client, "DEL", redis_keys.meta(block_hash("a")), *(names[part] for part in lost))
    assert Auditor(redis_client, redis_keys, settle=False).walk().stray >= 1
    assert walks_until_conserved(redis_client, redis_keys) > 1
    assert command(redis_client, "EXISTS", *names) == 0


def test_only_what_was_lost_leaves_the_books(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    names = [f"a{i}" for i in range(30)]
    for name in names:  # each by itself: none is an orphan without another
        store(redis_client, redis_keys, ledger, [name])
    store(redis_client, redis_keys, ledger, [f"b{i}" for i in range(7)], BLUE)
    ledger.touch([block_hash(name) for name in names[:3]], BLUE)
    command(redis_client, "DEL", *(redis_keys.meta(block_hash(name)) for name in (names[0], names[20])))
    assert walks_until_conserved(redis_client, redis_keys) > 1
    usage = ledger.usage()
    assert {tenant: (of.used_bytes, of.blocks) for tenant, of in usage.items()} == {
        RED: (26 * SIZE + 2 * SIZE // 2, 28),
        BLUE: (7 * SIZE + 2 * SIZE // 2, 9),
    }
    assert [command(redis_client, "ZSCORE", redis_keys.standings(), of) for of in (RED, BLUE)] == [270.0, 80.0]


def test_a_reservation_whose_record_the_server_lost_is_pending_no_longer(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    store(redis_client, redis_keys, ledger, ["a"])
    assert ledger.reserve([ReserveRequest(block_hash("b"), RED, SIZE, 0)], ttl_s=0.2)[0].reserved
    command(redis_client, "DEL", redis_keys.meta(block_hash("b")))
    auditor = Auditor(redis_client, redis_keys)

    def settled() -> bool:
        auditor.walk()
        return ledger.total() == RedisUsage(SIZE, 0, 1)

    eventually(settled)


@pytest.mark.parametrize(
    "wrote",
    [
        "nothing",
        "joined crosswise",
        "replaced",
        "joined and parted",
        "reserves",
        "reserved and aborted",
        "a newcomer",
    ],
)
def test_books_are_written_by_the_records_only_if_nobody_wrote_since(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger, wrote: str
) -> None:
    """What leaves the sums as they were is enough."""
    for name, tenant in (("r", RED), ("b", BLUE)):
        store(redis_client, redis_keys, ledger, [name], tenant)
    r, b, new = (block_hash(name) for name in ("r", "b", "new"))
    mark = mark_of(redis_client, redis_keys)
    if wrote == "joined crosswise":
        ledger.touch([r], BLUE)
        ledger.touch([b], RED)
    elif wrote == "replaced":
        ledger.remove([r])
        store(redis_client, redis_keys, ledger, ["new"])
    elif wrote == "joined and parted":
        ledger.touch([r], BLUE)
        command(redis_client, "ZADD", redis_keys.tenant_blocks(BLUE), 1, r)  # its oldest
        assert scripts.clear(redis_client, redis_keys, BLUE, batch=1) == 1
    elif wrote == "a newcomer":
        store(redis_client, redis_keys, ledger, ["new"], TenantId("green"))
    elif wrote != "nothing":
        ledger.reserve([ReserveRequest(new, RED, SIZE, 0)], ttl_s=30)
        if wrote == "reserved and aborted":
            ledger.abort([(new, RED)])
    if wrote not in ("reserves", "a newcomer"):
        assert mark_of(redis_client, redis_keys).usage == mark.usage
    seen = {RED: SIZE // 2, BLUE: SIZE + SIZE // 2}  # as read while things were otherwise
    written = recount(redis_client, redis_keys, mark, seen, {RED: 1, BLUE: 1})
    assert written == (wrote in ("nothing", "reserved and aborted"))


def test_books_are_not_written_while_a_reservation_runs_of_which_they_know_nothing(
    redis_client: redis.Redis, redis_keys: Keys, ledger: RedisLedger
) -> None:
    """It would come out of them when it ends."""
    block = block_hash("a")
    ledger.reserve([ReserveRequest(block, RED, SIZE, 0)], ttl_s=30)
    command(redis_client, "DEL", redis_keys.usage())
    command(redis_client, "ZREM", redis_keys.reservations(), block)
    assert Auditor(redis_client, redis_keys).walk().relisted == 1
    assert not recount(redis_client, redis_keys, mark_of(redis_client, redis_keys), {RED: 5}, {})


NODE, OTHER = NodeId("n"), NodeId("m:1")
HASHES = [block_hash(f"hot{i}") for i in range(20)]


def info(node: NodeId) -> NodeInfo:
    return NodeInfo(node, "127.0.0.1", 1, 2, "/s", 3)


def keys_of(client: redis.Redis, namespace: str) -> set[bytes]:
    """All that there is, the bounded streams aside."""
    found = set(client.scan_iter(match=f"{{{namespace}:*"))
    return {key for key in found if not key.endswith(b"}:c")}


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_stamp_of_a_life_that_does_not_list_the_block_is_dropped(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory, membership = Directory(redis_client, keys), Membership(redis_client, keys)
    epochs = {node: membership.join(info(node), lease_ttl_s=60.0) for node in (NODE, OTHER)}
    for node, epoch in epochs.items():
        directory.announce(node, epoch, stored=HASHES, removed=[])
    for block in HASHES[:5]:
        command(redis_client, "SREM", keys.of(block).node_blocks(NODE, epochs[NODE]), block)
    assert Auditor(redis_client, keys, settle=False).walk().stamps == 5
    assert Auditor(redis_client, keys).walk().stamps == 5
    held = [{owner.node for owner in found.owners} for found in directory.lookup(HASHES)]
    assert held == [{OTHER}] * 5 + [{NODE, OTHER}] * 15
    assert Auditor(redis_client, keys).walk().stamps == 0


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("now", ["gone", "rejoined"])
def test_what_a_late_announcement_left_of_an_ended_life_is_found_and_removed(
    redis_client: redis.Redis, redis_keys: Keys, partitions: int, now: str
) -> None:
    keys = Keys(redis_keys.namespace, partitions=partitions)
    directory, membership = Directory(redis_client, keys), Membership(redis_client, keys)
    old = membership.join(info(OTHER), lease_ttl_s=60.0)
    membership.leave(OTHER, old)
    new = NO_EPOCH
    if now == "rejoined":
        new = membership.join(info(OTHER), lease_ttl_s=60.0)
        directory.announce(OTHER, new, stored=HASHES[:3], removed=[])
    before = keys_of(redis_client, keys.namespace)
    directory.announce(OTHER, old, stored=HASHES, removed=[])
    auditor = Auditor(redis_client, keys)
    assert auditor.walk().stamps == 0, "the members may be what was lost, for a moment"
    assert auditor.walk().stamps == (20 if now == "gone" else 17)
    assert keys_of(redis_client, keys.namespace) == before
    assert directory.count(OTHER, new) == (3 if now == "rejoined" else 0)
    assert auditor.walk().stamps == 0


def test_a_life_whose_entry_cannot_be_read_is_left_alone(redis_client: redis.Redis, redis_keys: Keys) -> None:
    directory = Directory(redis_client, redis_keys)
    directory.announce(NODE, Epoch(1), stored=HASHES, removed=[])
    command(redis_client, "HSET", redis_keys.nodes(), NODE, b"\xc1 of a later version")
    auditor = Auditor(redis_client, redis_keys)
    assert [auditor.walk().stamps for _ in range(3)] == [0, 0, 0]
    assert directory.count(NODE, Epoch(1)) == 20


def test_a_digest_that_outlived_its_set_goes_with_its_life(redis_client: redis.Redis, redis_keys: Keys) -> None:
    directory = Directory(redis_client, redis_keys)
    directory.announce(NODE, Epoch(1), stored=HASHES, removed=[])
    command(redis_client, "DEL", redis_keys.node_blocks(NODE, Epoch(1)))
    auditor = Auditor(redis_client, redis_keys)
    for _ in range(2):
        auditor.walk()
    assert keys_of(redis_client, redis_keys.namespace) == set()
