"""The command: model, cluster and engines up, the story told, the verdict given, everything down again."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tiered.cli.api import CoordinatorClient
from tiered.cli.demo.engines import EngineProcess
from tiered.cli.demo.record import Record
from tiered.cli.demo.report import line_of, print_checks, print_rows, write_summary
from tiered.cli.demo.scenario import Scenario
from tiered.cli.launcher import ClusterPlan, LocalCluster
from tiered.cli.model import ensure_demo_model
from tiered.cli.output import JsonFlag, print_json, progress
from tiered.service import POOL, WEB, require_extras

HOT_BYTES: Final = 256 << 20
"""Of each worker: 728 blocks of the demo's model, far less than all the demo's prompts of all tenants need."""

EXIT_NOT_OBSERVED: Final = 1

_NEEDS: Final = {
    "transformers": (*WEB["server"], *POOL["worker"], "transformers", "gguf", "safetensors", "accelerate")
}


def demo_command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster and its dashboard up until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="The dashboard's port; 0 for any free one.")] = 0,
    summary: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the rows and the checks as JSON.")
    ] = Path("demo-summary.json"),
    as_json: JsonFlag = False,
) -> None:
    """Serve real conversations of two tenants on a real model over three nodes, and check what is promised."""
    require_extras(_NEEDS)
    record = Record()
    say = _say_aside if as_json else typer.echo
    model = ensure_demo_model()
    record.model = model.name
    write_summary(record, summary)  # a path that cannot be written is said before minutes of work
    with ExitStack() as stack:
        plan = ClusterPlan(n_workers=3, port=port, hot_bytes=HOT_BYTES)
        cluster = stack.enter_context(LocalCluster(plan, say=say))
        say(f"dashboard at {cluster.coordinator_url}")
        api = stack.enter_context(CoordinatorClient(cluster.coordinator_url))
        engines, reference = _start_engines(cluster, model, stack)
        scenario = Scenario(cluster, engines, reference, api, record, on_row=lambda row: say(line_of(row)))
        try:
            scenario.run()
        finally:
            write_summary(record, summary)
        if as_json:
            print_json(msgspec.to_builtins(record))
        else:
            print_rows(record)
            print_checks(record)
        if keep:
            say(f"dashboard at {cluster.coordinator_url}; Ctrl-C stops everything")
            _wait_for_interrupt()
    if not record.passed:
        raise typer.Exit(EXIT_NOT_OBSERVED)


def _start_engines(
    cluster: LocalCluster, model: Path, stack: ExitStack
) -> tuple[dict[str, EngineProcess], EngineProcess]:
    """One engine a node, and one without a cache; all with the same threads, so that they compute the same."""
    threads = os.cpu_count() or 1

    def start(name: str, socket_path: Path | None) -> EngineProcess:
        log = cluster.run_dir / f"{name}.log"
        engine = EngineProcess(name, model, socket_path, threads=threads, log=log)
        stack.callback(engine.stop)
        return engine

    with progress("starting one engine a node and one without a cache"):
        reference = start("engine-uncached", None)
        engines = {worker.name: start(f"engine-{worker.name}", worker.socket_path) for worker in cluster.workers}
        for engine in (reference, *engines.values()):
            engine.wait_ready()
    return engines, reference


def _wait_for_interrupt() -> None:
    ending = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        signal.sigwait(ending)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say_aside(line: str) -> None:
    """stdout is for the JSON."""
    typer.echo(line, err=True)
