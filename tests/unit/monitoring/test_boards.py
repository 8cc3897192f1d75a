"""The boards of deploy/grafana: what Grafana needs of them, and that they ask for nothing that is not there."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.boards import ANYTHING, DEPLOY, Board, Panel, boards, filled
from tests.unit.monitoring.known import wrong_in

BOARDS: Final = boards()
PANELS: Final = [panel for board in BOARDS for panel in board.panels]
KINDS: Final = {"timeseries", "stat", "table", "bargauge", "gauge"}
COLUMNS: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

each_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.file)
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.name)


def test_there_is_a_board_for_each_question_and_no_two_are_called_alike() -> None:
    assert {"Tiered / Overview", "Tiered / Tenants", "Tiered / Nodes"} <= {board.raw["title"] for board in BOARDS}
    for name in ("title", "uid"):
        values = [board.raw[name] for board in BOARDS]
        assert len(set(values)) == len(values)


@each_board
def test_a_board_has_what_grafana_asks_for(board: Board) -> None:
    raw = board.raw
    assert "id" not in raw  # the database's own, which a file must not name
    assert re.fullmatch(r"tiered-[a-z]{1,33}", raw["uid"])
    assert raw["schemaVersion"] == 39  # Grafana 11's first; later ones migrate it
    assert raw["tags"] == ["tiered"]
    assert raw["description"]
    assert raw["time"]
    first, *others = raw["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    for variable in others:
        assert variable["datasource"] == DATASOURCE
        assert variable["definition"] == variable["query"]["query"]


@each_board
def test_ids_are_unique_and_no_panel_lies_on_another(board: Board) -> None:
    ids = [panel["id"] for panel in board.raw["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["title"], panel["gridPos"]) for panel in board.raw["panels"]]
    for title, at in places:
        assert at["x"] >= 0, title
        assert at["x"] + at["w"] <= COLUMNS, title
        assert at["w"] > 0, title
        assert at["h"] > 0, title
    overlapping = [(one, other) for (one, a), (other, b) in combinations(places, 2) if _overlap(a, b)]
    assert overlapping == []


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@each_panel
def test_a_panel_says_what_it_shows_in_which_unit_from_the_chosen_source(panel: Panel) -> None:
    raw = panel.raw
    assert raw["type"] in KINDS
    assert raw["title"]
    assert raw["description"].endswith(".")
    assert raw["fieldConfig"]["defaults"]["unit"]
    assert raw["datasource"] == DATASOURCE
    assert raw["options"]
    refs = [target["refId"] for target in raw["targets"]]
    assert refs == sorted(set(refs))
    assert refs
    for target in raw["targets"]:
        assert target["datasource"] == DATASOURCE
        assert target["instant"] is not target["range"]
        assert (target.get("format") == "table") is (raw["type"] == "table")
        if raw["type"] == "timeseries" and len(raw["targets"]) > 1:
            assert target["legendFormat"] != "__auto"


@each_panel
def test_a_panel_asks_for_series_and_labels_that_are_declared(panel: Panel) -> None:
    for expression in panel.expressions:
        assert wrong_in(filled(expression)) == []


@each_board
def test_rates_follow_the_scrape_interval_that_the_reader_has(board: Board) -> None:
    for panel in board.panels:
        for expression in panel.expressions:
            fixed = re.findall(r"(?:rate|increase)\(.*?\[([^]]+)\]", expression)
            assert set(fixed) <= {"$__rate_interval", "$__range"}, panel.name


@each_board
def test_variables_ask_for_a_series_and_a_label_of_it_and_are_used(board: Board) -> None:
    used = " ".join(expression for panel in board.panels for expression in panel.expressions)
    for variable in board.variables:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
        assert asked is not None
        assert wrong_in(f"sum by ({asked[2]}) ({asked[1]})") == []
        assert f'=~"${variable["name"]}"' in used
        assert variable["name"] in ANYTHING


def test_what_is_asked_in_vain_is_found_out() -> None:
    for wrong in (
        "tiered_no_such_series",
        'tiered_tokens_total{colour="red"}',
        "sum by (node) (tiered_tokens_total)",
        "cluster:tiered_nothing:rate5m",
        "tiered_match_duration_seconds",
    ):
        assert wrong_in(wrong) != [], wrong


def test_provisioning_names_the_folder_of_boards_and_a_source_of_the_scrapes_interval() -> None:
    def read(path: Path) -> Any:
        return yaml.safe_load(path.read_text(encoding="utf-8"))

    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = read(provisioning / "datasources" / "prometheus.yml")["datasources"]
    (provider,) = read(provisioning / "dashboards" / "tiered.yml")["providers"]
    scraping = read(DEPLOY / "prometheus" / "prometheus.yml")["global"]["scrape_interval"]
    assert (source["type"], source["isDefault"], source["jsonData"]["timeInterval"]) == ("prometheus", True, scraping)
    compose = (DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:" in compose
