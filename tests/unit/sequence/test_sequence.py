"""The arithmetic between tokens, blocks and slots, and hashes that are the same however a sequence grew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiered.hashing.chain import Extras, MultimodalItem, chain_hashes
from tiered.sequence.sequence import TokenSequence
from tiered.types import BlockId, SequenceId, TenantId

ROOT = bytes(range(32))
EXTRAS = Extras(adapter="tall", salt="s", items=(MultimodalItem(b"cat", 5, 9), MultimodalItem(b"dog", 30, 2)))


def sequence(extras: Extras | None = None) -> TokenSequence:
    return TokenSequence(
        sequence_id=SequenceId(1),
        connection=1,
        tenant=TenantId("acme"),
        scope_id=ROOT,
        block_tokens=4,
        extras=extras,
    )


def grow(grown: TokenSequence, tokens: Sequence[int]) -> None:
    extension = grown.extension(tokens)
    grown.tokens.extend(extension.tokens)
    grown.hashes.extend(extension.hashes)


@pytest.mark.parametrize("extras", [None, EXTRAS])
@pytest.mark.parametrize("steps", [(35,), (1,) * 35, (3, 0, 6, 26), (4, 4, 27)])
def test_hashes_do_not_depend_on_the_steps_in_which_a_sequence_grew(
    steps: tuple[int, ...], extras: Extras | None
) -> None:
    tokens, grown, at = list(range(100, 135)), sequence(extras), 0
    for n_tokens in steps:
        grow(grown, tokens[at : at + n_tokens])
        at += n_tokens
    assert grown.hashes == chain_hashes(ROOT, tokens, block_tokens=4, extras=extras)


def test_an_extension_changes_nothing_by_itself() -> None:
    grown = sequence()
    grow(grown, [1, 2, 3])
    extension = grown.extension([4, 5])
    assert (extension.first_token, list(extension.tokens), len(extension.hashes)) == (3, [4, 5], 1)
    assert (list(grown.tokens), grown.hashes) == ([1, 2, 3], [])


def test_slots_and_whole_blocks_follow_the_block_table() -> None:
    grown = sequence()
    grow(grown, range(10))
    grown.block_ids = [BlockId(7), BlockId(2), BlockId(5)]
    assert grown.slots(3, 10) == [31, 8, 9, 10, 11, 20, 21]
    assert grown.slots(10, 10) == []
    grown.n_written = 3
    assert [grown.completed_by(n) for n in (0, 1, 4, 5, 7)] == [[], [7], [7], [7, 2], [7, 2]]
