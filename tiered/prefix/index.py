"""Block hash -> block id; longest gap-free match.

Names only blocks whose bytes are whole (I3); a match stops at the first hash that is not here (I4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered.errors import IllegalTransition
from tiered.types import BlockHash, BlockId


class PrefixIndex:
    def __init__(self) -> None:
        self._ids: dict[BlockHash, BlockId] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[BlockHash]:
        return iter(self._ids)

    def items(self) -> Iterator[tuple[BlockHash, BlockId]]:
        return iter(self._ids.items())

    def find(self, block_hash: BlockHash) -> BlockId | None:
        return self._ids.get(block_hash)

    def match(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Ids of the longest gap-free run from the first hash; empty when the first is not here."""
        found: list[BlockId] = []
        get = self._ids.get
        for block_hash in hashes:
            block_id = get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def add(self, block_hash: BlockHash, block_id: BlockId) -> None:
        if self._ids.setdefault(block_hash, block_id) != block_id:
            raise IllegalTransition(f"hash {block_hash.hex()} is already block {self._ids[block_hash]}")

    def remove(self, block_hash: BlockHash, block_id: BlockId) -> None:
        if self._ids.pop(block_hash, None) != block_id:
            raise IllegalTransition(f"hash {block_hash.hex()} was not block {block_id}")
