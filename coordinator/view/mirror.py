"""The directory in memory: which lives of nodes hold which block, and which blocks Redis has.

Owns that copy and the rules by which entries change it. It is fed by :mod:`coordinator.view.follower`, its one
writer, and reads no clock and no Redis. Readers may look at any time: what they see is a hint (I7), at worst with one
entry half applied.

A block is 16 bytes of its hash and one number: bit 0 for Redis, one bit for each life. Equal numbers are one object,
and a cluster has few of them, so a block costs what its key and its place in a dict cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tiered.types import HASH_BYTES, BlockHash, Epoch, NodeId

REDIS_BIT: Final = 1
UNLOADED: Final = -1
"""In place of a partition's position: it has to be loaded whole."""

KEY_BYTES: Final = 16
"""Of a hash: two of a billion blocks are alike with a chance of one in 10^20, and then a hint is wrong."""

_SHARED_MAX: Final = 65_536
"""Different numbers remembered so as to be shared: forgetting them costs memory, nothing else."""

_PASSED_OVER_MAX: Final = 4_096


class Life(NamedTuple):
    node: NodeId
    epoch: Epoch


REDIS: Final = Life(NodeId(""), Epoch(0))
"""Stands for the shared tier where a life is named."""


@dataclass(frozen=True, slots=True)
class MirrorCounts:
    """blocks: known to be anywhere. in_redis: of them. lives: that hold some, or may. ended: that are still being
    cleared away. unloaded: partitions that have to be loaded before they say anything."""

    blocks: int = 0
    in_redis: int = 0
    lives: int = 0
    ended: int = 0
    unloaded: int = 0


@dataclass(slots=True)
class _Part:
    """One partition: position is the number of the last entry in it."""

    masks: dict[bytes, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    position: int = UNLOADED


class Mirror:
    def __init__(self, partitions: int = 1) -> None:
        self._parts = [_Part() for _ in range(partitions)]
        self._bits: dict[Life, int] = {}
        self._epochs: dict[NodeId, Epoch] = {}  # of the one life of each node that counts
        self._members: Mapping[NodeId, Epoch] = {}
        self._horizon = 0
        self._passed_over: dict[Life, None] = {}
        self._ended_bits = 0
        self._clearing: Iterator[None] | None = None
        self._free: deque[int] = deque()
        self._n_bits = 1
        self._shared: dict[int, int] = {}

    # What readers ask.

    @property
    def partitions(self) -> int:
        return len(self._parts)

    def masks(self, hashes: Sequence[BlockHash]) -> list[int]:
        """For each block the bits of who has it; 0 for one that nobody has. Cost: 0.1 us a block."""
        if len(self._parts) == 1:
            get = self._parts[0].masks.get
            return [get(block_hash[:KEY_BYTES], 0) for block_hash in hashes]
        parts = [part.masks for part in self._parts]
        low_bits = len(parts) - 1
        return [parts[block_hash[0] & low_bits].get(block_hash[:KEY_BYTES], 0) for block_hash in hashes]

    def bit(self, node: NodeId, epoch: Epoch) -> int:
        """Of a life; 0 for one that is not known to hold anything."""
        return self._bits.get(Life(node, epoch), 0)

    @property
    def lives(self) -> Mapping[Life, int]:
        """The bit of each."""
        return dict(self._bits)

    @property
    def counts(self) -> MirrorCounts:
        return MirrorCounts(
            blocks=sum(len(part.masks) for part in self._parts),
            in_redis=sum(part.counts.get(REDIS_BIT, 0) for part in self._parts),
            lives=len(self._bits),
            ended=self._ended_bits.bit_count(),
            unloaded=sum(part.position == UNLOADED for part in self._parts),
        )

    # What the follower says.

    def position(self, partition: int) -> int:
        return self._parts[partition].position

    def count(self, partition: int, life: Life) -> int:
        """Blocks of one partition that this life, or Redis, is known to have."""
        return self._parts[partition].counts.get(self._known_bit(life), 0)

    def apply(self, partition: int, number: int, life: Life, *, stored: bytes, removed: bytes) -> bool:
        """One entry: hashes joined. What was stored goes first, so a hash in both is gone afterwards.

        False if entries before it were missed: the partition then counts as unloaded, and goes on answering with what
        it had. An entry from before its position changes nothing.
        """
        part = self._parts[partition]
        if part.position == UNLOADED:
            return False
        if number <= part.position:
            return True
        if number != part.position + 1:
            part.position = UNLOADED
            return False
        part.position = number
        bit = self._bit_that_counts(life)
        if bit:
            self._add(part, bit, stored)
            for start in range(0, len(removed), HASH_BYTES):
                self._clear(part, bit, removed[start : start + KEY_BYTES])
        return True

    def lose(self, partition: int) -> None:
        """The stream is not what it was: the partition has to be loaded whole."""
        self._parts[partition].position = UNLOADED

    def load(self, partition: int, position: int, holdings: Iterable[tuple[Life, Iterable[bytes]]]) -> None:
        """Put a partition read whole in the place of what was known of it.

        holdings: what each life, and REDIS, has, hashes joined. position: of the stream before any of it was read;
        what follows is applied again, which ends in the same state.
        """
        part = _Part(position=position)
        for life, pages in holdings:
            bit = self._bit_that_counts(life)
            if bit:
                for joined in pages:
                    self._add(part, bit, joined)
        self._parts[partition] = part

    def load_life(self, partition: int, life: Life, pages: Sequence[bytes]) -> None:
        """Put what one life, or Redis, has in one partition in the place of what was known of it."""
        bit = self._bit_that_counts(life)
        if not bit:
            return
        part = self._parts[partition]
        for joined in pages:
            self._add(part, bit, joined)
        there = {joined[i : i + KEY_BYTES] for joined in pages for i in range(0, len(joined), HASH_BYTES)}
        for key in [key for key, mask in part.masks.items() if mask & bit and key not in there]:
            self._clear(part, bit, key)

    def set_members(self, members: Mapping[NodeId, Epoch]) -> list[Life]:
        """Who is registered, at some moment not long ago. Lives that have ended are dropped.

        Epochs grow with every join, so a life up to the newest one seen that is not registered is over for ever; a
        younger one may have joined since. Returns those whose entries were passed over although they count, such as
        after a Redis that lost its epochs: they have to be loaded.
        """
        self._members = dict(members)
        self._horizon = max(self._horizon, max(members.values(), default=0))
        for life in [life for life in self._bits if self._is_over(life)]:
            self._end(life)
        missing = [
            life for life in self._passed_over if members.get(life.node) == life.epoch and not self._has_heir(life)
        ]
        for life in missing:
            del self._passed_over[life]
        return missing

    def tidy(self, n_blocks: int) -> bool:
        """Clear ended lives away, looking at so many blocks at most; False once there is nothing left to clear.

        Their bits are given to new lives only after that, the longest unused first.
        """
        if self._clearing is None:
            if not self._ended_bits:
                return False
            self._clearing = self._clear_ended(self._ended_bits)
        for _ in range(n_blocks):
            if next(self._clearing, self) is self:
                self._clearing = None
                break
        return True

    # The rules.

    def _known_bit(self, life: Life) -> int:
        return REDIS_BIT if life == REDIS else self._bits.get(life, 0)

    def _bit_that_counts(self, life: Life) -> int:
        """0 for a life whose entries do not count any more (I8). A younger life of a node ends its elder."""
        bit = self._known_bit(life)
        if bit:
            return bit
        if self._has_heir(life) or self._is_over(life):
            self._passed_over[life] = None
            if len(self._passed_over) > _PASSED_OVER_MAX:
                del self._passed_over[next(iter(self._passed_over))]
            return 0
        elder = self._epochs.get(life.node)
        if elder is not None:
            self._end(Life(life.node, elder))
        self._epochs[life.node] = life.epoch
        self._bits[life] = bit = self._new_bit()
        return bit

    def _has_heir(self, life: Life) -> bool:
        return self._epochs.get(life.node, life.epoch) > life.epoch

    def _is_over(self, life: Life) -> bool:
        return life.epoch <= self._horizon and self._members.get(life.node) != life.epoch

    def _end(self, life: Life) -> None:
        self._ended_bits |= self._bits.pop(life)
        del self._epochs[life.node]

    def _new_bit(self) -> int:
        if self._free:
            return self._free.popleft()
        self._n_bits += 1
        return 1 << (self._n_bits - 1)

    def _add(self, part: _Part, bit: int, joined: bytes) -> None:
        masks, n_added, shared = part.masks, 0, self._shared
        get = masks.get
        for start in range(0, len(joined), HASH_BYTES):
            key = joined[start : start + KEY_BYTES]
            mask = get(key, 0)
            if not mask & bit:
                mask |= bit
                masks[key] = shared.setdefault(mask, mask)
                n_added += 1
        part.counts[bit] = part.counts.get(bit, 0) + n_added
        if len(shared) > _SHARED_MAX:
            shared.clear()

    def _clear(self, part: _Part, bit: int, key: bytes) -> None:
        mask = part.masks.get(key, 0)
        if not mask & bit:
            return
        mask ^= bit
        if mask:
            part.masks[key] = self._shared.setdefault(mask, mask)
        else:
            del part.masks[key]
        part.counts[bit] -= 1

    def _clear_ended(self, bits: int) -> Iterator[None]:
        """One step a block. Entries of an ended life add nothing, so blocks that come meanwhile need no look."""
        for index in range(len(self._parts)):
            part = self._parts[index]
            for key in list(part.masks):
                gone = part.masks.get(key, 0) & bits
                while gone:
                    bit = gone & -gone
                    self._clear(part, bit, key)
                    gone ^= bit
                yield
        self._ended_bits &= ~bits
        while bits:
            bit = bits & -bits
            for part in self._parts:
                part.counts.pop(bit, None)
            self._free.append(bit)
            bits ^= bit
