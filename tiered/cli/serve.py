"""``tiered serve MODEL``: an OpenAI-compatible server whose model keeps its KV in the cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tiered.cli.model import ensure_demo_model
from tiered.errors import ConfigError
from tiered.log import configure_logging
from tiered.service import start_service
from tiered.serving.settings import DEMO, ENV_PREFIX, Settings

NAME: Final = "tiered serve"


def serve_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A folder, a name in the Hugging Face cache, or demo (model.id)."),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The worker's Unix socket (cache.socket).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (server.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (server.port).")] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML of API keys and their tenants (auth.keys_file).")
    ] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Be reachable by others without keys (auth.allow_anonymous).")
    ] = False,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file of settings.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted key; repeatable."),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print every setting with its origin, and start nothing.")
    ] = False,
) -> None:
    """Serve one model over OpenAI's API, one answer at a time: for demos, tests and machines without a GPU."""
    start_service(
        NAME,
        Settings,
        _run,
        env_prefix=ENV_PREFIX,
        file=config,
        flags={
            "model.id": model,
            "cache.socket": socket,
            "server.host": host,
            "server.port": port,
            "auth.keys_file": keys,
            "auth.allow_anonymous": allow_anonymous or None,
        },
        assignments=set_ or [],
        check_config=check_config,
    )


def _run(settings: Settings) -> None:
    if not settings.model.id:
        raise ConfigError(
            "model.id: which model? Give a folder, a name in the Hugging Face cache, or demo", field="model.id"
        )
    configure_logging(settings.log)
    source, name = _source(settings.model.id)
    name = settings.model.name or name
    try:
        # Not at the top: what other commands say should not wait for torch to be imported.
        from tiered.serving.loading import load_model
        from tiered.serving.server import run
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'tiered-kv[transformers]'") from None
    run(
        settings,
        name=name,
        load=lambda: load_model(settings, source=source, name=name),
        on_ready=lambda url: print(f"{NAME}: {name} ready on {url}", flush=True),
    )


def _source(model_id: str) -> tuple[str, str]:
    """Where transformers finds it, and what it is called."""
    if model_id == DEMO:
        folder = ensure_demo_model()
        return str(folder), folder.name
    if os.path.isdir(model_id):
        return model_id, Path(model_id).resolve().name
    return model_id, model_id
