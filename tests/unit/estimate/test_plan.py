"""Fetch or recompute: the least expected time to first token."""

from __future__ import annotations

from tiered.estimate.plan import Piece, Plan, plan
from tiered.types import SourceRate

FAST, SLOW = SourceRate(0.001, 1e9), SourceRate(0.5, 1e6)
RATES = {"fast": FAST, "slow": SLOW}


def _plan(*pieces: Piece[str], n_tokens: int = 1_600, prefill: float = 1_000.0, **busy_s: float) -> Plan[str]:
    return plan(
        pieces,
        n_tokens=n_tokens,
        block_tokens=16,
        block_bytes=1_000_000,
        rates=RATES,
        busy_s=busy_s,
        prefill_tokens_per_s=prefill,
    )


def test_what_comes_faster_than_it_is_computed_is_fetched() -> None:
    found = _plan(Piece(100, ("fast",)))
    assert found.fetched == (("fast", 100),)
    assert found.ttft_s is not None
    assert abs(found.ttft_s - 0.101) < 1e-9
    assert found.computed_s == 1.6


def test_what_comes_slower_than_it_is_computed_is_not_fetched() -> None:
    found = _plan(Piece(100, ("slow",)))
    assert found.fetched == ()
    assert found.ttft_s == found.computed_s == 1.6


def test_a_prefix_is_fetched_up_to_where_a_slow_source_begins() -> None:
    assert _plan(Piece(50, ("fast",)), Piece(50, ("slow",))).fetched == (("fast", 50),)


def test_two_sources_share_what_both_have() -> None:
    rates = {"a": FAST, "b": FAST}
    pieces = [Piece(10, ("a", "b"))] * 4
    found = plan(
        pieces, n_tokens=640, block_tokens=16, block_bytes=1_000_000, rates=rates, busy_s={}, prefill_tokens_per_s=1e3
    )
    assert [source for source, _ in found.fetched] == ["a", "b", "a", "b"]


def test_a_busy_source_is_passed_over() -> None:
    rates = {"a": FAST, "b": FAST}
    found = plan(
        [Piece(10, ("a", "b"))],
        n_tokens=160,
        block_tokens=16,
        block_bytes=1_000_000,
        rates=rates,
        busy_s={"a": 0.1},
        prefill_tokens_per_s=1e3,
    )
    assert found.fetched == (("b", 10),)


def test_nothing_after_a_gap_is_fetched() -> None:
    assert _plan(Piece(10, ()), Piece(90, ("fast",))).fetched == ()


def test_while_the_engine_was_never_measured_all_is_fetched() -> None:
    found = _plan(Piece(100, ("slow",)), prefill=0.0)
    assert found.fetched == (("slow", 100),)
    assert found.ttft_s is None
