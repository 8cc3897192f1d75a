"""How much more each node could use of a tenant's totals: what it wanted in vain lately, from what workers report.

A worker's counter grows for its life; what counts is its growth, and the older it is the less. So a burst is
forgotten within seconds, and a leader that has just begun knows of no burst before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tiered.cluster.shares import Report
from tiered.types import NodeId

KEPT_PART: Final = 0.5
"""Of what was wanted before, in each round: at two rounds a second, a sixteenth is left after two seconds. What was
wanted and has been lent since must not count for long."""


@dataclass(frozen=True, slots=True)
class Demand:
    """seen_bytes: the counter when it was last read. recent_bytes: its growth, fading."""

    seen_bytes: int
    recent_bytes: int


Demands: TypeAlias = Mapping[tuple[NodeId, int, str], Demand]
"""By node, epoch and tenant."""


def note(demands: Demands, reports: Mapping[NodeId, Report]) -> Demands:
    """After one more look at the reports; whoever reports no more is forgotten."""
    noted: dict[tuple[NodeId, int, str], Demand] = {}
    for node, report in reports.items():
        for tenant, held in report.tenants.items():
            key = (node, report.epoch, tenant)
            before = demands.get(key)
            # The counter of a life that is new here may be as old as its process: its growth is not known yet.
            seen = held.wanted_bytes if before is None else before.seen_bytes
            kept = 0 if before is None else int(before.recent_bytes * KEPT_PART)
            noted[key] = Demand(held.wanted_bytes, kept + max(0, held.wanted_bytes - seen))
    return noted
