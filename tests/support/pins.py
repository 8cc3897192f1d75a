"""Pins that end before whoever reads under them is done."""

from __future__ import annotations

from tiered.client.local import LocalClient
from tiered.core.lease import Lease
from tiered.core.release import release


def overwrite_pinned(client: LocalClient) -> None:
    """End what matches hold, as the lapse of their lease does, and let other bytes be where they read."""
    leases: list[Lease] = list(client.core.leases.values())
    for lease in leases:
        blocks = list(lease.pinned)
        release(client.core, lease, used_tokens=0)
        client.pool.tensor[blocks] *= -3
