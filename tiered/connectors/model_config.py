"""What a model's configuration says of its KV: the same weights with other angles, windows or epsilons have another.

Knows transformers' configurations by their dictionaries alone, as vLLM has them too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_OF_ONE_LOAD: Final = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_commit_hash",
        "_experts_implementation",
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "dtype",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""What differs between two loads of one model, or is set when it is saved: where it was read and by what, how it is
run, what it returns. Of these only the dtype changes KV, and a scope has that of its own."""

_QUANTIZATION: Final = "quantization_config"
"""Is told whole: there a dtype is that of the weights."""

LENGTH_BOUND_ROPE: Final = ("dynamic", "longrope", "su")
"""Rotary embeddings that turn a token by an angle that depends on how long a sequence is, or may become."""


def config_digest(config: Any, *facts: object) -> str:
    """16 hex digits of a configuration, with those within it, and of what else was decided when the model was loaded.

    facts: anything whose ``repr`` is the same in every process.
    """
    told = json.dumps(_lasting(config.to_dict()), sort_keys=True, default=str)
    return hashlib.sha256(repr([told, *facts]).encode()).hexdigest()[:16]


def length_bound_rope(config: Any) -> list[str]:
    """The kinds of rotary embeddings of any layer, sorted, that are bound to a length. config: of the text model."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    return sorted(set(_rope_types(parameters)).intersection(LENGTH_BOUND_ROPE))


def _lasting(told: object) -> object:
    if isinstance(told, Mapping):
        return {
            str(name): value if name == _QUANTIZATION else _lasting(value)
            for name, value in told.items()
            if name not in _OF_ONE_LOAD
        }
    if isinstance(told, list | tuple):
        return [_lasting(value) for value in told]
    if isinstance(told, set | frozenset):  # whose order is another in each process
        return sorted(map(str, told))
    return told


def _rope_types(parameters: object) -> Iterator[str]:
    """Of one set of parameters, or of one for each kind of layer."""
    if isinstance(parameters, Mapping):
        for key, value in parameters.items():
            if key in ("rope_type", "type"):
                yield str(value)
            else:
                yield from _rope_types(value)
