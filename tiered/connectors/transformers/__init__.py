"""transformers: any causal LM of the Llama family layout, with its prompt's KV kept in and read from the cache."""

from tiered.connectors.transformers.attach import tiered_cache
from tiered.connectors.transformers.cache import TieredCache
from tiered.connectors.transformers.generator import CachedGenerator, Generation
from tiered.connectors.transformers.options import GeneratorOptions, Reuse
from tiered.connectors.transformers.scope import model_scope, weights_fingerprint
from tiered.connectors.transformers.steering import Abandoned, Steering

__all__ = [
    "Abandoned",
    "CachedGenerator",
    "Generation",
    "GeneratorOptions",
    "Reuse",
    "Steering",
    "TieredCache",
    "model_scope",
    "tiered_cache",
    "weights_fingerprint",
]
