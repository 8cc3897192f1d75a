"""The commands of ``tiered selftest``: what is to be proven, and how the outcome is said."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.output import JsonFlag, print_json, print_table, progress

EXIT_NOT_ISOLATED: Final = 1

selftest_app = typer.Typer(help="Prove on the live cluster what it promises.", no_args_is_help=True)


@selftest_app.callback()
def selftest() -> None:
    """Each test makes blocks of its own, and takes them away again."""


@selftest_app.command("isolation")
def isolation_command(
    coordinator: CoordinatorOption = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Also kill one worker of the cluster that `tiered up` runs here, and look after it."
        ),
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Prove that two tenants cannot see each other's hits: on one worker, from a peer, from Redis, by the API, and
    after a restart. On each path the owner's own hit shows that the path works at all.

    Runs beside the workers, needs an engine attached to each of them, and the admin token. Exit code 1 when a tenant
    saw anything of the other's, or a path that was tried did not work for the owner either.
    """
    # Not at the top: it attaches as engines do, which takes torch.
    from tiered.cli.selftest.isolation import prove_isolation

    with connect(coordinator) as client, progress("isolation of two tenants"):
        findings = prove_isolation(client, restart=restart)
    if json:
        print_json({"isolated": all(f.ok for f in findings), "paths": findings})
    else:
        rows = [(f.path, f.verdict, f.owner, f.stranger) for f in findings]
        print_table("", ("path", "verdict", "the owner found", "the other found"), rows)
    return 0 if all(f.ok for f in findings) else EXIT_NOT_ISOLATED
