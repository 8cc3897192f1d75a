"""Where the command keeps things on this machine: models, run directories, the file that names the cluster.

It knows two environment variables and nothing of what is stored in the places it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """``$TIERED_CACHE_DIR``, or ``~/.cache/tiered``."""
    chosen = (os.environ if environ is None else environ).get("TIERED_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "tiered"


def models_dir(environ: Mapping[str, str] | None = None) -> Path:
    return cache_dir(environ) / "models"


def runs_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The parent of the run directories that we name ourselves, each after the process that made it."""
    return cache_dir(environ) / "run"


def cluster_file(environ: Mapping[str, str] | None = None) -> Path:
    """Names the cluster that runs on this machine, so that other commands find it without flags."""
    return cache_dir(environ) / "cluster.json"


def run_dir(pid: int, environ: Mapping[str, str] | None = None) -> Path:
    """``$TIERED_RUN_DIR``, or a directory named after the process in the cache."""
    chosen = (os.environ if environ is None else environ).get("TIERED_RUN_DIR")
    return Path(chosen).expanduser() if chosen else runs_dir(environ) / str(pid)
