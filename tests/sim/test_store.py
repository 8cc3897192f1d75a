"""The simulated server against a real one: the same calls, the same answers, the same keys afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.sim.loop import STARTED_S, SimLoop
from tests.sim.network import Network
from tests.sim.server import SharedState
from tests.sim.wires import SimClient
from tests.support.redis_server import block_hash
from tiered.cluster.announcement import Announcement
from tiered.cluster.census import Census
from tiered.cluster.changes import Changes
from tiered.cluster.digest import Digest
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.leadership import Leadership
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Held, Lent, Record, Report, Shares
from tiered.cluster.tenants import Tenants
from tiered.errors import OwnershipError
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockHash, Epoch, NodeId, NodeInfo, NodeStats, TenantId, TenantStats, TokenCounts

LONG_S = 1_000.0
HASHES = [block_hash(i) for i in range(24)]
NODES = [NodeId(f"w{i}") for i in range(3)]
TENANTS = [TenantId("red"), TenantId("blue"), TenantId("green")]


class Side:
    """All that speaks to one server, real or not."""

    def __init__(self, client: Any, keys: Keys) -> None:
        self.client, self.keys = client, keys
        self.membership = Membership(client, keys)
        self.directory = Directory(client, keys)
        self.ledger = RedisLedger(client, keys)
        self.leadership = Leadership(client, keys)
        self.shares = Shares(client, keys)
        self.tenants = Tenants(client, keys)
        self.changes = Changes(client, keys)
        self.census = Census(client, keys)
        self.epochs: list[tuple[NodeId, Epoch]] = []
        self.tokens: list[int] = []

    # Epochs and tokens are never below the server's clock, which the two do not share: they are told by their order.

    def life(self, n: int) -> tuple[NodeId, Epoch]:
        return self.epochs[n % len(self.epochs)]

    def join(self, node: NodeId) -> int:
        epoch = self.membership.join(info(node), lease_ttl_s=LONG_S)
        assert not self.epochs or epoch > self.epochs[-1][1], "I8"
        self.epochs.append((node, epoch))
        return self.order_of(epoch)

    def order_of(self, epoch: int) -> int:
        """Which join it came of; 0 for NO_EPOCH."""
        return [0, *(each for _, each in self.epochs)].index(epoch)

    def ask_to_lead(self, replica: str) -> tuple[int, str]:
        leader = self.leadership.ask(replica, f"http://{replica}", lease_s=LONG_S)
        if leader.token not in self.tokens:
            assert not self.tokens or leader.token > self.tokens[-1]
            self.tokens.append(leader.token)
        return self.tokens.index(leader.token), leader.replica


def info(node: NodeId) -> NodeInfo:
    return NodeInfo(node, "10.0.0.1", 1, 2, "/s", 3)


@dataclass
class Both:
    """The same random steps on both sides."""

    rng: random.Random
    real: Side
    simulated: Side

    def step(self) -> None:
        make = self.rng.choice(STEPS)
        does = make(self.rng)
        real, simulated = _outcome(does, self.real), _outcome(does, self.simulated)
        assert simulated == real, f"{make.__name__}: the server says {real}, the simulation {simulated}"

    def compare(self) -> None:
        real, simulated = _dump(self.real), _dump(self.simulated)
        assert simulated.keys() == real.keys()
        for key in real:
            assert simulated[key] == real[key], key


def _outcome(does: Callable[[Side], Any], side: Side) -> Any:
    try:
        return does(side)
    except OwnershipError as error:
        return type(error)


def join(rng: random.Random) -> Callable[[Side], Any]:
    node = rng.choice(NODES)
    return lambda side: side.join(node)


def renew(rng: random.Random) -> Callable[[Side], Any]:
    n, asked = rng.randrange(8), rng.randrange(1_000)
    stats = NodeStats(pool_blocks=asked, tenants={"red": TenantStats(TokenCounts(asked=asked, missed=asked))})
    return lambda side: side.membership.renew(*side.life(n), stats, lease_ttl_s=LONG_S)


def end(rng: random.Random) -> Callable[[Side], Any]:
    n, lapses = rng.randrange(8), rng.random() < 0.5

    def does(side: Side) -> Any:
        node, epoch = side.life(n)
        if lapses:
            side.client.execute_command("DEL", side.keys.node_lease(node))
            return side.membership.retire(node, epoch)
        return side.membership.leave(node, epoch)

    return does


def look(rng: random.Random) -> Callable[[Side], Any]:
    def does(side: Side) -> Any:
        views = side.membership.nodes()
        return [(view.info, view.alive, view.stats) for view in views], side.membership.retired_tokens()

    return does


def announce(rng: random.Random) -> Callable[[Side], Any]:
    n, number = rng.randrange(8), rng.choice((0, rng.randrange(1, 200)))
    some = rng.sample(HASHES, rng.randrange(len(HASHES)))
    cut = rng.randrange(len(some) + 1)
    whole = Digest(rng.randrange(12), rng.randrange(1 << 64)) if rng.random() < 0.2 else None
    said = [Announcement(0, number, some[:cut], some[cut:], whole)]
    return lambda side: side.directory.hear(*side.life(n), said)


def sweep(rng: random.Random) -> Callable[[Side], Any]:
    n = rng.randrange(8)
    return lambda side: (side.directory.sweep(*side.life(n)), side.directory.count(*side.life(n)))


def read(rng: random.Random) -> Callable[[Side], Any]:
    n = rng.randrange(8)

    def does(side: Side) -> Any:
        where = [(w.in_redis, w.stored_bytes, [o.node for o in w.owners]) for w in side.directory.lookup(HASHES)]
        life = side.life(n)
        count = side.census.count(0, side.changes.position(0), [life])
        stored = sorted(h for page in side.changes.stored(TENANTS) for h in page)
        return where, side.directory.digests(*life), sorted(side.directory.members(*life, 0)), count, stored

    return does


def follow(rng: random.Random) -> Callable[[Side], Any]:
    after = rng.randrange(3)

    def does(side: Side) -> Any:
        changes = side.changes.read([after], 50).changes
        return [(c.seq, c.node, side.order_of(c.epoch), _split(c.stored), _split(c.removed)) for c in changes]

    return does


def store(rng: random.Random) -> Callable[[Side], Any]:
    tenant, first = rng.choice(TENANTS), rng.randrange(len(HASHES) - 4)
    size, comes, commits = rng.randrange(50, 400), rng.random() < 0.9, rng.random() < 0.8
    rows = [
        ReserveRequest(HASHES[first + i], tenant, size, i, HASHES[first + i - 1] if i else BlockHash(b""))
        for i in range(rng.randrange(1, 4))
    ]

    def does(side: Side) -> Any:
        answers = side.ledger.reserve(rows, ttl_s=LONG_S)
        mine = [row for row, answer in zip(rows, answers, strict=True) if answer.reserved]
        for row in mine if comes else []:
            key = side.keys.block(row.block_hash)
            side.client.execute_command("SET", key, b"x" * size, "NX", "PX", 1_000_000)
        if commits:
            return answers, side.ledger.commit([(row.block_hash, tenant, size) for row in mine])
        return answers, side.ledger.abort([(row.block_hash, tenant) for row in mine[:1]])

    return does


def touch(rng: random.Random) -> Callable[[Side], Any]:
    tenant, some = rng.choice(TENANTS), rng.sample(HASHES, 5)
    return lambda side: (side.ledger.touch(some, tenant), side.ledger.usage(), side.ledger.total())


def remove(rng: random.Random) -> Callable[[Side], Any]:
    some, how, tenant = rng.sample(HASHES, 3), rng.randrange(3), rng.choice(TENANTS)
    if how == 0:
        return lambda side: side.ledger.remove(some)
    if how == 1:
        return lambda side: side.ledger.audit(some, settle=True)
    return lambda side: side.ledger.clear(tenant)


def change_policy(rng: random.Random) -> Callable[[Side], Any]:
    fields = {"tenant": rng.choice((*TENANTS, DEFAULT_TENANT)), "redis_limit_bytes": rng.randrange(200, 3_000)}
    fields["over_quota"] = rng.choice(("evict_own", "refuse"))
    policy, capacity = TenantPolicy.model_validate(fields), rng.choice((None, rng.randrange(1_000, 5_000)))

    def does(side: Side) -> Any:
        changed = side.tenants.create(policy) or side.tenants.replace(policy)
        side.tenants.set_capacity(capacity)
        return changed, side.tenants.revision(), side.tenants.policies()

    return does


def lead(rng: random.Random) -> Callable[[Side], Any]:
    replica, resigns = rng.choice(("a", "b")), rng.random() < 0.3

    def does(side: Side) -> Any:
        if resigns:
            return side.leadership.resign(replica)
        return side.ask_to_lead(replica)

    return does


def lend(rng: random.Random) -> Callable[[Side], Any]:
    behind, stale, node = rng.choice((0, 0, 1)), rng.choice((0, 0, 1)), rng.choice(NODES)

    def does(side: Side) -> Any:
        books, views = side.shares.books(), side.membership.nodes()
        lives = [(NodeId(view.info.node), view.epoch) for view in views]
        leader = side.leadership.look()
        changed = {NodeId(v.info.node): Record(v.epoch, books.revision + 1, {"red": Lent(100)}) for v in views}
        answer = side.shares.lend(
            token=(0 if leader is None else leader.token) - behind,
            read=books.revision - stale,
            revision=books.revision + 1,
            settled=True,
            lives=lives,
            changed={name: record for name, record in changed.items() if name == node},
            gone=[n for n in NODES if n != node],
        )
        return answer, books.revision, sorted(books.lent), sorted(books.reports)

    return does


def exchange(rng: random.Random) -> Callable[[Side], Any]:
    n, held = rng.randrange(8), rng.randrange(100)

    def does(side: Side) -> Any:
        node, epoch = side.life(n)
        record = side.shares.exchange(node, Report(epoch, 0, 0, {"red": Held(held)}))
        return record and (record.revision, record.tenants)

    return does


STEPS: list[Callable[[random.Random], Callable[[Side], Any]]] = [
    join, renew, end, look, announce, announce, sweep, read, follow, store, store, store, touch, remove,
    change_policy, lead, lend, exchange,
]  # fmt: skip


def _split(joined: bytes) -> list[bytes]:
    return sorted(joined[i : i + 32] for i in range(0, len(joined), 32))


def _dump(side: Side) -> dict[bytes, Any]:
    """All that the namespace holds, but for what hangs on the server's clock."""
    clocked = (side.keys.epochs(), side.keys.leader_tokens(), side.keys.leader(), side.keys.why())
    cursor, found = 0, {}
    while True:
        cursor, names = side.client.execute_command(
            "SCAN", cursor, "MATCH", f"{{{side.keys.namespace}:*", "COUNT", 1_000
        )
        for name in names:
            key = name
            for node, epoch in side.epochs:
                key = key.replace(f"{node}:{epoch}".encode(), f"{node}:#{side.order_of(epoch)}".encode())
            if name not in clocked:
                found[key] = _value(side, name)
        if int(cursor) == 0:
            return found


def _value(side: Side, name: bytes) -> Any:
    if name.startswith(side.keys.meta(BlockHash(b""))):
        where = side.directory.lookup([BlockHash(name[-32:])])[0]
        return where.in_redis, where.stored_bytes, [(o.node, side.order_of(o.epoch)) for o in where.owners]
    for command in ("GET", "HGETALL", "SMEMBERS", "ZCARD"):  # scores are times, and seldom those of one millisecond
        try:
            value = side.client.execute_command(command, name)
        except redis.ResponseError:
            continue
        if name in (side.keys.nodes(), side.keys.shares()):  # what is in there has epochs in it; the steps compare it
            return sorted(value)
        if command == "HGETALL":  # the number of a deal and the time of the first are the clock's
            value = {field: said for field, said in value.items() if field not in (b"born", b":deal")}
        return len(value) if command == "GET" else sorted(value) if command == "SMEMBERS" else value
    return "a stream"


def _next_tick(client: redis.Redis, before: float) -> float:
    """The real server's time, as the simulation counts it, once it is in a later one of the ticks by which blocks
    are old."""
    while True:
        seconds, us = client.execute_command("TIME")  # type: ignore[no-untyped-call]
        now = int(seconds) - STARTED_S + int(us) / 1e6
        if int(now * 100) > int(before * 100):
            return now


@pytest.mark.parametrize("seed", range(8))
def test_the_simulated_server_does_what_a_real_one_does(
    redis_client: redis.Redis, redis_keys: Keys, seed: int
) -> None:
    now = [_next_tick(redis_client, 0.0)]
    rng = random.Random(seed)
    with closing(SimLoop()) as loop:
        shared = SharedState(lambda: now[0], page=5)
        simulated = SimClient(Network(loop, rng), shared, timeout_s=1.0)
        both = Both(rng, Side(redis_client, redis_keys), Side(simulated, redis_keys))
        assert both.real.join(NODES[0]) == both.simulated.join(NODES[0]) == 1
        for _ in range(100):
            now[0] = _next_tick(redis_client, now[0])
            both.step()
        both.compare()
