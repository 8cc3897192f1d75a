"""The rules of deploy/prometheus: what they tell whoever is woken, and that they ask for nothing that is nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.boards import PROMETHEUS, RULES, alerts, records
from tests.unit.monitoring.known import level, wrong_in

REPOSITORY: Final = Path(__file__).parents[3]
PAGE: Final = (REPOSITORY / "docs" / "monitoring.md").read_text(encoding="utf-8")
CASES: Final = REPOSITORY / "tests" / "monitoring" / "rules_test.yml"

each_alert = pytest.mark.parametrize("name", alerts())


@each_alert
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_to_look(name: str) -> None:
    alert = alerts()[name]
    assert re.fullmatch(r"Tiered[A-Z]\w+", name)
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert set(alert["annotations"]) == {"summary", "description", "look_at"}
    assert not alert["annotations"]["summary"].endswith(".")
    assert alert["annotations"]["description"].endswith(".")


@each_alert
def test_an_alert_asks_for_series_and_labels_that_are_declared(name: str) -> None:
    assert wrong_in(alerts()[name]["expr"]) == []


@pytest.mark.parametrize("name", records())
def test_a_recorded_ratio_asks_for_what_is_declared_and_is_named_for_its_labels(name: str) -> None:
    assert wrong_in(records()[name]["expr"]) == []
    assert re.fullmatch(r"[a-z_]+:tiered_[a-z_]+:rate\d+m", name)
    assert level(name) <= {"tenant", "outcome"}


@each_alert
def test_an_alert_is_explained_with_its_severity(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    assert len(rows) == 1
    assert alerts()[name]["labels"]["severity"] in rows[0]


def test_no_alert_is_explained_that_is_not_there() -> None:
    assert set(re.findall(r"^\| `(Tiered\w+)`", PAGE, re.MULTILINE)) == set(alerts())


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases: list[dict[str, Any]] = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    asked = [question for case in cases for question in case["alert_rule_test"]]
    for fires in (True, False):
        found = {question["alertname"] for question in asked if bool(question["exp_alerts"]) is fires}
        assert found == set(alerts())


def test_prometheus_reads_these_rules_and_knows_the_jobs_that_they_name() -> None:
    settings = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    assert settings["rule_files"] == [RULES.name]
    jobs = [job["job_name"] for job in settings["scrape_configs"]]
    assert jobs == ["tiered-coordinator", "tiered-worker", "tiered-serve"]
    assert all(job.startswith("tiered-") for job in jobs)
