"""Which tenant gives a block back first when the pool is full.

The tenant furthest above its weighted share gives; nobody gives below its reserved bytes while another stands above
its own. Idle share is lent: a tenant alone may fill the pool, and gives when others come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tiered.tenancy.ledger import HotLedger
from tiered.types import TenantId


def giving_order(
    ledger: HotLedger,
    *,
    asking: TenantId,
    asked_bytes: int,
    block_bytes: int,
    leaving_bytes: Mapping[TenantId, int],
) -> Iterable[TenantId]:
    """Tenants that may give a block so that ``asking`` can have one, in the order in which they should.

    A tenant's standing is its borrowed bytes (above what is reserved) per unit of weight. The asking tenant counts
    with what it asks for, so that between equals the asker gives and nobody is flushed by who comes last. Nor does
    anybody who stands below the asker give to it, even where all of the asker's own blocks are in use.
    A tenant gives to nobody but itself what its reserved bytes cover, in part or in whole.

    asked_bytes:   the block asked for and the room made before it, free or still on its way.
    leaving_bytes: charged still, but on their way out; a tenant has given them already.
    """
    charged = dict(ledger.tenants())
    if charged.keys() == {asking}:  # nobody else is here to compare with
        return [asking]
    # Who holds nothing gets in between equals; else, with no block to give, it could never begin.
    begins = asking not in charged
    if asking:  # else nobody in particular asks: room is made ahead of need
        charged.setdefault(asking, 0)
    standings: list[tuple[float, bool, TenantId]] = []
    for tenant, used in charged.items():
        policy = ledger.policy(tenant)
        borrowed = used - leaving_bytes.get(tenant, 0) - ledger.reserved_bytes(tenant)
        if tenant == asking:
            standings.append(((borrowed + asked_bytes) / policy.weight, not begins, tenant))
        elif borrowed >= block_bytes:
            standings.append((borrowed / policy.weight, begins, tenant))
    standings.sort(reverse=True)
    order = [tenant for _, _, tenant in standings]
    return order[: order.index(asking) + 1] if asking in order else order
