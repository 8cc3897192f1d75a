"""``tiered_sdpa``: attention from the blocks where that computes the same, and transformers' sdpa for all else.

Owns which layers may be read in place. A model that uses it behaves as with ``sdpa`` under every other cache, so it
is set once and stays.

transformers gives a layer's new keys and values to the cache, and hands on to attention what the cache returns
without a look at it. So a cache may return the layer itself in place of its keys.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

IMPLEMENTATION: Final = "tiered_sdpa"

_OF_SDPA: Final = ("sliding_window", "softcap", "s_aux", "position_bias", "is_causal")
"""Arguments that make a layer's attention another than plain causal attention."""


@runtime_checkable
class InBlocks(Protocol):
    """A layer's keys and values, still in their blocks."""

    def attend(self, queries: torch.Tensor, *, scale: float | None) -> torch.Tensor: ...

    def gather(self) -> tuple[torch.Tensor, torch.Tensor]: ...


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | InBlocks,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls an attention implementation.

    The mask is not looked at where blocks are read in place: the cache has checked that it hides padding, of which
    there is none in blocks, and what follows a query.
    Shapes: query is (n_rows, n_heads, n_queries, head_dim); the result (n_rows, n_queries, n_heads, head_dim).
    """
    if not isinstance(key, torch.Tensor):
        if not dropout and all(kwargs.get(name) is None for name in _OF_SDPA):
            return key.attend(query, scale=scaling), None
        key, value = key.gather()
    found: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return found


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def reads_blocks(model: Any) -> bool:
    """Whether the model's attention takes layers in place of keys."""
    return str(model.config.get_text_config()._attn_implementation) == IMPLEMENTATION


def read_blocks(model: Any) -> None:
    """Let a model with sdpa attention read blocks; a model with another keeps it, and is given gathered tensors."""
    if model.config.get_text_config()._attn_implementation == "sdpa":
        model.set_attn_implementation(IMPLEMENTATION)
