"""A set of block hashes in short: two that agree in count and sum hold the same hashes.

Owns the sum, which ``lua/digest.lua`` keeps for the directory likewise. Block hashes are SHA-256, so eight of their
bytes are as good as a random number: sets that differ agree by accident once in 2^64.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tiered.types import HASH_BYTES, BlockHash


def share_of(block_hash: BlockHash) -> int:
    """What one hash adds to the sum, by exclusive or; and takes out of it again."""
    return int.from_bytes(block_hash[8:16])


@dataclass(frozen=True, slots=True)
class Digest:
    count: int = 0
    sum: int = 0

    def text(self) -> str:
        return f"{self.sum:016x}"


def digest_of(hashes: Collection[BlockHash]) -> Digest:
    """No hash twice."""
    words = np.frombuffer(b"".join(hashes), dtype=">u8").reshape(-1, HASH_BYTES // 8)
    return Digest(len(hashes), int(np.bitwise_xor.reduce(words[:, 1])))
