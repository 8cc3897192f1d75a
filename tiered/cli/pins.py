"""``tiered pin`` and ``tiered unpin``: keep a prefix in Redis for a while, such as a system prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered.cli.api import CoordinatorClient, CoordinatorOption, connect
from tiered.cli.output import human_count
from tiered.cli.prompts import HashesOption, ModelOption, TenantOption, TokensOption, question

LeaseOption = Annotated[
    float, typer.Option("--lease-s", min=1, metavar="SECONDS", help="The pin ends by itself after so long.")
]


def pin_command(
    tenant: TenantOption = None,
    tokens: TokensOption = None,
    hashes: HashesOption = None,
    model: ModelOption = None,
    lease_s: LeaseOption = 86_400.0,
    coordinator: CoordinatorOption = None,
) -> None:
    """Keep the blocks of a prompt that Redis has from being evicted there; again with a longer lease lengthens it."""
    asked = question(tenant=tenant, tokens=tokens, hashes=hashes, model=model)
    with connect(coordinator) as client:
        n_blocks = sum(client.pin(asked["tenant"], prefix, lease_s=lease_s) for prefix in _prefixes(client, asked))
    print(f"{human_count(n_blocks)} blocks are pinned")


def unpin_command(
    tenant: TenantOption = None,
    tokens: TokensOption = None,
    hashes: HashesOption = None,
    model: ModelOption = None,
    coordinator: CoordinatorOption = None,
) -> None:
    """End a pin now."""
    asked = question(tenant=tenant, tokens=tokens, hashes=hashes, model=model)
    with connect(coordinator) as client:
        n_blocks = sum(client.unpin(asked["tenant"], prefix) for prefix in _prefixes(client, asked))
    print(f"{human_count(n_blocks)} blocks are pinned no more")


def _prefixes(client: CoordinatorClient, asked: dict[str, object]) -> list[list[str]]:
    """The prompt's block hashes, in each scope of its model."""
    return [hashes for scope in client.prefixes(asked).scopes if (hashes := scope.hashes)]
