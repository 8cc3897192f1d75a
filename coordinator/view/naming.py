"""From tokens to the hashes of their blocks, as the engines of this cluster name them.

Owns which scopes there are: those of the engines attached to nodes that are alive, and the policy a tenant lives
under. Where blocks are is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from coordinator.view.snapshot import ClusterView
from tiered.errors import TieredError
from tiered.hashing.chain import chain_hashes
from tiered.hashing.scope import ModelScope, decode_scope, scope_id
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockHash, NodeView, TenantId

NAMED_BLOCKS_MAX: Final = 65_536
"""Of one prompt: a million tokens in blocks of 16. What is after them has no name here."""


class UnknownModel(TieredError):
    """Which model is meant is not clear. models: those that there are."""

    def __init__(self, model: str | None, models: Sequence[str]) -> None:
        self.model = model
        self.models = tuple(models)
        if not models:
            message = "no engine is attached to any worker that is alive, so there is nothing to name these blocks by"
        elif model is None:
            message = "engines of several models are attached: name one"
        else:
            message = f"no engine of a model {model!r} is attached to any worker that is alive"
        super().__init__(message)

    @property
    def with_models(self) -> str:
        """The message with their names, for who may know them."""
        return f"{self}; attached: {', '.join(self.models)}" if self.models else str(self)


@dataclass(frozen=True, slots=True)
class NamedBlocks:
    """A prompt's full blocks as engines of one scope name them."""

    scope: ModelScope
    hashes: tuple[BlockHash, ...]


def policy_of(view: ClusterView, tenant: TenantId) -> TenantPolicy:
    """The policy the tenant lives under: its own or, unnamed, the default's."""
    seen = view.tenant(tenant)
    if seen is not None:
        return seen.policy
    default = view.tenant(DEFAULT_TENANT)
    return (default.policy if default else TenantPolicy(tenant=DEFAULT_TENANT)).of_unnamed(tenant)


def name_blocks(
    view: ClusterView, policy: TenantPolicy, tokens: Sequence[int], model: str | None = None
) -> tuple[NamedBlocks, ...]:
    """The hashes of a prompt of the policy's tenant, once for each scope of the model: its ranks, or its versions.

    model: as the engines call it; None where there is but one. Errors: UnknownModel; ValueError for a token that is
    not an integer in [0, 2**32). Cost: about 0.7 us a block and scope.
    """
    named = []
    for scope in scopes_of_model(view, model):
        step = scope.layout.block_tokens
        root = scope_id(scope, label=policy.label)
        named.append(
            NamedBlocks(scope, tuple(chain_hashes(root, tokens[: NAMED_BLOCKS_MAX * step], block_tokens=step)))
        )
    return tuple(named)


def scopes_of_model(view: ClusterView, model: str | None = None) -> tuple[ModelScope, ...]:
    """All scopes of the model, of the only one if none is named. Errors: UnknownModel."""
    scopes = {text: scope for node in view.alive for text, scope in scopes_of(node)}
    models = sorted({scope.model for scope in scopes.values()})
    if model is None and len(models) == 1:
        model = models[0]
    if model is None or model not in models:
        raise UnknownModel(model, models)
    return tuple(scope for _, scope in sorted(scopes.items()) if scope.model == model)


def scopes_of(node: NodeView) -> tuple[tuple[str, ModelScope], ...]:
    """Of the engines attached to a node, each with its text; one that a later version wrote may be left out."""
    return tuple((text, scope) for text in node.stats.scopes if (scope := _scope(text)) is not None)


@lru_cache(maxsize=1_024)
def _scope(text: str) -> ModelScope | None:
    try:
        return decode_scope(text)
    except (msgspec.MsgspecError, ValueError):
        return None
