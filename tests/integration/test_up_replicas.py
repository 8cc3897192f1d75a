"""``tiered up --coordinators 2``: replicas side by side, listed by ``tiered status``, started again when they die."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.integration.processes import Place, temporary_place, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")

STOP_S = 10.0


def status(place: Place) -> dict[str, Any]:
    outcome = place.run("status", "--json")
    assert outcome.returncode == 0, outcome.stderr
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer


def standing(url: str) -> dict[str, Any]:
    """What a replica says of who leads; nothing while it is not there."""
    try:
        answer: dict[str, Any] = httpx.get(f"{url}/v1/leader", timeout=5.0, trust_env=False).json()
    except httpx.TransportError:
        return {}
    return answer


def leads(url: str) -> bool:
    return bool(standing(url).get("is_leader"))


def token(url: str) -> int:
    """Of the reign that the replica knows of, its own or another's: who was killed may come back and lead."""
    return int((standing(url).get("leader") or {}).get("token") or 0)


def test_two_coordinators_run_and_the_one_that_leads_may_be_killed() -> None:
    with temporary_place() as place:
        out, err = place.directory / "up.out", place.directory / "up.err"
        argv = place.argv("up", "--port", "0", "--workers", "1", "--coordinators", "2", "--hot-bytes", "16MiB")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            up = subprocess.Popen([*argv, "--redis-bytes", "64MiB"], env=place.env, stdout=stdout, stderr=stderr)
        try:
            until(lambda: "Ctrl-C" in out.read_text() or up.poll() is not None, "the cluster is up", deadline_s=100)
            assert up.poll() is None, err.read_text()
            urls = status(place)["coordinators"]
            assert len(set(urls)) == 2
            assert urls == json.loads((place.directory / "cluster.json").read_text())["coordinators"]
            assert urls[1] in out.read_text()
            shown = place.run("status").stdout
            assert all(url in shown for url in urls)
            until(lambda: [leads(url) for url in urls].count(True) == 1, "one of them leads")
            [leader] = [url for url in urls if leads(url)]
            [other] = [url for url in urls if url != leader]
            before = token(other)
            port = leader.rpartition(":")[2]
            [pid] = [
                pid
                for pid, command in place.running().items()
                if re.search(rf"-m coordinator .*--port {port}\b", command)
            ]
            os.kill(pid, signal.SIGKILL)
            until(
                lambda: token(other) > before,
                "somebody reigns anew, maybe its own next life",
            )
            until(lambda: "is back" in err.read_text(), "the one that was killed is started again")
            until(lambda: [leads(url) for url in urls].count(True) == 1, "one of them leads")
            up.send_signal(signal.SIGTERM)
            assert up.wait(STOP_S) == 0
        finally:
            up.kill()
            up.wait(STOP_S)


@pytest.mark.parametrize("n", ["0", "17", "-1"])
def test_an_absurd_number_of_coordinators_is_refused(n: str) -> None:
    with temporary_place() as place:
        outcome = place.run("up", "--port", "0", "--coordinators", n)
        assert outcome.returncode == 2
        assert "--coordinators" in outcome.stderr
        assert "Traceback" not in outcome.stderr
