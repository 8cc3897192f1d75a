"""When to leave it to LRU: where that has nothing to lose (the gate), and where it has been better (the guard).

What an LRU of the same size would hit costs one counter a request: it holds what the newest requests used, as far as
that is together no more than the cache. By whole requests, so it is a few points low where single ones exceed the
cache. Knows numbers of requests and of blocks, no block.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tiered.eviction.hazard.parameters import Parameters

LOSS_ALLOWED: Final = 1.01
"""Own hits count this much more than LRU's, so that equal ones never add up to a loss."""
SLOW_MEAN: Final = 0.002
LENGTH_AT_FIRST: Final = 10.0


class ShadowLru:
    """What the newest requests used last, ``n_blocks`` of it at most but always the newest request's."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, int] = OrderedDict()
        """Blocks by the request that used them last, oldest first; those beyond the size are not here."""
        self._n_blocks = 0

    def __len__(self) -> int:
        """Requests that are remembered."""
        return len(self._used)

    def leave(self, number: int, n_blocks: int) -> int:
        """Blocks that this request had used last are used anew or forgotten. Returns how many of them were held."""
        used = self._used.get(number)
        if used is None:
            return 0
        self._n_blocks -= n_blocks
        if used == n_blocks:
            del self._used[number]
        else:
            self._used[number] = used - n_blocks
        return n_blocks

    def use(self, number: int, n_blocks: int, *, capacity: int) -> None:
        """A new request, or more of the newest."""
        self._used[number] = self._used.get(number, 0) + n_blocks
        self._n_blocks += n_blocks
        while self._n_blocks > capacity and len(self._used) > 1:
            self._n_blocks -= self._used.popitem(last=False)[1]

    def grow(self, number: int, n_blocks: int) -> None:
        """An earlier request turns out to have used more."""
        if number in self._used:
            self._used[number] += n_blocks
            self._n_blocks += n_blocks


class Safety:
    """Watches both; ``prefers_lru`` says how the next victims are chosen."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._lru_hits = 0.0
        self._known_blocks = 0.0
        self._lost = 0.0
        self._mean_length = LENGTH_AT_FIRST
        self._n_requests = 0
        self._pause = parameters.pause_requests
        self._paused_until: int | None = None

    @property
    def prefers_lru(self) -> bool:
        return self._paused_until is not None or (
            self._lru_hits > self._known_blocks * (1.0 - self._parameters.gate_share)
        )

    def note_request(self, *, n_blocks: int, n_known: int, hits: int, lru_hits: int) -> None:
        """n_known: of its blocks, those known without a gap. hits, lru_hits: ours among them, and what LRU's were."""
        parameters = self._parameters
        self._lru_hits += (lru_hits - self._lru_hits) / parameters.gate_requests
        self._known_blocks += (n_known - self._known_blocks) / parameters.gate_requests
        self._mean_length += SLOW_MEAN * (n_blocks - self._mean_length)
        if self._paused_until is not None:
            if self._n_requests > self._paused_until:
                self._paused_until = None
        else:
            self._lost = max(0.0, self._lost + lru_hits - LOSS_ALLOWED * hits)
            if self._lost > parameters.guard_requests * self._mean_length:
                self._paused_until = self._n_requests + self._pause
                self._pause = min(2 * self._pause, parameters.pause_requests_max)
                self._lost = 0.0
        self._n_requests += 1
