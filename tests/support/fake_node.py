"""A node that remembers and holds what a test tells it, behind a worker's real peer server, without a pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from tests.unit.coordinator.builders import node_info
from tiered.cluster.membership import Membership
from tiered.core.core import CacheCore
from tiered.errors import ProtocolError
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, Epoch
from tiered.wire.messages import Explain, Explained, Recent
from worker.explain import explain
from worker.hot_tier import Lent
from worker.peer_server import PeerServer
from worker.why import WhyRing


@dataclass(slots=True)
class FakeNode:
    name: str
    core: CacheCore | None = None
    ring: WhyRing = field(default_factory=lambda: WhyRing(events_max=1_000, bytes_max=1 << 20))
    life: Epoch = field(default_factory=lambda: Epoch(1))
    n_asked: int = 0
    broken: bool = False

    def explain(self, request: Explain | Recent) -> Explained:
        self.n_asked += 1
        if self.broken:
            raise ProtocolError("broken")
        return explain(self.core, self.ring, request)

    def epoch(self) -> int:
        return self.life

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent | None:
        return None

    def take_back(self, lent: Lent) -> None:
        raise AssertionError("nothing was lent")

    def pool(self) -> BlockPool | None:
        return None


@contextmanager
def fake_node(
    name: str, membership: Membership | None, *, secret: str = "s3", core: CacheCore | None = None
) -> Iterator[tuple[FakeNode, int]]:
    """The node and its port; a member, unless that is left out."""
    node = FakeNode(name, core=core)
    server = PeerServer("127.0.0.1", 0, node, node=name, secrets=(secret,), timeout_s=5.0)
    server.start()
    try:
        if membership is not None:
            info = msgspec.structs.replace(node_info(name), peer_host="127.0.0.1", peer_port=server.port)
            node.life = membership.join(info, lease_ttl_s=60.0)
        yield node, server.port
    finally:
        server.stop()
