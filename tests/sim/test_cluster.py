"""Hundreds of small clusters, each with its own faults; and that a defect would be found.

SIM_SEED: run that one alone. SIM_SEEDS: how many, and SIM_FIRST: from which on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sim.cluster import Cluster, SimulationError
from tests.sim.plan import plan_of
from worker.membership import MembershipTask

SEEDS = int(os.environ.get("SIM_SEEDS", "200"))
FIRST = int(os.environ.get("SIM_FIRST", "0"))
PROCESSES = min(4, os.cpu_count() or 1)


def run_seeds(seeds: Sequence[int]) -> tuple[int, list[str]]:
    """In a process of its own, where strings are hashed alike every time: a run depends on its seed alone."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", *map(str, seeds)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.timeout(900)
def test_every_rule_holds_in_every_cluster_whatever_befalls_it() -> None:
    one = os.environ.get("SIM_SEED")
    seeds = range(FIRST, FIRST + SEEDS) if one is None else [int(one)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        outcomes = list(pool.map(run_seeds, [seeds[i::PROCESSES] for i in range(PROCESSES) if seeds[i::PROCESSES]]))
    failed = [line for code, lines in outcomes if code for line in lines if not line.startswith("Report(")]
    assert not failed, "repeat one with SIM_SEED=n\n" + "\n".join(failed)
    reports = [line for _, lines in outcomes for line in lines if line.startswith("Report(")]
    assert len(reports) == len(seeds)


def test_a_run_depends_on_its_seed_alone() -> None:
    code, lines = run_seeds([3, 3])
    first, second = (line.partition(" cpu ")[0] for line in lines if line.startswith("Report("))
    assert code == 0
    assert first == second


def test_a_defect_is_found_and_told_with_its_seed_and_what_happened_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that counts from when the answer came, and not from before the question was sent."""
    lasts_from = MembershipTask._lasts_from
    monkeypatch.setattr(MembershipTask, "_lasts_from", lambda task, _: lasts_from(task, task.clock.now()))
    found = []
    for seed in range(12):
        try:
            Cluster(plan_of(seed)).run()
        except SimulationError as error:
            found.append(str(error))
            break
    assert found
    first, *events = found[0].splitlines()
    assert first.startswith("seed ")
    assert "whose lease has lapsed" in first
    assert any("is cut off" in event or "cut:" in event or "stops for" in event for event in events)
