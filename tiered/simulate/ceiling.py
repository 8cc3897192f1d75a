"""MIN: what no policy can beat on a trace, because it knows the future.

Belady (1966), with bypass: the resident block whose next use lies furthest ahead gives way, and a block is not
admitted when its own next use lies further. Ties go against the deeper block. A parent's next use is never later
than its child's, so the kept set is closed under ancestors by itself, and the plain count is the prefix-aware one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from tiered.simulate.trace import Request


def min_hits(requests: Sequence[Request], *, n_blocks: int) -> int:
    """Block hits of MIN with room for ``n_blocks``. Cost: O(accesses log n_blocks)."""
    next_use = _next_uses(requests)
    resident: dict[int, float] = {}
    furthest: list[tuple[float, int, int]] = []  # (-next use, -depth, block); entries of an older next use are stale
    hits = at = 0
    for request in requests:
        for depth, block in enumerate(request.blocks):
            use = next_use[at]
            at += 1
            if block in resident:
                hits += 1
            if use == math.inf:
                resident.pop(block, None)  # never wanted again: its room is free at once
                continue
            if block not in resident and len(resident) >= n_blocks and not _make_room(resident, furthest, use, depth):
                continue
            resident[block] = use
            heapq.heappush(furthest, (-use, -depth, block))
    return hits


def _make_room(resident: dict[int, float], furthest: list[tuple[float, int, int]], use: float, depth: int) -> bool:
    """Let the block that is used last give way, unless that is the new one itself."""
    while True:
        negative_use, negative_depth, block = furthest[0]
        if resident.get(block) != -negative_use:
            heapq.heappop(furthest)
            continue
        if (-negative_use, -negative_depth) <= (use, depth):
            return False
        heapq.heappop(furthest)
        del resident[block]
        return True


def _next_uses(requests: Sequence[Request]) -> list[float]:
    """For each access, in order, the number of the request that uses the block next, or infinity."""
    seen: dict[int, int] = {}
    reversed_uses: list[float] = []
    for number in range(len(requests) - 1, -1, -1):
        for block in reversed(requests[number].blocks):
            reversed_uses.append(seen.get(block, math.inf))
            seen[block] = number
    reversed_uses.reverse()
    return reversed_uses
