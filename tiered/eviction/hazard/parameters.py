"""Every number of the hazard-index policy that is not a definition, in one record; nothing here is tuned to a trace.

The hazard-index policy, docs/adr/0010-hazard-policy.md, says what was measured of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Parameters:
    """The defaults serve all; tests make the counts small, so that short histories reach every part.

    pseudo_requests:    requests' worth of made-up events with which each rate starts: few, and noise would rank;
                        many, and nothing would be learned.
    half_life_requests: what was seen so long ago counts half.
    refresh_requests:   rates and indices are computed anew after so many; between, counts alone move.
    gate_share:         while LRU would lose less than this share of all known blocks, there is nothing to gain.
    gate_requests:      over which that share is averaged.
    guard_requests:     mean requests' worth of hits that may be lost to LRU before the policy yields to it.
    pause_requests:     for how long it yields the first time; each time doubles, up to pause_requests_max.
    ghosts_each:        blocks remembered after they left, for each block that is here,
    ghosts_min:         but at least so many, since small caches learn from what they could not keep,
    ghosts_max:         and at most so many: 205 to 460 bytes each, so 120 MB at most. All of this is for one pool,
                        and tenants share it in equal parts,
    ghosts_least:       but each remembers so many, without which nothing can be learned.
    running_s_max:      a request that has not ended by then is taken to have ended: an end may be lost.
    """

    pseudo_requests: float = 30.0
    half_life_requests: int = 2_000
    refresh_requests: int = 100
    gate_share: float = 0.02
    gate_requests: int = 500
    guard_requests: float = 20.0
    pause_requests: int = 500
    pause_requests_max: int = 16_000
    ghosts_each: int = 4
    ghosts_min: int = 20_000
    ghosts_max: int = 262_144
    ghosts_least: int = 256
    running_s_max: float = 1_800.0


DEFAULTS: Final = Parameters()
