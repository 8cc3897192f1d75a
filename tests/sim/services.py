"""Puts the simulation under the services: for as long as it runs, what they reach outside themselves by is simulated.

Owns the list of those places: time, threads and their queues, the shared state's clients, and sockets between
peers. All else of a worker and of a coordinator is what is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

import coordinator.leader.leading
import coordinator.leader.rounds
import coordinator.view.follower
import coordinator.view.keeper
import tiered.pool.staging
import tiered.seam.driver
import tiered.seam.handoff
import tiered.tiers.peer
import tiered.tiers.redis.tier
import worker.drain
import worker.lost
import worker.peer_server
import worker.peer_slots
import worker.second
import worker.share
import worker.tenants
from tests.sim.loop import SimLoop, simulated_time
from tests.sim.network import Network
from tests.sim.server import SharedState
from tests.sim.threads import SimQueues, SimThreading
from tests.sim.wires import SimClient, SimConnection, SimValues, dial, listen
from tiered.pool.pool import BlockPool
from tiered.types import BlockId

COPY_S: Final = 0.15
"""What a copy out of the pool takes: what lies there at its end is what was copied."""

LOOK_S: Final = 0.3
"""Of idle_s: how often a coordinator looks whether there is something to do."""


@contextmanager
def simulated(loop: SimLoop, network: Network, shared: SharedState, *, idle_s: float) -> Iterator[None]:
    """idle_s: how often an idle node asks for what may have changed. A run costs its events, so it is less often than
    by default."""
    threading, queues = SimThreading(loop), SimQueues(loop)
    with ExitStack() as stack:
        stack.enter_context(simulated_time(loop))
        for module in (
            coordinator.view.keeper,
            tiered.pool.staging,
            tiered.seam.driver,
            tiered.seam.handoff,
            worker.peer_server,
            worker.peer_slots,
        ):
            stack.enter_context(patch.object(module, "threading", threading))
        stack.enter_context(patch.object(tiered.seam.driver, "queue", queues))
        stack.enter_context(patch.object(BlockPool, "read", _slow_read(loop)))
        for module in (worker.share, worker.tenants, worker.second, worker.lost):
            stack.enter_context(patch.object(module, "INTERVAL_S", idle_s))
        stack.enter_context(patch.object(worker.drain, "POLL_S", idle_s))
        stack.enter_context(patch.object(coordinator.view.follower, "INTERVAL_S", LOOK_S * idle_s))
        stack.enter_context(patch.object(coordinator.leader.rounds, "_LOOK_S", LOOK_S * idle_s))
        stack.enter_context(patch.object(coordinator.leader.leading, "_LOOK_S", LOOK_S * idle_s))
        tier = tiered.tiers.redis.tier
        stack.enter_context(
            patch.object(
                tier, "connect", lambda settings, timeout_s, **_: SimClient(network, shared, timeout_s=timeout_s)
            )
        )
        stack.enter_context(
            patch.object(
                tier,
                "ValueClient",
                lambda settings, _: SimValues(network, shared, timeout_s=settings.value_timeout_s),
            )
        )
        stack.enter_context(patch.object(tier, "topology_of", lambda settings: None))
        stack.enter_context(
            patch.object(
                tiered.tiers.peer,
                "connect_tcp",
                lambda host, port, timeout_s: dial(network, host, port, timeout_s=timeout_s),
            )
        )
        stack.enter_context(patch.object(tiered.tiers.peer, "Connection", SimConnection))
        stack.enter_context(patch.object(worker.peer_server, "Connection", SimConnection))
        stack.enter_context(patch.object(worker.peer_server, "_listen", lambda host, port: listen(network, host)))
        yield


def _slow_read(loop: SimLoop) -> Callable[[BlockPool, BlockId, memoryview], None]:
    read = BlockPool.read

    def slow(pool: BlockPool, block_id: BlockId, out: memoryview) -> None:
        loop.sleep(COPY_S)
        read(pool, block_id, out)

    return slow
