"""Blocks that were found bad of late, as the nodes remember them; asked for no more than every few seconds.

Owns how often the nodes are asked, however many pages look. What a bad block is, the nodes know.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from coordinator.view.explainer import Explainer
from coordinator.view.snapshot import ClusterView
from tiered.types import TenantId

KINDS: Final = frozenset({"corrupt", "torn"})
KEPT_S: Final = 600.0
N_MAX: Final = 100
ASK_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """told_at: by the clocks of those that told."""

    at: float
    told_at: tuple[float, ...]


class BadBlocks:
    """now: by the clock that intervals are measured with; wall: by that of the day."""

    def __init__(self) -> None:
        self._asked: dict[TenantId | None, _Asked] = {}
        self._asking = threading.Lock()

    def ages_s(
        self, explainer: Explainer, view: ClusterView, tenant: TenantId | None, *, now: float, wall: float
    ) -> list[float]:
        """Of those that the tenant may see; None sees all. Bounded by the explainer's deadlines."""
        with self._asking:
            self._asked = {who: each for who, each in self._asked.items() if now - each.at < ASK_EVERY_S}
            asked = self._asked.get(tenant)
            if asked is None:
                events, _, _ = explainer.recent(
                    view, node=None, of_tenant="", what=KINDS, after=None, n_max=N_MAX, tenant=tenant
                )
                asked = self._asked[tenant] = _Asked(now, tuple(event.at for event in events))
        ages = (max(0.0, wall - at) for at in asked.told_at)
        return [age_s for age_s in ages if age_s <= KEPT_S]
