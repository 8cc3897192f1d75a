"""What a loaded model is, as a scope: geometry from its config, identity from its very weights."""

from __future__ import annotations

from typing import Any

import torch
import xxhash

from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import layout_dtype


def model_scope(model: Any, *, name: str = "", block_tokens: int = 16, weights_version: str = "") -> ModelScope:
    """The scope of a transformers causal LM.

    name: as others call the model; its config's name when empty. weights_version: computed from the weights when
    empty, which reads all of them once.
    Errors: ConfigError for a model whose KV cannot be kept as plain blocks of all layers.
    """
    config = model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise ConfigError(
            f"model: layers of kind {', '.join(sorted(layer_types - {'full_attention'}))} keep only part of the KV; "
            "use a model with full attention in every layer",
            field="model",
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"model: attention over a sliding window of {window} tokens keeps only part of the KV; use a model with "
            "full attention in every layer",
            field="model",
        )
    n_heads = config.num_attention_heads
    layout = KvLayout(
        n_layers=config.num_hidden_layers,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        dtype=layout_dtype(model.dtype),
        block_tokens=block_tokens,
    )
    return ModelScope(
        model=name or config.name_or_path or type(model).__name__,
        weights_version=weights_version or weights_fingerprint(model),
        layout=layout,
    )


def weights_fingerprint(model: Any) -> str:
    """XXH3-128 over the name, shape, dtype and bytes of every parameter: two fine-tunes never look alike."""
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tuple(parameter.shape)}|{parameter.dtype}|".encode())
        flat = parameter.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return str(digest.hexdigest())
