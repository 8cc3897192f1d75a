"""What befalls a cluster: processes die, stop for a while and come back, ways are cut, messages are lost, all is
forgotten.

Owns what may happen and when; every fault ends by itself, and at the end of :meth:`Faults.run` all are over.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.loop import Host
from tests.sim.network import SHARED, Weather
from tiered.cluster.drains import Drains

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class Faults:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.begun: Counter[str] = Counter()
        self._kinds = {
            self._kill: 4,
            self._restart_at_once: 2,
            self._pause: 4,
            self._cut: 4,
            self._storm: 3,
            self._wane: 2,
            self._kill_coordinator: 2,
            self._pause_coordinator: 2,
            self._forget: 1,
            self._lose_keys: 3,
            self._join: 1,
            self._leave: 1,
            self._drain: 2,
            self._usurp: 1,
            self._kill_engines: 3,
            self._change_limits: 2,
        }

    async def run(self, span_s: float, n_faults: int) -> None:
        running: list[asyncio.Future[None]] = []
        pause_s = span_s / max(1, n_faults)
        ends_at = self._cluster.loop.time() + span_s
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            if self._cluster.loop.time() >= ends_at:
                break
            [kind] = self._rng.choices(list(self._kinds), list(self._kinds.values()))
            self.begun[kind.__name__.strip("_")] += 1
            running.append(asyncio.ensure_future(kind()))
        await asyncio.gather(*running)
        self._cluster.calm()

    # Nodes.

    def _any_node(self) -> str:
        return self._rng.choice(sorted(self._cluster.nodes))

    async def _kill(self) -> None:
        await self._restart(self._any_node(), self._rng.uniform(0.5, 9.0))

    async def _restart_at_once(self) -> None:
        """Within one heartbeat."""
        await self._restart(self._any_node(), self._rng.uniform(0.01, 0.3))

    async def _restart(self, name: str, down_s: float) -> None:
        node = self._cluster.nodes[name]
        if not node.host.alive:
            return
        self._cluster.kill(node.host)
        await asyncio.sleep(down_s)
        if not self._cluster.nodes[name].host.alive:
            self._cluster.start_node(name)

    async def _pause(self) -> None:
        await self._freeze(self._cluster.nodes[self._any_node()].host)

    async def _freeze(self, host: Host) -> None:
        """For longer than a lease, as often as not."""
        if not host.alive or host.frozen:
            return
        seconds = self._rng.uniform(0.2, 9.0)
        self._cluster.note(f"{host.name} stops for {seconds:.2f} s")
        self._cluster.loop.pause(host)
        await asyncio.sleep(seconds)
        if host.alive:
            self._cluster.note(f"{host.name} goes on")
            self._cluster.loop.resume(host)

    async def _join(self) -> None:
        self._cluster.start_node(f"w{len(self._cluster.nodes)}")

    async def _leave(self) -> None:
        """In order; another comes in its place."""
        name = self._any_node()
        node = self._cluster.nodes[name]
        if not node.is_ready or node.host.frozen:
            return
        leaving = self._cluster.loop.spawn(node.host, node.leave())
        await asyncio.wait([leaving], timeout=5.0)
        if node.host.alive:
            await self._restart(name, self._rng.uniform(0.1, 3.0))

    async def _drain(self) -> None:
        """Asked to leave in order while its process goes on; called off, or killed in the middle of it."""
        cluster, name = self._cluster, self._any_node()
        drains, node = Drains(cluster.client, cluster.keys), cluster.nodes[name]
        drains.ask(node.name, node.membership._life)
        cluster.note(f"{name} is to drain")
        await asyncio.sleep(self._rng.uniform(0.5, 8.0))
        if self._rng.random() < 0.5:
            await self._restart(name, self._rng.uniform(0.1, 3.0))
        drains.cancel(node.name)
        cluster.note(f"{name} need not drain")

    async def _usurp(self) -> None:
        """Another process with the same name, for a while."""
        other = self._cluster.start_node(self._any_node(), beside=True)
        await asyncio.sleep(self._rng.uniform(1.0, 12.0))
        self._cluster.kill(other.host)
        self._cluster.others.remove(other)

    async def _kill_engines(self) -> None:
        """In the middle of what they do, halves of blocks written."""
        for task in list(self._cluster.engines):
            if self._rng.random() < 0.5:
                task.cancel()

    # Coordinators.

    async def _kill_coordinator(self) -> None:
        name = self._rng.choice(sorted(self._cluster.coordinators))
        host = self._cluster.coordinators[name].host
        if not host.alive:
            return
        self._cluster.kill(host)
        await asyncio.sleep(self._rng.uniform(0.1, 8.0))
        self._cluster.start_coordinator(name)

    async def _pause_coordinator(self) -> None:
        await self._freeze(self._cluster.coordinators[self._rng.choice(sorted(self._cluster.coordinators))].host)

    # Ways.

    async def _cut(self) -> None:
        hosts = [
            process.host.name for process in (*self._cluster.nodes.values(), *self._cluster.coordinators.values())
        ]
        sides = {name: self._rng.randrange(2) for name in (*hosts, SHARED)}
        if self._rng.random() < 0.5:  # one alone
            sides = {self._rng.choice(hosts): 1}
        self._cluster.note(f"cut: {sides}")
        self._cluster.network.cut(sides)
        await asyncio.sleep(self._rng.uniform(0.5, 9.0))
        self._cluster.note("healed")
        self._cluster.network.heal()

    async def _storm(self) -> None:
        rate = self._rng.choice((0.01, 0.05, 0.2))
        weather = Weather(delay_s=self._rng.choice((0.0005, 0.01)), lost=rate, doubled=rate, late=rate / 2)
        self._cluster.note(f"storm: {weather}")
        self._cluster.network.weather = weather
        await asyncio.sleep(self._rng.uniform(1.0, 8.0))
        self._cluster.note("calm")
        self._cluster.network.weather = Weather()

    async def _wane(self) -> None:
        """Everything takes longer and longer; then a node hears nothing more."""
        cluster = self._cluster
        name = cluster.nodes[self._any_node()].host.name
        cluster.note(f"{name} is cut off behind a slow network")
        for delay_s in (0.1, 0.4, 0.8):
            cluster.network.weather = Weather(delay_s=delay_s)
            await asyncio.sleep(self._rng.uniform(0.5, 2.0))
        cluster.network.cut({name: 1})
        cluster.network.weather = Weather()
        await asyncio.sleep(self._rng.uniform(2.0, 7.0))
        cluster.note("healed")
        cluster.network.heal()

    # The shared state.

    async def _forget(self) -> None:
        self._cluster.restart_shared()

    async def _lose_keys(self) -> None:
        """As a server does that evicts, though it was told not to: values, records, or what lives have said."""
        store, kind = self._cluster.shared.store, self._rng.choice((b":b:", b":m:", b":n:", b":d:", b":c"))
        keys = [key for key in store.live_keys() if key.partition(b"}")[2].startswith(kind)]
        if kind == b":m:":  # with the record of a stored value its charge is lost, and nobody finds that again
            keys = [key for key in keys if self._cluster.record(store.keys[key])[0] == 0]
        lost = self._rng.sample(keys, -(-len(keys) // 3))
        for key in lost:
            store.do([b"DEL", key])
        self._cluster.note(f"the server lost {len(lost)} of {len(keys)} keys of the kind {kind.decode()}")

    async def _change_limits(self) -> None:
        cluster = self._cluster
        total = cluster.plan.pool_blocks * 32 * cluster.plan.n_nodes
        limit = total // self._rng.choice((2, 3, 5, 8))
        cluster.note(f"blue may have {limit} bytes in all")
        cluster.set_policy("blue", hot_total_limit_bytes=limit, hot_total_reserved_bytes=limit // 4)
