"""Tiny random models of the families that the cache serves, with windows shorter than the prompts of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tiered.client.local import LocalClient
from tiered.config import PoolSettings
from tiered.connectors.transformers import model_scope
from tiered.connectors.transformers.kv import cache_argument

PAD, BLOCK, WINDOW = 0, 8, 20
SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_WIDE = {**SHAPE, "head_dim": 24}
_PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]

FAMILIES: Final[dict[str, Callable[[], Any]]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_WIDE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**_WIDE)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**_WIDE, sliding_window=WINDOW, query_pre_attn_scalar=20, attn_logit_softcapping=5.0)
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_WIDE, sliding_window=WINDOW, query_pre_attn_scalar=20, layer_types=_PATTERN)
    ),
}


def make_model(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return FAMILIES[family]().to(dtype).eval()


def make_client(model: Any, *, n_blocks: int = 400) -> LocalClient:
    scope = model_scope(model, block_tokens=BLOCK)
    settings = {"bytes": n_blocks * scope.layout.block_bytes, "free_target": 0.0}
    return LocalClient(scope, PoolSettings.model_validate(settings))


class Apart:
    """A client as those of a worker are: it answers what the real one does, and no row may lie in its pool."""

    def __init__(self, inner: LocalClient) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "open_sequence":
            raise AttributeError(name)
        return getattr(self.inner, name)


def tokens(seed: int, n: int) -> list[int]:
    """None of them is padding."""
    return torch.randint(2, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def one(prompt: list[int]) -> dict[str, torch.Tensor]:
    return batch([prompt])


def batch(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    """As a tokenizer pads it: on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: Any, inputs: dict[str, torch.Tensor], cache: Any = None, *, seed: int = 7, **how: Any) -> Any:
    """``model.generate``, greedy and 12 tokens long unless said otherwise."""
    torch.manual_seed(seed)
    how = {"max_new_tokens": 12, "do_sample": False, **how}
    if cache is not None:
        how[cache_argument(model)] = cache
    return model.generate(**inputs, **how)


def hits(cache: Any) -> list[int]:
    return [sum(row.values()) for row in cache.hit_tokens]
