"""Why: what happened to blocks in this core, kept until the host takes it away, stamps it and shows it.

Owns the bound. What is worth noting is for each verb to say.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tiered.types import BlockHash, Happening, Source

UNTAKEN_MAX: Final = 65_536
"""Between two turns of a host; older ones are lost then, and counted."""


@dataclass(slots=True)
class WhyLog:
    lost: int = 0
    _happenings: deque[Happening] = field(default_factory=deque)

    def note(
        self,
        what: str,
        block_hash: BlockHash,
        tenant: str,
        *,
        tier: str = Source.HOT.value,
        n_blocks: int = 1,
        **detail: int | float | str,
    ) -> None:
        if len(self._happenings) >= UNTAKEN_MAX:
            self._happenings.popleft()
            self.lost += 1
        self._happenings.append(Happening(what, block_hash, tenant, tier, n_blocks, detail))

    def take(self) -> list[Happening]:
        """All since the last time, oldest first."""
        taken, self._happenings = list(self._happenings), deque()
        return taken
