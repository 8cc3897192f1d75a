"""deploy/'s Prometheus files as promtool judges them, and each alert on made-up series."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.monitoring.prometheus import Targets, Tools, settings_for
from tests.support.boards import PROMETHEUS, RULES

CASES = Path(__file__).parent / "rules_test.yml"


def test_promtool_finds_nothing_wrong_with_rules_and_settings(tools: Tools, tmp_path: Path) -> None:
    tools.check("check", "rules", RULES)
    tools.check("check", "config", "--syntax-only", PROMETHEUS)  # the token's file is the container's
    targets = Targets(tmp_path)
    targets.write({"tiered-coordinator": ["127.0.0.1:1"]})
    tools.check("check", "config", settings_for(tmp_path, targets, token="token", at_once=()))


def test_each_alert_fires_when_it_should_and_is_quiet_when_not(tools: Tools, tmp_path: Path) -> None:
    """Without annotations, or promtool would want all their text in every case."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("annotations", None)
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    tools.check("test", "rules", shutil.copy(CASES, tmp_path))
