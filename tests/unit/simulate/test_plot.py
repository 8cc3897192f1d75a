"""The plot: which lines it draws, a real picture, and a sentence where it cannot be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiered.errors import ConfigError
from tiered.simulate.plot import check_plot, policy_lines, tenant_lines, write_plot


def row(policy: str, size: int, ratio: float, **more: Any) -> dict[str, Any]:
    common = {"workers": 1, "routing": "affinity", "write_policy": "never", "redis_blocks": 0}
    tenants = {"a": {"accesses": 5, "hit_ratio": ratio / 2}, "b": {"accesses": 9, "hit_ratio": ratio}}
    return common | {"policy": policy, "hot_blocks": size, "hit_ratio": ratio, "tenants": tenants} | more


def test_a_line_for_each_policy_by_size() -> None:
    rows = [row("lru", 20, 8.0), row("lru", 10, 4.0), row("arc", 10, 5.0), row("min", 10, 9.0, tenants={})]
    assert policy_lines(rows) == [("lru", [(10, 4.0), (20, 8.0)]), ("arc", [(10, 5.0)]), ("min", [(10, 9.0)])]


def test_what_else_differs_is_part_of_the_name() -> None:
    rows = [row("lru", 10, 4.0), row("lru", 10, 5.0, workers=2)]
    assert [label for label, _ in policy_lines(rows)] == ["lru, workers 1", "lru, workers 2"]


def test_tenants_have_lines_of_their_own_the_busiest_first() -> None:
    assert tenant_lines([row("lru", 10, 4.0)]) == [("b", [(10, 4.0)]), ("a", [(10, 2.0)])]
    many = tenant_lines([row("lru", 10, 4.0), row("arc", 10, 6.0)])
    assert [label for label, _ in many] == ["b, lru", "b, arc", "a, lru", "a, arc"]
    assert tenant_lines([row("lru", 10, 4.0, tenants={"a": {"accesses": 1, "hit_ratio": 1.0}})]) == []


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    check_plot(path)
    write_plot(path, [row("lru", 10, 4.0), row("lru", 20, 8.0)], title="t")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.simulate.plot.find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=r"--plot: .*out.jpeg ends in none of .png, .svg, .pdf"):
        check_plot(tmp_path / "out.jpeg")
    with pytest.raises(ConfigError, match=r"--plot: .*missing is not a folder"):
        check_plot(tmp_path / "missing" / "out.png")
    monkeypatch.setattr("tiered.simulate.plot.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed; pip install 'tiered-kv\[plot\]'"):
        check_plot(tmp_path / "out.png")
