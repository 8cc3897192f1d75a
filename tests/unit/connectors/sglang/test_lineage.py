from __future__ import annotations

from tiered.connectors.sglang.lineage import Lineage


def test_what_comes_before_a_page_is_remembered_from_any_call() -> None:
    lineage = Lineage()
    assert lineage.note(["a", "b", "c"]) is None
    assert lineage.note(["c", "d"]) == "b"
    assert lineage.note(["x"], ["v", "w"]) == "w"
    assert lineage.note(["x"], None) == "w"
    assert lineage.note(["x"], []) == "w"
    assert lineage.note([]) is None


def test_the_pages_seen_first_are_forgotten_first() -> None:
    lineage = Lineage(pages_max=3)
    lineage.note(["a", "b", "c", "d", "e"])
    assert len(lineage) == 3
    assert lineage.note(["b"]) is None
    assert lineage.note(["e"]) == "d"
