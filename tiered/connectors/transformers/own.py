"""Blocks of a cache's own: the pool's layout in private memory, so that nobody's pin or lease ends under a reader.

Owns the memory and how many rows share each block. Refuses to know which tokens a block holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import torch

from tiered.layout import KvLayout
from tiered.pool.pool import torch_dtype
from tiered.types import BlockId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool

BLOCKS_FIRST: Final = 4
"""Room from the start. It grows by half when it is used up, so that a token is moved twice on average."""


class OwnBlocks:
    """``tensor`` is (n_blocks, n_layers, n_planes, block_tokens, n_kv_heads, head_dim) and is replaced as it grows,
    and never empty."""

    def __init__(self, layout: KvLayout, *, device: torch.device) -> None:
        self.layout = layout
        with torch.inference_mode(False):
            self.tensor = torch.empty((0, *layout.block_shape), dtype=torch_dtype(layout), device=device)
        self._users: list[int] = []
        self._free: list[int] = []
        self._grow(BLOCKS_FIRST)

    @property
    def n_used(self) -> int:
        """Blocks that somebody holds; one that many share counts once."""
        return len(self._users) - len(self._free)

    def take(self, n_blocks: int) -> list[int]:
        """Blocks for one row to write into; what they hold is undefined."""
        if n_blocks > len(self._free):
            self._grow(n_blocks - len(self._free))
        taken = self._free[len(self._free) - n_blocks :]
        del self._free[len(self._free) - n_blocks :]
        taken.reverse()
        for block in taken:
            self._users[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more row reads these blocks; none may write into them until all others have given them back."""
        for block in blocks:
            self._users[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)

    def is_shared(self, block: int) -> bool:
        return self._users[block] > 1

    def split(self, block: int) -> int:
        """A block with the same bytes that the caller alone holds, in exchange for its part of a shared one."""
        (copy,) = self.take(1)
        self.tensor[copy].copy_(self.tensor[block])
        self.give_back([block])
        return copy

    def copy_in(self, pool: BlockPool, block_ids: Sequence[BlockId]) -> list[int]:
        """Copies of blocks of a pool, in order. Whether they were whole and still are is the caller's to check."""
        blocks = self.take(len(block_ids))
        run = range(blocks[0], blocks[0] + len(blocks)) if blocks else range(0)
        if torch.device(pool.device) == self.tensor.device and blocks == list(run):
            pool.gather(block_ids, self.tensor[run.start : run.stop])  # no fresh memory in between, whose touch costs
            return blocks
        copied = torch.empty((len(blocks), *self.layout.block_shape), dtype=self.tensor.dtype, device=pool.device)
        pool.gather(block_ids, copied)
        self.tensor.index_copy_(0, self.index(blocks), copied.to(self.tensor.device))
        return blocks

    def copy_tables(self, pool: BlockPool, tables: Sequence[Sequence[BlockId]]) -> list[list[int]]:
        """Copies of block tables of a pool, for a row each. A block that stands in several of them is copied once."""
        copied: dict[BlockId, int] = {}
        for table in tables:
            fresh = [block_id for block_id in table if block_id not in copied]
            self.share(copied[block_id] for block_id in table if block_id in copied)
            if fresh:
                copied.update(zip(fresh, self.copy_in(pool, fresh), strict=True))
        return [[copied[block_id] for block_id in table] for table in tables]

    def copy_out(self, blocks: Sequence[int], pool: BlockPool, block_ids: Sequence[BlockId]) -> None:
        """Write blocks into slots of a pool, each whole."""
        pool.scatter(block_ids, self.tensor.index_select(0, self.index(blocks)).to(pool.device))

    def index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)

    def _grow(self, n_more: int) -> None:
        before = len(self.tensor)
        after = before + max(n_more, before // 2)
        with torch.inference_mode(False):  # such a tensor may be written within inference mode and after it
            grown = self.tensor.new_empty((after, *self.tensor.shape[1:]))
        grown[:before].copy_(self.tensor)
        self.tensor = grown
        self._users.extend([0] * (after - before))
        self._free[:0] = range(after - 1, before - 1, -1)
