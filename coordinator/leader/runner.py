"""Applies what :mod:`coordinator.leader.sweep` decides, round after round.

Owns the memory of which lives were seen, and the bound on one round's work. Every step may be done twice, by us
or by another coordinator, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from coordinator.leader.sweep import Life, Seen, note, plan_sweep, settle
from tiered.cluster.directory import Directory
from tiered.cluster.membership import Membership, UnreadNode
from tiered.log import get_logger
from tiered.tenancy.copies import NO_SECONDS, TwoCopies
from tiered.types import Epoch, NodeId

log = get_logger(__name__)

_ENTRIES_PER_ROUND: Final = 200_000
"""No further life is begun after this many; the rest is for the next round, so that Redis serves others between."""


class Sweeper:
    def __init__(
        self,
        *,
        membership: Membership,
        directory: Directory,
        asked: Callable[[], TwoCopies] = lambda: NO_SECONDS,
    ) -> None:
        """asked: who asks for two copies, so that what is lost of theirs is noted; blocking."""
        self._membership = membership
        self._directory = directory
        self._asked = asked
        self._seen: Seen = {}
        self._warned_of: set[tuple[NodeId, Epoch | None]] = set()
        self.lost = 0
        """Lives that this replica has struck off because their lease had lapsed."""

    @property
    def seen(self) -> Seen:
        """Lives that may still have entries in the directory."""
        return self._seen

    def round(self) -> None:
        """One bounded round, blocking. Errors: UNREADABLE; what was done so far stays done."""
        nodes, unread = self._membership.readable()
        self._warn(unread)
        plan = plan_sweep(nodes, self._seen, unread)
        self._seen = note(self._seen, nodes, unread)
        retired = [life for life in plan.retire if self._membership.retire(life.node, life.epoch)]
        self.lost += len(retired)
        for life in retired:
            log.info("node retired", node=life.node, epoch=life.epoch)
        swept: set[Life] = set()
        empty: set[Life] = set()
        entries_left = _ENTRIES_PER_ROUND
        two = self._asked() if retired or plan.sweep else NO_SECONDS
        for life in (*retired, *plan.sweep):
            if entries_left <= 0:
                break
            removed = self._directory.sweep(life.node, life.epoch, two=two)
            entries_left -= removed
            swept.add(life)
            if removed:
                log.info("directory swept", node=life.node, epoch=life.epoch, entries=removed)
            if self._directory.count(life.node, life.epoch) == 0:
                empty.add(life)
        self._seen = settle(self._seen, swept=swept, empty=empty)

    def _warn(self, unread: Sequence[UnreadNode]) -> None:
        """Once of each, until all can be read again."""
        now = {(one.node, one.epoch) for one in unread}
        for node, epoch in sorted(now - self._warned_of, key=str):
            log.warning(
                "a node's entry or stats cannot be read: it is not shown, and no share of any total is lent anew "
                "while it is registered",
                node=node,
                epoch=epoch,
            )
        self._warned_of = self._warned_of | now if now else set()
