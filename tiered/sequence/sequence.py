"""TokenSequence: the tokens of one request, their hashes, the blocks they lie in, and how far they are computed.

Owns the arithmetic between tokens, blocks and slots. Refuses to know which blocks are free or shared: the moves of a
sequence are in ``core.sequences``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiered.hashing.chain import Extras, chain_hashes, token_array
from tiered.types import BlockHash, BlockId, SequenceId, TenantId


@dataclass(frozen=True, slots=True)
class Extension:
    """Tokens about to be appended, and the hashes of the blocks that they fill.

    first_token: how long the sequence was when this was made; it fits no other length.
    """

    first_token: int
    tokens: array[int]
    hashes: Sequence[BlockHash]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The first ``n_tokens`` of ``source`` have to be copied to ``target`` before anything else is written there."""

    source: BlockId
    target: BlockId
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append found and took.

    first_token:  the engine computes and writes from here on; what lies before was cached. It may be the end: then
                  nothing is to be written, and a model that needs the last token's output runs it without writing.
    end_token:    the new length.
    reused:       blocks taken over whole, in order. allocated: fresh ones, in order, the target of a copy first.
    copy:         to be made before writing, then reported with ``copied``.
    """

    first_token: int
    end_token: int
    reused: tuple[BlockId, ...] = ()
    allocated: tuple[BlockId, ...] = ()
    copy: BlockCopy | None = None

    @property
    def n_to_write(self) -> int:
        return self.end_token - self.first_token


@dataclass(slots=True)
class TokenSequence:
    """State of one sequence; only ``core.sequences`` changes it.

    block_ids:  one for each begun block, all pinned by this sequence, in order.
    n_ready:    the first so many are READY: never written again. Of those the last may be in use in part only, after
                a truncate. What follows is open, or full and in nobody's index as far as this sequence knows.
    n_written:  tokens whose keys and values are in place.
    hashes:     of the full blocks.
    checksums:  by index, of full blocks that are not READY yet.
    copy:       still to be made; its source is pinned until then.
    counted:    its prompt is in the tenant's books.
    is_private: what becomes whole stays its own until ``share``; never else.
    gave:       how many blocks of whom have left for it, its own tenant among them.
    has_grown:  blocks became resident under it; see :func:`tiered.core.match.touch_prefix`.
    """

    sequence_id: SequenceId
    connection: int
    tenant: TenantId
    scope_id: bytes
    block_tokens: int
    extras: Extras | None = None
    tokens: array[int] = field(default_factory=lambda: array("I"))
    hashes: list[BlockHash] = field(default_factory=list)
    block_ids: list[BlockId] = field(default_factory=list)
    checksums: dict[int, bytes | None] = field(default_factory=dict)
    n_ready: int = 0
    n_written: int = 0
    copy: BlockCopy | None = None
    gave: Counter[TenantId] = field(default_factory=Counter)
    counted: bool = False
    is_private: bool = False
    has_grown: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_unwritten(self) -> int:
        return len(self.tokens) - self.n_written

    def extension(self, tokens: Sequence[int]) -> Extension:
        """Prepare an append; changes nothing, so that hashing needs no lock but the sequence's own.

        Errors: ValueError when a token is not an integer in [0, 2**32).
        """
        added = token_array(tokens)
        n_full = len(self.hashes)
        tail = self.tokens[n_full * self.block_tokens :]
        hashes = chain_hashes(
            self.hashes[-1] if self.hashes else self.scope_id,
            tail + added,
            block_tokens=self.block_tokens,
            extras=self.extras,
            first_index=n_full,
        )
        return Extension(len(self.tokens), added, hashes)

    def slots(self, first_token: int, end_token: int) -> list[int]:
        """Where the tokens [first_token, end_token) lie: ``block_id * block_tokens + offset`` each."""
        size, block_ids = self.block_tokens, self.block_ids
        return [block_ids[i // size] * size + i % size for i in range(first_token, end_token)]

    def completed_by(self, n_tokens: int) -> list[BlockId]:
        """Blocks that are whole once ``n_tokens`` more are written, and were not before."""
        size = self.block_tokens
        return self.block_ids[self.n_written // size : (self.n_written + n_tokens) // size]
