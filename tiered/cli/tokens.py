"""``tiered tokens``: bearer tokens with which a tenant sees its own numbers; create, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import AccessToken
from tiered.cli.output import JsonFlag, print_json, print_table
from tiered.errors import ConfigError

tokens_app = typer.Typer(help="Tokens with which tenants see their own numbers.", rich_markup_mode=None)

_COLUMNS = ("id", "label", "created", "expires")

TenantOption = Annotated[str, typer.Option("--tenant", metavar="TENANT", help="Whose token it is.")]


@tokens_app.command("create")
def create_command(
    tenant: TenantOption,
    label: Annotated[str, typer.Option(help="Whose it is, or what it is for.")] = "",
    expires_s: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="It ends by itself after so long; else never.")
    ] = None,
    coordinator: CoordinatorOption = None,
    json: JsonFlag = False,
) -> None:
    """Make a token and print it, this once: what the cluster keeps is its SHA-256."""
    if expires_s is not None and not expires_s > 0:
        raise ConfigError(f"--expires-s: {expires_s:g} is not above zero", field="expires_s")
    with connect(coordinator) as client:
        made = client.create_token(tenant, label=label, expires_s=expires_s)
    if json:
        print_json(made)
    else:
        typer.echo(made.token)


@tokens_app.command("list")
def list_command(tenant: TenantOption, coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """List a tenant's tokens that are valid, without the tokens themselves."""
    with connect(coordinator) as client:
        tokens = client.tokens(tenant)
    if json:
        print_json({"tokens": tokens})
    else:
        print_table("", _COLUMNS, [token_row(each) for each in tokens])


@tokens_app.command("revoke")
def revoke_command(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `tiered tokens list` has it.")],
    tenant: TenantOption,
    coordinator: CoordinatorOption = None,
) -> None:
    """End a token now; every replica refuses it within two seconds."""
    with connect(coordinator) as client:
        client.revoke_token(tenant, token_id)
    typer.echo(f"{token_id}: revoked")


def token_row(token: AccessToken) -> list[str]:
    ends = token.expires_at
    return [
        token.id,
        token.label,
        token.created_at.isoformat(sep=" ", timespec="seconds"),
        "never" if ends is None else ends.isoformat(sep=" ", timespec="seconds"),
    ]
