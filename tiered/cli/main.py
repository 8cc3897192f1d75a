"""The ``tiered`` command: registers the commands and turns a user's mistake into one sentence and exit code 2.

It knows which commands there are and nothing of what they do. No import here may pull torch: `tiered
status` has to answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from tiered import __version__
from tiered.cli.access import offer_access_options
from tiered.cli.audit import check_command, sweep_command
from tiered.cli.capacity import capacity_command
from tiered.cli.clear import clear_command
from tiered.cli.demo import demo_command
from tiered.cli.doctor import doctor_command
from tiered.cli.drain import drain_command
from tiered.cli.evictions import evictions_command
from tiered.cli.nodes import nodes_command
from tiered.cli.numbers import require_finite_numbers
from tiered.cli.pins import pin_command, unpin_command
from tiered.cli.plan import plan_command
from tiered.cli.prefixes import prefixes_command
from tiered.cli.route import route_command
from tiered.cli.selftest import selftest_app
from tiered.cli.serve import serve_command
from tiered.cli.simulate import simulate_command
from tiered.cli.stats import stats_command
from tiered.cli.status import status_command
from tiered.cli.tenants import tenants_app
from tiered.cli.tokens import tokens_app
from tiered.cli.top import top_command
from tiered.cli.up import up_command
from tiered.cli.why import why_command
from tiered.errors import TieredError

EXIT_WRONG_INPUT: Final = 2
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a command ended by Ctrl-C

app = typer.Typer(
    name="tiered",
    help="A distributed, tiered, multi-tenant KV cache for LLM inference.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("up")(up_command)
app.command("demo")(demo_command)
app.command("serve")(serve_command)
app.command("status")(status_command)
app.command("stats")(stats_command)
app.command("top")(top_command)
app.add_typer(tenants_app, name="tenants")
app.add_typer(tokens_app, name="tokens")
app.add_typer(selftest_app, name="selftest")
app.command("nodes")(nodes_command)
app.command("route")(route_command)
app.command("prefixes")(prefixes_command)
app.command("drain")(drain_command)
app.command("why")(why_command)
app.command("evictions")(evictions_command)
app.command("check")(check_command)
app.command("sweep")(sweep_command)
app.command("clear")(clear_command)
app.command("pin")(pin_command)
app.command("unpin")(unpin_command)
app.command("doctor")(doctor_command)
app.command("simulate")(simulate_command)
app.command("plan")(plan_command)
app.command("capacity")(capacity_command)

offer_access_options(app)
require_finite_numbers(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiered {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# The parent of every complaint about flags and arguments; typer exports only this child of it.
_UsageError = typer.BadParameter.__mro__[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code.

    A mistake in what was asked is one line on standard error. Anything else that escapes is a bug and keeps
    its traceback.
    """
    try:
        outcome = app(args=None if argv is None else list(argv), prog_name="tiered", standalone_mode=False)
    except TieredError as error:
        return _complain(str(error))
    except typer.Abort:
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. Python would complain once more at exit.
        sys.stdout = None
        return 1
    except Exception as error:
        if not isinstance(error, _UsageError):
            raise
        return _complain(_usage_sentence(error))
    return outcome if isinstance(outcome, int) else 0


def _usage_sentence(error: Any) -> str:
    """What the parser refused, without the words of the library that checked it, and whose help says more."""
    command = "tiered" if error.ctx is None else error.ctx.command_path
    return f"{error.format_message().replace('Value error, ', '')} (see {command} --help)"


def _complain(sentence: str) -> int:
    print(f"tiered: {' '.join(sentence.split())}", file=sys.stderr)
    return EXIT_WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
