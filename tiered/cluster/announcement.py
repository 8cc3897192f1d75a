"""What a life of a node says to the directory, in pieces of which each concerns one partition.

Owns how much is said at once; who says it when is :mod:`tiered.cluster.announcing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiered.cluster.digest import Digest
from tiered.cluster.keys import partition_of
from tiered.types import BlockHash

BLOCKS_MAX: Final = 256
"""Of one announcement: less than 1 ms of the server's time, which everyone else waits for."""

UNNUMBERED: Final = 0
"""Of an announcement that is heard whatever was heard before."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """No hash twice.

    number: grows with every announcement of the life; a partition takes none that is older than what it had. Or
    UNNUMBERED. whole: what the life holds there once this is heard, if it is to put a wrong digest right.
    """

    partition: int
    number: int
    stored: Sequence[BlockHash]
    removed: Sequence[BlockHash]
    whole: Digest | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """accepted: False if something later had been heard.

    number: then of that one; of what was accepted, how many stamps changed.
    """

    accepted: bool
    number: int


def announcements(
    here: Mapping[BlockHash, bool], partitions: int, number: Callable[[], int] = lambda: UNNUMBERED
) -> Iterator[Announcement]:
    """What to say so that all of it is said. here: of each block whether it is held, or is no longer."""
    rows: list[tuple[list[BlockHash], list[BlockHash]]] = [([], []) for _ in range(partitions)]
    for block_hash, is_here in here.items():
        rows[partition_of(block_hash, partitions)][not is_here].append(block_hash)
    for partition, (stored, removed) in enumerate(rows):
        for start in range(0, len(stored) + len(removed), BLOCKS_MAX):
            end = start + BLOCKS_MAX
            gone = removed[max(0, start - len(stored)) : max(0, end - len(stored))]
            yield Announcement(partition, number(), stored[start:end], gone)
