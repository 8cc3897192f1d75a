"""Short words for a policy that is told of whole requests: contents are numbers, paths are lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.unit.eviction.builders import insert, key_of
from tiered.blocks.record import NO_PARENT
from tiered.eviction.hazard.parameters import Parameters
from tiered.eviction.hazard.policy import HazardPolicy
from tiered.types import NO_HINTS, BlockHash, BlockId, Hints

QUICK = Parameters(
    pseudo_requests=0.5,
    half_life_requests=200,
    refresh_requests=4,
    gate_requests=5,
    guard_requests=0.5,
    pause_requests=3,
    pause_requests_max=8,
    ghosts_each=1,
    ghosts_min=4,
    ghosts_max=14,
    running_s_max=50.0,
)
"""Counts so small that a short history reaches every part."""

NEVER_LRU = Parameters(refresh_requests=10, pseudo_requests=1.0, gate_share=-1.0, guard_requests=1e9)
"""Learns quickly, and the index always decides."""


def keys(contents: Iterable[int]) -> list[BlockHash]:
    return [key_of(content) for content in contents]


class Engine:
    """Serves requests from a cache of so many blocks as the core would: found, made room for, stored, ended."""

    def __init__(self, n_blocks: int, parameters: Parameters = NEVER_LRU) -> None:
        self.policy = HazardPolicy(n_blocks, parameters)
        self.n_blocks = n_blocks
        self.now = 0.0
        self.n_requests = 0
        self._id_of: dict[int, int] = {}
        self._content_of: dict[int, int] = {}

    @property
    def cached(self) -> set[int]:
        return set(self._id_of)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def look_up(self, path: Sequence[int], hints: Hints = NO_HINTS) -> int:
        self.n_requests += 1
        self.policy.on_request(self.n_requests, keys(path), now=self.now, hints=hints)
        return self.n_requests

    def serve(self, path: Sequence[int], hints: Hints = NO_HINTS, *, service_s: float = 0.0) -> int:
        """Returns how many blocks, from the first on, were found."""
        request = self.look_up(path, hints)
        n_found = next((i for i, content in enumerate(path) if content not in self._id_of), len(path))
        for content in path[:n_found]:
            self.policy.on_hit(BlockId(self._id_of[content]))
        self.store(path)
        self.now += service_s
        self.policy.on_end(request, now=self.now, output_tokens=None)
        return n_found

    def store(self, path: Sequence[int]) -> None:
        """What of the path is not cached, deepest first; others leave for it."""
        lacking = [content for content in path if content not in self._id_of]
        for content in lacking:
            block_id = self._evict(path) if len(self._id_of) == self.n_blocks else self._free_id()
            self._id_of[content], self._content_of[block_id] = block_id, content
        parents = dict(zip(path[1:], path, strict=False))
        for content in reversed(lacking):
            above = self._id_of[parents[content]] if content in parents else NO_PARENT
            insert(self.policy, self._id_of[content], content=content, parent=above)

    def evict(self) -> int:
        """Returns the content that left."""
        block_id = next(self.policy.victims())
        self.policy.on_remove(block_id)
        content = self._content_of.pop(block_id)
        del self._id_of[content]
        return content

    def order(self) -> list[int]:
        return [self._content_of[block_id] for block_id in self.policy.victims()]

    def _evict(self, kept: Sequence[int]) -> int:
        pinned = {self._id_of[content] for content in kept if content in self._id_of}
        block_id = next(block_id for block_id in self.policy.victims() if block_id not in pinned)
        self.policy.on_remove(block_id)
        del self._id_of[self._content_of.pop(block_id)]
        return block_id

    def _free_id(self) -> int:
        return next(i for i in range(self.n_blocks) if i not in self._content_of)
