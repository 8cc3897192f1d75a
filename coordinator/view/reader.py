"""Reads everything the view is made of from the shared state.

Owns the order of the reads, which is what makes them agree with one another. It adds nothing up.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pydantic

from coordinator.view.snapshot import Readings
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.errors import TierError

UNREADABLE: Final = (TierError, msgspec.MsgspecError, pydantic.ValidationError)
"""Redis did not answer, or holds a record that we cannot decode, such as one of a newer version."""

_TRIES: Final = 3
"""Two retirements within two round trips are rare already."""


class ClusterReader:
    def __init__(self, *, membership: Membership, ledger: RedisLedger, tenants: Tenants, shares: Shares) -> None:
        self._membership = membership
        self._ledger = ledger
        self._tenants = tenants
        self._shares = shares

    def read(self) -> Readings:
        """Blocking; each round trip is bounded by the client. Errors: UNREADABLE.

        A node that is retired between two reads would be counted twice or not at all, so the members are read
        between two equal readings of the retired sums.
        """
        retired = self._membership.retired_tokens()
        nodes = self._membership.nodes()
        for _ in range(_TRIES):
            retired_after = self._membership.retired_tokens()
            if retired_after == retired:
                break
            retired, nodes = retired_after, self._membership.nodes()
        return Readings(
            nodes=tuple(nodes),
            policies=self._tenants.readable()[0],
            redis=self._ledger.usage(),
            retired=retired,
            lent=self._shares.books().lent,
            redis_capacity_bytes=self._tenants.capacity(),
        )
