"""What a command shows the coordinator of itself, and whom it trusts: a token, and the CAs of its own network.

Owns ``--token-file`` and ``--ca``, which every command that calls the coordinator takes, and where their values come
from otherwise. A token is never an argument: every user of a machine can read command lines.
"""

from __future__ import annotations

import functools
import inspect
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tiered.cli.signatures import sign
from tiered.errors import ConfigError

TOKEN_VARIABLE: Final = "TIERED_TOKEN"
CA_VARIABLE: Final = "TIERED_CA"

_TOKEN_BYTES_MAX: Final = 4096

_OPTIONS: Final = {
    "token_file": Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"A file with the token to show; without it, {TOKEN_VARIABLE}.",
            show_default=False,
        ),
    ],
    "ca": Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            envvar=CA_VARIABLE,
            help="PEM file of the CAs to trust instead of the system's.",
            show_default=False,
        ),
    ],
}


@dataclass(frozen=True, slots=True)
class Given:
    """What the flags of the command that runs said."""

    token_file: Path | None = None
    ca: Path | None = None


_NOTHING: Final = Given()
_given: ContextVar[Given] = ContextVar("given", default=_NOTHING)


def offer_access_options(app: typer.Typer) -> None:
    """Give every command of the app that takes --coordinator these two as well. Call once, after the last command."""
    for command in app.registered_commands:
        if command.callback is not None and "coordinator" in inspect.signature(command.callback).parameters:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer_access_options(group.typer_instance)


def token(environ: Mapping[str, str] | None = None) -> str:
    """The token to show; empty for none. Errors: ConfigError naming the flag or the variable."""
    file = _given.get().token_file
    if file is None:
        text, source = (os.environ if environ is None else environ).get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    else:
        text, source = _read_token(file), "--token-file"
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError(f"{source}: a token is made of printable ASCII characters without spaces", field="token")
    return text


def trust(environ: Mapping[str, str] | None = None) -> ssl.SSLContext | bool:
    """For httpx: what to check the coordinator's certificate with. Errors: ConfigError naming --ca."""
    named = (os.environ if environ is None else environ).get(CA_VARIABLE)
    file = _given.get().ca or (Path(named) if named else None)
    if file is None:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise ConfigError(f"--ca: {file} holds no certificate; name a PEM file of CAs", field="ca") from None
    except OSError as error:
        raise ConfigError(
            f"--ca: {file} cannot be read ({error.strerror}); name a PEM file of CAs", field="ca"
        ) from None


@contextmanager
def given(access: Given) -> Iterator[None]:
    """For as long as the block runs, this is what the flags said."""
    before = _given.set(access)
    try:
        yield
    finally:
        _given.reset(before)


def _read_token(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            text = stream.read(_TOKEN_BYTES_MAX).decode().strip()
    except OSError as error:
        raise ConfigError(
            f"--token-file: {file} cannot be read ({error.strerror}); name a file with a token", field="token_file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"--token-file: {file} is no text; name a file with a token and nothing else", field="token_file"
        ) from None
    if not text:
        raise ConfigError(f"--token-file: {file} is empty; put the token there", field="token_file")
    return text


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the two options added to its signature, which is what typer goes by."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def call(*args: Any, token_file: Path | None = None, ca: Path | None = None, **kwargs: Any) -> Any:
        with given(Given(token_file, ca)):
            return command(*args, **kwargs)

    sign(call, [*parameters, *added])
    return call
