"""The two scales of the hazard-index policy: how long a request's blocks lie idle, and of what class a block is.

An age bin is "running", or a span of idle seconds since the request ended; spans double. A class groups blocks that
are expected to return alike: by score and by what the caller said, or for a reason that overrules the score. Numbers
only, no state.
"""

from __future__ import annotations

import math
from typing import Final

from tiered.types import Continues

EDGES_S: Final = (0.0, *(2.0**i for i in range(13)))
"""Bin ``j`` from 1 on begins at ``EDGES_S[j - 1]`` idle seconds and ends where the next one begins."""

RUNNING: Final = 0
FIRST_IDLE: Final = 1
N_BINS: Final = len(EDGES_S) + 1
OLDEST: Final = N_BINS - 1
OLDEST_WIDTH_S: Final = 1e5
"""The last bin is open; for the index it ends after a day or so."""

WIDTHS_S: Final = (0.0, *(EDGES_S[j] - EDGES_S[j - 1] for j in range(1, OLDEST)), OLDEST_WIDTH_S)

N_SCORES: Final = 16
SCORES_A_DOUBLING: Final = 3
SAID: Final = {Continues.UNKNOWN: 0, Continues.NO: 1, Continues.YES: 2}
"""Scores of each word of the caller have classes of their own: what the word is worth is seen from them."""

N_SCORED: Final = N_SCORES * len(SAID)
ABANDONED: Final = N_SCORED
"""The rest of a request whose conversation went on another way."""
CLOSED: Final = N_SCORED + 1
"""The caller said that it is over, or its time to live has passed."""
LAST: Final = N_SCORED + 2
"""The last block of a request: often a partial one, which no other prompt continues."""
UNNAMED: Final = N_SCORED + 3
"""Stored by somebody who did not say for which request."""
SHARED: Final = N_SCORED + 4
"""The first of those through which 2-3, 4-7, ... 64 and more conversations started."""
N_SHARED: Final = 6
N_CLASSES: Final = SHARED + N_SHARED


def score_class(rate: float, said: Continues) -> int:
    """Of a block that is expected to return ``rate`` times as often as the average one."""
    score = math.floor(math.log2(rate) * SCORES_A_DOUBLING + N_SCORES / 2)
    return SAID[said] * N_SCORES + max(0, min(N_SCORES - 1, score))


def shared_class(n_starts: int) -> int:
    """Of a block that is the beginning of so many conversations, two at least."""
    return SHARED + min(N_SHARED, n_starts.bit_length() - 1) - 1


def expected_ratio(block_class: int) -> float:
    """How often a block of the class returns compared with the average, before anything is known."""
    if block_class < N_SCORED:
        return float(2.0 ** ((block_class % N_SCORES + 0.5 - N_SCORES / 2) / SCORES_A_DOUBLING))
    if block_class == UNNAMED:
        return 1.0
    return 2.0 if block_class >= SHARED else 0.2
