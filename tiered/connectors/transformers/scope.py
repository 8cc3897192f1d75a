"""What a loaded model is, as a scope: geometry from its config, identity from its very weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from tiered.connectors.model_config import config_digest, length_bound_rope
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import layout_dtype


def model_scope(model: Any, *, name: str = "", block_tokens: int = 16, weights_version: str = "") -> ModelScope:
    """The scope of a transformers causal LM.

    name: as others call the model; its config's name when empty. weights_version: computed from the weights when
    empty, which reads all of them once; the scope's says what the config is, too.
    Errors: ConfigError for a model whose KV cannot be kept as plain blocks of all layers.
    """
    layout = model_layout(model, block_tokens=block_tokens)
    config = model.config.get_text_config()
    weights = weights_version or weights_fingerprint(model)
    return ModelScope(
        model=name or config.name_or_path or type(model).__name__,
        weights_version=f"{weights}+{config_digest(model.config)}",
        layout=layout,
    )


def model_layout(model: Any, *, block_tokens: int = 16) -> KvLayout:
    """The geometry of the model's KV. Errors: ConfigError as of :func:`model_scope`."""
    layer_windows(model)
    config = model.config.get_text_config()
    n_heads = config.num_attention_heads
    return KvLayout(
        n_layers=config.num_hidden_layers,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        dtype=layout_dtype(model.dtype),
        block_tokens=block_tokens,
    )


def layer_windows(model: Any) -> list[int | None]:
    """Of each layer, how many tokens its attention sees; None for all.

    A window says what a layer reads, not what is kept: blocks hold all tokens of all layers.
    Errors: ConfigError for a model that keeps anything else than one key and value a token and layer, or whose keys
            and values depend on more than the tokens before.
    """
    config = model.config.get_text_config()
    for reason in _reasons_against(model, config):
        raise ConfigError(f"model: {reason}", field="model")
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _reasons_against(model: Any, config: Any) -> Iterator[str]:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        yield (
            f"layers of kind {', '.join(sorted(kinds))} keep no key and value a token; use a model whose layers all "
            "have full or sliding-window attention"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        yield "an encoder's output is no prefix of tokens; use a decoder-only model"
    if getattr(config, "kv_lora_rank", None):
        yield "its latent attention (MLA) has keys and values of different widths; use a model with plain KV heads"
    if getattr(config, "num_kv_shared_layers", 0):
        yield "layers that share their KV with others keep none; use a model whose layers all have their own"
    if getattr(config, "use_bidirectional_attention", False) is True:
        yield "tokens that see later ones have no KV of their own; use a causal model"
    if not hasattr(config, "num_attention_heads"):
        yield "it has no attention whose KV could be kept; use a model with full or sliding-window attention"
    for kind in length_bound_rope(config):
        yield (
            f"{kind} rotary embeddings change with a sequence's length, so that no prefix fits another; use a model "
            "with others"
        )


def weights_fingerprint(model: Any) -> str:
    """XXH3-128 over the name, shape, dtype and bytes of every parameter: two fine-tunes never look alike."""
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tuple(parameter.shape)}|{parameter.dtype}|".encode())
        flat = parameter.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return str(digest.hexdigest())
