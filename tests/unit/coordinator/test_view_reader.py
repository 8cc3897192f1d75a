"""Reading the shared state while it changes."""

from __future__ import annotations

from coordinator.view.reader import ClusterReader
from coordinator.view.snapshot import assemble
from tests.unit.coordinator.builders import node_info, node_stats, tokens
from tests.unit.coordinator.conftest import Parts
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.types import Epoch, NodeId, NodeView, TenantId, TenantStats, TokenCounts

N1 = NodeId("n1")


class LeavesAfterListing(Membership):
    """A node is listed, and leaves before anything else is read."""

    ending: Epoch | None = None

    def nodes(self) -> list[NodeView]:
        listed = super().nodes()
        if self.ending is not None:
            self.leave(N1, self.ending)
            self.ending = None
        return listed


class LeavesBeforeListing(LeavesAfterListing):
    """The retired sums are read, and a node leaves before the members are."""

    def retired_tokens(self) -> dict[TenantId, TokenCounts]:
        sums = super().retired_tokens()
        if self.ending is not None:
            self.leave(N1, self.ending)
            self.ending = None
        return sums


def check_that_tokens_count_once(parts: Parts, membership: LeavesAfterListing) -> None:
    epoch = membership.join(node_info("n1"), lease_ttl_s=60.0)
    stats = node_stats(acme=TenantStats(tokens=tokens(hot=8, missed=2)))
    membership.renew(N1, epoch, stats, lease_ttl_s=60.0)
    reader = ClusterReader(
        membership=membership, ledger=parts.ledger, tenants=parts.tenants, shares=Shares(parts.client, parts.keys)
    )
    membership.ending = epoch
    view = assemble(reader.read(), taken_at=0.0)
    assert membership.ending is None
    assert view.nodes == ()
    assert view.tokens == tokens(hot=8, missed=2)


def test_a_node_that_leaves_between_two_reads_is_not_counted_twice(parts: Parts) -> None:
    check_that_tokens_count_once(parts, LeavesAfterListing(parts.client, parts.keys))


def test_a_node_that_leaves_between_two_reads_is_not_missed(parts: Parts) -> None:
    check_that_tokens_count_once(parts, LeavesBeforeListing(parts.client, parts.keys))
