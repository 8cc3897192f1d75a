"""transformers: any causal LM of the Llama family layout, with its prompt's KV kept in and read from the cache."""

from tiered.connectors.transformers.generator import (
    CachedGenerator,
    Generation,
    GeneratorOptions,
    Reuse,
)
from tiered.connectors.transformers.scope import model_scope, weights_fingerprint

__all__ = [
    "CachedGenerator",
    "Generation",
    "GeneratorOptions",
    "Reuse",
    "model_scope",
    "weights_fingerprint",
]
