"""A Prometheus of our own: its settings made from deploy/'s, its answers as plain values."""

from __future__ import annotations

import json
import math
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.support.boards import PROMETHEUS, RULES
from tests.support.worker_process import until

START_S: Final = 30.0
STOP_S: Final = 10.0
EVERY: Final = "1s"
"""Between scrapes and between evaluations: what is asked here has to be seen within a test."""


@dataclass(frozen=True, slots=True)
class Tools:
    server: str
    promtool: str

    def check(self, *arguments: str | Path) -> None:
        """Run promtool. Errors: AssertionError with all it said."""
        done = subprocess.run([self.promtool, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30.0, trust_env=False)

    def ask(self, expression: str) -> list[Sample]:
        """As it is now; a number alone is a sample without labels. Errors: AssertionError with what it says."""
        data = self._get("/api/v1/query", query=expression)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    def number(self, expression: str) -> float:
        """The sum over what it finds; 0 for nothing."""
        return sum(sample.value for sample in self.ask(expression))

    def values_of(self, label: str, series: str) -> list[str]:
        """As Grafana's label_values(series, label)."""
        values: list[str] = self._get(f"/api/v1/label/{label}/values", **{"match[]": series})
        return values

    def alerts(self, *states: str) -> set[tuple[str, str]]:
        """Name and node, or other subject, of what is in one of these states."""
        found = self._get("/api/v1/alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("node", "")) for each in found if each["state"] in states
        }

    def targets(self) -> dict[str, str]:
        """Instance -> health."""
        active = self._get("/api/v1/targets")["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in active}

    def rule_errors(self) -> list[str]:
        groups = self._get("/api/v1/rules")["groups"]
        return [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(path, params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        assert not answer.get("warnings"), f"{parameters}: {answer['warnings']}"
        return answer["data"]


def finite(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if math.isfinite(sample.value)]


class Targets:
    """A file for each job, which Prometheus reads again when it changes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, job: str) -> Path:
        return self._directory / f"{job}.targets.json"

    def write(self, targets: Mapping[str, Sequence[str]]) -> None:
        for job, addresses in targets.items():
            written = self.path(job).with_suffix(".new")
            written.write_text(json.dumps([{"targets": list(addresses)}]))
            written.replace(self.path(job))


def settings_for(directory: Path, targets: Targets, *, token: str, at_once: Sequence[str]) -> Path:
    """deploy/'s settings and rules, with targets from files and a shorter pace. Jobs without a file are left out.

    at_once: alerts whose ``for`` is three evaluations; a test cannot wait a minute for each.
    """
    settings = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    jobs = [job for job in settings["scrape_configs"] if targets.path(job["job_name"]).exists()]
    for job in jobs:
        assert job.pop("dns_sd_configs")
        job["file_sd_configs"] = [{"files": [str(targets.path(job["job_name"]))]}]
        if "authorization" in job:
            (directory / "token").write_text(token)
            job["authorization"] = {"credentials_file": str(directory / "token")}
    settings["scrape_configs"] = jobs
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if rule.get("alert") in at_once:
            rule["for"] = "3s"
    (directory / RULES.name).write_text(yaml.safe_dump(rules))
    path = directory / PROMETHEUS.name
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def prometheus(tools: Tools, settings: Path) -> Iterator[Prometheus]:
    """Started on a free port, and ready; killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    directory = settings.parent
    log = directory / "prometheus.log"
    argv = [tools.server, f"--config.file={settings}", f"--storage.tsdb.path={directory / 'data'}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*argv, f"--web.listen-address={address}", "--log.level=warn"], stdout=out, stderr=out, cwd=directory
        )
    server = Prometheus(f"http://{address}")

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{server.url}/-/ready", timeout=5.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(ready, "Prometheus is ready", within_s=START_S)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait(STOP_S)
