"""tiered_cache: a cache for one call of ``generate`` that starts with what of its prompts is cached.

Owns how much of a batch is reused, and that only whole, verified bytes are. ``generate`` computes the same columns of
all rows, so it can leave out only those that every row has cached or padding in: the shortest reach decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tiered.client.port import CacheClient, Loaded
from tiered.client.saving import verified_blocks
from tiered.connectors.transformers.cache import TieredCache
from tiered.connectors.transformers.dispatch import read_blocks
from tiered.connectors.transformers.given import left_paddings, listen
from tiered.connectors.transformers.pins import Pins, PinsEnded
from tiered.connectors.transformers.scope import layer_windows, model_layout
from tiered.errors import ConfigError
from tiered.hashing.chain import Extras
from tiered.pool.pool import BlockPool
from tiered.types import NO_HINTS, Hints, Source, TenantId


def tiered_cache(
    client: CacheClient,
    model: Any,
    inputs: Mapping[str, torch.Tensor] | torch.Tensor | None = None,
    *,
    attention_mask: torch.Tensor | None = None,
    tenant: str = "default",
    extras: Extras | None = None,
    hints: Hints = NO_HINTS,
    attention: Literal["paged", "model"] = "paged",
    load_deadline_s: float = 5.0,
    verify: bool = True,
) -> TieredCache:
    """A cache for ``model.generate(**inputs, past_key_values=...)``.

    inputs: what the tokenizer returned, or the input_ids alone, with their attention_mask if there is padding. Left
            out, nothing is reused.
    attention: paged reads blocks in place, in layers whose attention is plain and causal, of a model that uses sdpa;
            the model then uses ``tiered_sdpa``, which is sdpa for every other cache. model leaves it as it is: every
            layer is given tensors, and results equal those of transformers' own cache to the last bit where the same
            tokens are computed at once.
    Errors: ConfigError for a model or a client whose KV this cannot be; ValueError for inputs that it cannot serve.
    """
    if attention not in ("paged", "model"):
        raise ValueError(f"attention: {attention!r} is neither paged nor model")
    _check(client, model)
    listen(model, TieredCache)
    if attention == "paged":
        read_blocks(model)
    windows = layer_windows(model)
    cache = TieredCache(client, model, windows=windows, tenant=TenantId(tenant), extras=extras, hints=hints)
    if inputs is not None:
        prompts = _prompts(model, inputs, attention_mask)
        asks = _Asks(client, TenantId(tenant), extras, hints, load_deadline_s, verify)
        cache.hit_tokens = _reuse(asks, prompts, cache)
    return cache


def _check(client: CacheClient, model: Any) -> None:
    expected = model_layout(model, block_tokens=client.layout.block_tokens)
    if expected != client.layout:
        raise ConfigError(
            f"client: its blocks are {client.layout.describe()}; this model's are {expected.describe()}; make the "
            "client with model_scope(model)",
            field="client",
        )


@dataclass(frozen=True, slots=True)
class _Prompts:
    """ids is (n_rows, n_columns); paddings are the columns that each row begins with."""

    ids: torch.Tensor
    paddings: list[int]

    @property
    def tokens(self) -> list[list[int]]:
        return [row[padding:] for row, padding in zip(self.ids.tolist(), self.paddings, strict=True)]


def _prompts(
    model: Any, inputs: Mapping[str, torch.Tensor] | torch.Tensor, attention_mask: torch.Tensor | None
) -> _Prompts:
    ids, mask = inputs, attention_mask
    if isinstance(inputs, Mapping):
        ids = inputs.get("input_ids")  # type: ignore[assignment]  # checked below
        mask = inputs.get("attention_mask") if attention_mask is None else attention_mask
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or not ids.numel():
        raise ValueError("inputs: input_ids of shape (rows, columns) are needed, as the tokenizer returns them")
    if mask is None:
        mask = _mask_of(model, ids)
    if mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask: its shape is {tuple(mask.shape)}, that of the input_ids {tuple(ids.shape)}"
        )
    paddings = left_paddings(mask)
    if max(paddings) == ids.shape[1]:
        raise ValueError(f"attention_mask: row {paddings.index(max(paddings))} has no token")
    return _Prompts(ids, paddings)


def _mask_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """What ``generate`` makes of input_ids without a mask. Errors: ValueError where that cannot be told."""
    settings = getattr(model, "generation_config", None)
    pad, end = getattr(settings, "pad_token_id", None), getattr(settings, "eos_token_id", None)
    ends = end if isinstance(end, list) else [end]
    if pad is None or not bool((ids == pad).any()):
        return torch.ones_like(ids)
    if pad in ends:
        if len(ids) > 1 and bool((ids[:, 0] == pad).any()):
            raise ValueError(
                "attention_mask: give it, since the padding token also ends answers, so that which of them are "
                "padding cannot be told"
            )
        return torch.ones_like(ids)
    return ids.ne(pad).long()


@dataclass(frozen=True, slots=True)
class _Asks:
    client: CacheClient
    tenant: TenantId
    extras: Extras | None
    hints: Hints
    load_deadline_s: float
    verify: bool


@dataclass(slots=True)
class _Held:
    """One row's match while its blocks are pinned."""

    pins: Pins
    loaded: Loaded = field(default_factory=Loaded)


def _reuse(asks: _Asks, prompts: _Prompts, cache: TieredCache) -> list[dict[Source, int]]:
    """Begin the cache with the columns that all rows have; of each row, its tokens among them by where they were.

    All of the matches' pins are given back when it returns.
    """
    client, n_columns, paddings = asks.client, prompts.ids.shape[1], prompts.paddings
    block_tokens = client.layout.block_tokens
    with ExitStack() as stack:
        held = []
        expected = n_columns - 1  # the last token is always computed
        matches = []
        for tokens, padding in zip(prompts.tokens, paddings, strict=True):
            match = client.match(tokens, tenant=asks.tenant, extras=asks.extras, hints=asks.hints)
            matches.append(match)
            held.append(_Held(Pins(client, match, hold_s=asks.load_deadline_s)))
            stack.callback(held[-1].pins.abandon)
            expected = min(expected, padding + match.n_blocks * block_tokens)
        for row, match, padding in zip(held, matches, paddings, strict=True):
            if match.n_blocks and expected > padding:
                row.loaded = client.load(match, deadline_s=asks.load_deadline_s)
        pool = client.pool  # asked for once: what follows reads the memory that the blocks were loaded into
        columns = expected
        for row, padding in zip(held, paddings, strict=True):
            columns = min(columns, padding + _usable_tokens(asks, pool, row.loaded))
        n_tokens = [max(0, columns - padding) for padding in paddings]
        tables = [row.loaded.block_ids[: -(-n // block_tokens)] for row, n in zip(held, n_tokens, strict=True)]
        columns = cache.begin(prompts.ids, paddings, columns, pool, tables)
        if _lost(held, paddings, columns):  # any doubt is a miss, of all: rows share blocks
            columns = cache.begin(prompts.ids, paddings, 0, None, [])
    return [
        _by_source(row.loaded, max(0, columns - padding), block_tokens)
        for row, padding in zip(held, paddings, strict=True)
    ]


def _usable_tokens(asks: _Asks, pool: BlockPool | None, loaded: Loaded) -> int:
    if pool is None or not loaded.block_ids:
        return 0
    n_blocks = len(loaded.block_ids)
    if asks.verify:
        n_blocks = verified_blocks(pool, loaded.block_ids, loaded.checksums)
    return n_blocks * pool.layout.block_tokens


def _lost(held: Sequence[_Held], paddings: Sequence[int], columns: int) -> bool:
    """Give back the matches' pins; whether any had ended before of which something was used."""
    lost = False
    for row, padding in zip(held, paddings, strict=True):
        try:
            row.pins.give_back(used_tokens=max(0, columns - padding))
        except PinsEnded:
            lost = lost or columns > padding
    return lost


def _by_source(loaded: Loaded, n_tokens: int, block_tokens: int) -> dict[Source, int]:
    counts: dict[Source, int] = {}
    for start, source in zip(range(0, n_tokens, block_tokens), loaded.sources, strict=False):
        counts[source] = counts.get(source, 0) + min(block_tokens, n_tokens - start)
    return counts
