"""A cluster of 1,000 tenants and 50 nodes that goes on counting, for screens to cope with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from tests.unit.cli.top.builders import MIB, counts, node, sample, tenant
from tiered.cli.bodies import Alert, Node, Pressure, Tenant, UsageRow
from tiered.cli.explained import Event
from tiered.cli.top.sample import Detail, Sample, Subject
from tiered.errors import ConfigError
from tiered.types import NodeRates, NodeTraffic

N_TENANTS = 1_000
N_NODES = 50

GONE = "coordinator: nothing answers at http://127.0.0.1:8080 (Connection refused); start a cluster with `tiered up`"


def busy_tenant(index: int, turn: int) -> Tenant:
    n = (index + 1) * (turn + 1)
    made = tenant(
        f"tenant-{index:04}",
        counts(hot=4 * n, peer=2 * n, redis=n, missed=n),
        hot=index * 4096,
        pressure=Pressure(evicted_blocks=3 * index, suffered_blocks=2 * index, caused_blocks=index),
    )
    policy = msgspec.structs.replace(made.policy, hot_reserved_bytes=MIB, hot_limit_bytes=8 * MIB)
    return msgspec.structs.replace(
        made,
        policy=policy,
        hot_reserved_in_force_bytes=50 * MIB,
        hot_borrowed_bytes=index * 1024,
        hot_idle_reserved_bytes=48 * MIB,
    )


def busy_node(index: int, turn: int, *, lost: bool) -> Node:
    moved = (index + 1) * (turn + 1) * MIB
    traffic = NodeTraffic(moved, 2 * moved, 3 * moved, 4 * moved, breaker_open=int(index == 7))
    made = node(f"node-{index:02}", epoch=1_796_011_161_224 + index, alive=not lost, traffic=traffic)
    return msgspec.structs.replace(made, rates=NodeRates(prefill_tokens_per_s=5_000.0), free_blocks=index)


def lost_alert(index: int) -> Alert:
    return Alert("alarm", "lost", f"Worker node-{index:02} is lost: its lease has lapsed.", f"node-{index:02}", 3.0)


@dataclass
class Crowd:
    """A source of samples a second apart. gone: nobody answers. lost: nodes whose lease has lapsed."""

    turn: int = 0
    gone: bool = False
    lost: set[int] = field(default_factory=set)
    n_tenants: int = N_TENANTS
    n_nodes: int = N_NODES
    looked_at: list[Subject] = field(default_factory=list)

    def sample(self) -> Sample:
        if self.gone:
            raise ConfigError(GONE, field="coordinator")
        self.turn += 1
        made = sample(
            float(self.turn),
            tenants=[busy_tenant(index, self.turn) for index in range(self.n_tenants)],
            nodes=[busy_node(index, self.turn, lost=index in self.lost) for index in range(self.n_nodes)],
        )
        redis = msgspec.structs.replace(made.stats.tiers.redis, bytes=3 << 28, blocks=4_000, capacity_bytes=1 << 30)
        tiers = msgspec.structs.replace(made.stats.tiers, redis=redis)
        stats = msgspec.structs.replace(made.stats, tiers=tiers, saved_prefill_s=90.0 * self.turn)
        return replace(made, stats=stats, alerts=[lost_alert(index) for index in sorted(self.lost)])

    def detail(self, subject: Subject) -> Detail:
        if self.gone:
            raise ConfigError(GONE, field="coordinator")
        self.looked_at.append(subject)
        name = subject.name if subject.kind is Tenant else "tenant-0001"
        usage = [
            UsageRow(name, "hot", f"node-{index:02}", (index + 1) * 4096, index + 1, 8 * MIB, MIB)
            for index in range(3)
        ]
        usage.append(UsageRow(name, "redis", None, 7 * MIB, 7))
        events = [
            Event(
                at=datetime(2026, 1, 2, 3, 4, index % 60, tzinfo=UTC),
                where="node-01",
                what="evicted",
                block=f"{index:064x}",
                tenant=name,
                tier="hot",
                blocks=1,
                sentence="evicted: hazard chose it first (1 hit, last used 12 uses of the pool ago), so that "
                f"tenant-0002 could have the room; {name} had 3.0 MiB of 8.0 MiB; a copy for Redis was begun",
                detail={},
            )
            for index in range(40)
        ]
        return Detail(subject, usage, events, ["no answer from node-09: it did not answer within 1 s"])
