"""What a coordinator found in the shared state when it started: what it goes on with, what it left aside, and why.

Taken once, as soon as Redis answers. It changes nothing: what is left aside here is cleared by the leader's rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.server.promises import total_overpromise
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Books, Shares
from tiered.cluster.tenants import Tenants
from tiered.log import get_logger
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeId, NodeView, TenantId

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """what: ``policy``, ``share``, ``life`` or ``reservation``; name: whose."""

    what: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Stock:
    """n_shares: of lives that still run. capacity_bytes: of the Redis tier."""

    n_policies: int
    capacity_bytes: int | None
    n_shares: int
    n_lives: int
    dropped: tuple[Dropped, ...]


class StockTask:
    def __init__(self, *, tenants: Tenants, membership: Membership, shares: Shares) -> None:
        self._tenants = tenants
        self._membership = membership
        self._shares = shares
        self.taken: Stock | None = None

    def is_due(self) -> bool:
        return self.taken is None

    def round(self) -> None:
        """Blocking. Errors: UNREADABLE; the stock is then still to be taken."""
        policies, unreadable = self._tenants.readable()
        stock = take_stock(
            policies,
            unreadable,
            nodes=self._membership.nodes(),
            books=self._shares.books(),
            capacity_bytes=self._tenants.capacity(),
        )
        for dropped in stock.dropped:
            log.warning("not restored", what=dropped.what, name=dropped.name, why=dropped.why)
        log.info(
            "restored",
            policies=stock.n_policies,
            capacity_bytes=stock.capacity_bytes,
            shares=stock.n_shares,
            lives=stock.n_lives,
        )
        self.taken = stock


def take_stock(
    policies: Mapping[TenantId, TenantPolicy],
    unreadable: Mapping[TenantId, str],
    *,
    nodes: Sequence[NodeView],
    books: Books,
    capacity_bytes: int | None,
) -> Stock:
    """The policies include the default one, whether stored or not."""
    alive = [node for node in nodes if node.alive]
    epochs = {NodeId(node.info.node): node.epoch for node in alive}
    kept = {node for node, record in books.lent.items() if epochs.get(node) == record.epoch}
    dropped = [
        *(Dropped("policy", tenant, f"it cannot be read: {why}") for tenant, why in sorted(unreadable.items())),
        *(Dropped("share", name, f"it cannot be read: {why}") for name, why in sorted(books.unreadable.items())),
        *(
            Dropped("share", node, f"the life it was lent to, epoch {books.lent[node].epoch}, has ended")
            for node in sorted(books.lent.keys() - kept)
        ),
        *(
            Dropped("life", node.info.node, f"its lease has lapsed, epoch {node.epoch}")
            for node in nodes
            if not node.alive
        ),
        *_beyond(policies.values(), alive),
    ]
    return Stock(len(policies), capacity_bytes, len(kept), len(alive), tuple(dropped))


def _beyond(policies: Iterable[TenantPolicy], alive: Sequence[NodeView]) -> list[Dropped]:
    beyond = total_overpromise(policies, alive)
    if beyond is None:
        return []
    asked, exists = beyond
    why = (
        f"{asked} bytes are reserved for all tenants together and {exists} exist; total reservations are scaled down"
    )
    return [Dropped("reservation", "hot", why)]
