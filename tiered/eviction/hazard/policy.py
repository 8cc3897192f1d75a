"""The hazard-index policy, docs/adr/0010-hazard-policy.md: what is expected to return soonest for its place is kept.

Takes what the core tells of blocks and of requests to the parts beside this file, and proposes victims. Blocks whose
request nobody named are segments of one block, which age and return but teach no score.

Cost: a request O(its blocks + log segments), an insert or a removal O(log segments), the first victim O(1), each
further one O(log segments) at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered.eviction.hazard import requests
from tiered.eviction.hazard.book import Book
from tiered.eviction.hazard.parameters import DEFAULTS, Parameters
from tiered.types import BlockHash, BlockId, Hints


class HazardPolicy:
    def __init__(self, n_blocks: int, parameters: Parameters = DEFAULTS) -> None:
        self._book = Book(n_blocks, parameters)

    def __len__(self) -> int:
        return len(self._book.memory.cached)

    @property
    def n_ghosts(self) -> int:
        return self._book.memory.n_ghosts

    # Blocks.

    def on_insert(self, block_id: BlockId, *, key: BlockHash, parent: BlockId, recompute_cost: float) -> None:
        del recompute_cost  # by the index a hit is worth what its place costs
        book = self._book
        memory = book.memory
        block = memory.blocks.get(key) or book.bring(key)
        block.block_id = block_id
        memory.cached[block_id] = block
        book.tree.add(block_id, parent)
        segment = block.owner
        segment.cached_end = max(segment.cached_end, block.index + 1)
        if segment is not book.current:
            book.file(segment)
        above = memory.cached.get(parent)
        if above is not None and above.owner is not segment:
            book.file(above.owner)

    def on_hit(self, block_id: BlockId) -> None:
        book = self._book
        block = book.memory.cached[block_id]
        if not block.owner.is_running:  # else it is the use that ``on_request`` told of
            book.use(block.owner, up_to=block.index + 1)

    def on_touch(self, block_id: BlockId) -> None:
        """A request that goes on does so until ``on_end``."""

    def on_remove(self, block_id: BlockId) -> None:
        book = self._book
        memory = book.memory
        book.note_eviction()
        block = memory.cached.pop(block_id)
        block.block_id = None
        parent = book.tree.remove(block_id)
        segment = block.owner
        if segment.unnamed:
            book.bury(segment)
            del memory.blocks[block.key]
        else:
            if block.index == segment.cached_end - 1:
                segment.settle_tail()
            book.file(segment)
        above = None if parent is None else memory.cached.get(parent)
        if above is not None and above.owner is not segment:
            book.file(above.owner)

    def victims(self) -> Iterator[BlockId]:
        book = self._book
        proposed = set()
        for segment in book.filing.by_use() if book.safety.prefers_lru else book.filing.by_index():
            block_id = segment.blocks[segment.cached_end - 1 - segment.start].block_id
            assert block_id is not None  # what is filed has a cached block at that end
            proposed.add(block_id)
            yield block_id
        tail = None if book.current is None else book.current.tail()
        if tail is not None and tail.block_id is not None:
            proposed.add(tail.block_id)
            yield tail.block_id
        for block_id in book.memory.cached:
            if block_id not in proposed:
                yield block_id

    # Requests.

    def on_request(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        book = self._book
        book.advance(now)
        walk = book.memory.walk(path)
        if walk.path:
            requests.begin(book, request, walk, hints, looked_up=True)

    def on_save(self, request: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        book = self._book
        book.advance(now)
        walk = book.memory.walk(path)
        if not walk.path:
            return
        before = walk.last_owner()
        if before is not None and requests.goes_on(before, walk):
            requests.go_on(book, before, request, walk, hints)
        else:
            requests.begin(book, request, walk, hints, looked_up=False)

    def on_end(self, request: int, *, now: float, output_tokens: int | None) -> None:
        book = self._book
        book.advance(now)
        segment = book.ages.end(request, book.now, output_tokens)
        if segment is not None:
            if segment is book.current:
                book.current = None
            book.file(segment)

    def share_memory(self, n_policies: int) -> None:
        self._book.n_policies = n_policies

    def on_close(self, session: str, *, now: float) -> None:
        book = self._book
        book.advance(now)
        segment = book.sessions.get(session)
        if segment is not None and not segment.is_closed:
            book.ages.close(segment, book.now)
            book.file(segment)
