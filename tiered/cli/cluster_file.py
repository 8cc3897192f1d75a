"""The small file that names the cluster of this machine: written by its launcher, read by every command.

It is a hint for finding things. Nothing secret is in it, and a file whose launcher is gone counts as absent.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tiered.cli.paths import cluster_file


class WorkerEntry(msgspec.Struct, frozen=True):
    node: str
    socket_path: str
    metrics_port: int


class ClusterState(msgspec.Struct, frozen=True):
    """Where the parts of one running cluster are; pid is the launcher's, coordinator_url the first coordinator's."""

    coordinator_url: str
    redis_url: str
    namespace: str
    pid: int
    workers: list[WorkerEntry]
    coordinators: list[str] = []


def write_cluster_file(state: ClusterState, environ: Mapping[str, str] | None = None) -> None:
    """Replace the file in one step, so that a reader sees the old one or the new one."""
    target = cluster_file(environ)
    target.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes the file readable by its owner only: a Redis URL may hold a password.
    handle, name = tempfile.mkstemp(prefix=".cluster-", dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    Path(name).replace(target)


def read_cluster_file(environ: Mapping[str, str] | None = None) -> ClusterState | None:
    """The running cluster, or None when there is no file, it cannot be read, or its launcher is dead."""
    try:
        state = msgspec.json.decode(cluster_file(environ).read_bytes(), type=ClusterState)
    except (OSError, msgspec.MsgspecError):
        return None
    return state if pid_alive(state.pid) else None


def remove_cluster_file(pid: int, environ: Mapping[str, str] | None = None) -> None:
    """Remove the file if it is still ours: a second cluster may have put its own there."""
    state = read_cluster_file(environ)
    if state is not None and state.pid == pid:
        cluster_file(environ).unlink(missing_ok=True)


def pid_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, and somebody else's
        return True
    return True
