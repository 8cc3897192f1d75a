"""The Gittins index: how many hits a block-second of keeping earns, if one stops keeping at the best time.

Hits per block-second, so the size of what is kept cancels. It is low for what is surely over, and rises towards the
time at which something usually returns. A pure function of rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiered.eviction.hazard.classes import N_BINS, RUNNING, WIDTHS_S


def gittins(hazards: Sequence[float], *, service_s: float) -> list[float]:
    """For each age bin the largest, over the bins at whose end one may stop, of
    P(returns before) / E[seconds kept until it returns or one stops].

    hazards:   returns a second in each bin, above 0; constant within a bin.
    service_s: what a running request is kept in any case before its idle time begins.
    """
    within_bin = [-math.expm1(-rate * width) for rate, width in zip(hazards, WIDTHS_S, strict=True)]
    indices = []
    for begin in range(N_BINS):
        still_here, returned, best = 1.0, 0.0, 0.0
        kept_s = service_s if begin == RUNNING else 0.0
        for age_bin in range(max(begin, RUNNING + 1), N_BINS):
            returns_here = still_here * within_bin[age_bin]
            returned += returns_here
            kept_s += returns_here / hazards[age_bin]
            still_here -= returns_here
            best = max(best, returned / kept_s)
        indices.append(best)
    return indices
