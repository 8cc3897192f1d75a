"""Which tenant gives a block back first when the pool is full.

The tenant furthest above its weighted share gives; nobody gives below its reserved bytes while another stands above
its own. Idle share is lent: a tenant alone may fill the pool, and gives when others come.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.tenancy.ledger import HotLedger
from tiered.types import TenantId


def giving_order(ledger: HotLedger, *, asking: TenantId, block_bytes: int) -> Iterable[TenantId]:
    """Tenants that may give a block so that ``asking`` can have one, in the order in which they should.

    A tenant's standing is its borrowed bytes (above what is reserved) per unit of weight. The asking tenant counts
    with the block it asks for, so that between equals the asker gives and nobody is flushed by who comes last.
    A tenant within its reserved bytes gives to nobody but itself.
    """
    standings: list[tuple[float, bool, TenantId]] = []
    for tenant, used in ledger.tenants():
        policy = ledger.policy(tenant)
        borrowed = used - policy.hot_reserved_bytes
        if tenant == asking:
            standings.append(((borrowed + block_bytes) / policy.weight, True, tenant))
        elif borrowed > 0:
            standings.append((borrowed / policy.weight, False, tenant))
    standings.sort(reverse=True)
    return [tenant for _, _, tenant in standings]
