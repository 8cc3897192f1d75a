"""Which prefixes are warmed first."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.core.builders import chain
from tests.unit.journal.builders import rows_of
from tiered.journal.chains import hottest_chains
from tiered.types import BlockHash


def warmed(rows: list, resident: frozenset[BlockHash] = frozenset()) -> list[tuple[BlockHash, ...]]:
    return [each.hashes for each in hottest_chains(rows, resident)]


def test_whole_prefixes_come_the_most_used_first() -> None:
    rows = [*rows_of("cool", 3, hits=1), *rows_of("hot", 4, hits=9), *rows_of("warm", 2, hits=4)]
    assert warmed(rows) == [tuple(chain("hot", 4)), tuple(chain("warm", 2)), tuple(chain("cool", 3))]


def test_what_was_never_used_again_is_left_out() -> None:
    assert warmed(rows_of("once", 3, hits=0)) == []
    rows = rows_of("a", 3, hits=2)
    assert warmed([*rows[:2], replace(rows[2], hits=0)]) == [tuple(chain("a", 2))]


def test_what_is_here_is_part_of_a_chain_and_no_reason_for_one() -> None:
    rows = rows_of("a", 4, hits=2)
    assert warmed(rows, frozenset(chain("a", 4))) == []
    [one] = hottest_chains(rows, frozenset(chain("a", 2)))
    assert (one.hashes, one.n_known) == (tuple(chain("a", 4)), 2)


def test_a_much_cooler_tail_waits_for_its_turn() -> None:
    rows = rows_of("a", 4, hits=100)
    rows = [*rows[:2], replace(rows[2], hits=1), replace(rows[3], hits=1), *rows_of("b", 1, hits=10)]
    assert warmed(rows) == [tuple(chain("a", 2)), tuple(chain("b", 1)), tuple(chain("a", 4))]


def test_a_prefix_with_a_missing_link_is_left_out() -> None:
    rows = rows_of("a", 4, hits=3)
    assert warmed([rows[0], rows[2], rows[3]]) == [tuple(chain("a", 1))]


def test_links_that_lead_in_a_circle_end() -> None:
    rows = rows_of("a", 3, hits=3)
    assert warmed([replace(rows[1], parent=rows[2].block_hash), rows[2]]) == []
