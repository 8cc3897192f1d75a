"""The file that names this machine's cluster: found while its launcher lives, absent otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tiered.cli.cluster_file import (
    ClusterState,
    WorkerEntry,
    read_cluster_file,
    remove_cluster_file,
    write_cluster_file,
)
from tiered.cli.paths import cluster_file


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TIERED_CACHE_DIR": str(tmp_path / "cache")}


def state_of(pid: int) -> ClusterState:
    return ClusterState("http://h:1", "redis://u:pw@h:2", "ns", pid, [WorkerEntry("worker-1", "/s.sock", 3)])


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    return process.pid


def test_what_was_written_is_read_back(environ: dict[str, str]) -> None:
    write_cluster_file(state_of(os.getpid()), environ)
    assert read_cluster_file(environ) == state_of(os.getpid())


def test_only_its_owner_may_read_it_for_it_can_hold_a_password(environ: dict[str, str]) -> None:
    write_cluster_file(state_of(os.getpid()), environ)
    assert stat.S_IMODE(cluster_file(environ).stat().st_mode) == 0o600


def test_a_cluster_whose_launcher_is_dead_is_absent(environ: dict[str, str]) -> None:
    write_cluster_file(state_of(dead_pid()), environ)
    assert read_cluster_file(environ) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "one"}', b"\xff"])
def test_a_damaged_file_counts_as_absent(environ: dict[str, str], content: bytes) -> None:
    cluster_file(environ).parent.mkdir(parents=True)
    cluster_file(environ).write_bytes(content)
    assert read_cluster_file(environ) is None


def test_only_the_launcher_named_in_it_removes_it(environ: dict[str, str]) -> None:
    write_cluster_file(state_of(os.getpid()), environ)
    remove_cluster_file(os.getpid() + 1, environ)
    assert cluster_file(environ).exists()
    remove_cluster_file(os.getpid(), environ)
    assert not cluster_file(environ).exists()
