"""docs/metrics.md."""

from __future__ import annotations

from pathlib import Path

from tiered.metrics.page import CATALOGUES, page

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_what_the_declarations_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python -m tiered.metrics > docs/metrics.md"


def test_every_series_has_a_meaning_and_fits_a_table() -> None:
    for catalogue in CATALOGUES:
        for series in catalogue:
            assert series.meaning
            assert not {"|", "\n"} & set(series.meaning)


def test_no_two_kinds_of_process_share_a_series_but_for_their_build() -> None:
    """Or a sum over all targets would count twice what the coordinator has summed already."""
    names = [series.name for catalogue in CATALOGUES for series in catalogue]
    assert {name for name in names if names.count(name) > 1} == {"tiered_build_info"}
