"""Looks in every round whether the partitions have what the policies give, and has it dealt anew if not.

What a crash may leave undone, and how it is put right, is :mod:`tiered.cluster.allotments`' business; here is only
how often. Two coordinators that do so at once do no harm: the later deal wins.
"""

from __future__ import annotations

from tiered.cluster.allotments import Allotments
from tiered.log import get_logger

log = get_logger(__name__)


class DealTask:
    def __init__(self, allotments: Allotments) -> None:
        self._allotments = allotments

    def round(self) -> None:
        """One look, blocking. Errors: UNREADABLE."""
        if self._allotments.repair():
            log.info("tenants' bounds dealt to the partitions anew")
