"""What the connector has to know of the engine it runs in, read from vLLM's configuration; what it cannot serve is
refused here, in one sentence, before the engine has started.

The only module that reads that configuration. Both sides read it, each in its own process.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import torch
from vllm import __version__ as vllm_version
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

from tiered.connectors.model_config import config_digest, length_bound_rope
from tiered.connectors.vllm.geometry import Page, in_layer_order, layout_of
from tiered.connectors.vllm.orders import Shard
from tiered.connectors.vllm.settings import WHERE, ConnectorSettings
from tiered.connectors.weights import folder_digest
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout

VERSION: Final = f"vllm {vllm_version}"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_WHOLE_CONTEXT: Final = (FullAttentionSpec, MLAAttentionSpec)
"""Kinds of layers, and no others made from them, that keep all tokens of a sequence, each as it was computed."""

_LLAMA_4_SHORT: Final = 32_768
"""Models made for longer contexts than that tune the temperature of their attention, unless told otherwise."""

_GUESSING_WITHOUT_KV: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways to guess tokens that keep no KV."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, seen by one of its processes.

    block_tokens, n_blocks: of its KV blocks. hash_tokens: of each of its block hashes. specs: by layer. model,
    weights_version: as in ModelScope. tells_events: whether it publishes KV events.
    """

    block_tokens: int
    hash_tokens: int
    n_blocks: int
    specs: dict[str, FullAttentionSpec]
    attention: Literal["gqa", "mla"]
    model: str
    weights_version: str
    kv_quantization: str
    tp_size: int
    kv_tp_replicas: int
    tells_events: bool

    def shard(self, *, tp_rank: int, pp_rank: int) -> Shard:
        return Shard(pp_rank, tp_rank // self.kv_tp_replicas)

    def is_writer(self, *, tp_rank: int) -> bool:
        """Of the ranks that hold the same KV one stores it."""
        return tp_rank % self.kv_tp_replicas == 0

    def layout(self, pages: dict[str, int], *, packing: list[str]) -> KvLayout:
        """pages: by layer its bytes in a block, as they lie in memory."""
        described = []
        for layer, n_bytes in pages.items():
            spec = self.specs[layer]
            dtype = str(spec.dtype).removeprefix("torch.")
            described.append(Page(layer, n_bytes, spec.num_kv_heads, spec.head_size, dtype))
        return layout_of(described, block_tokens=self.block_tokens, attention=self.attention, packing=packing)

    def scope(self, layout: KvLayout, shard: Shard) -> ModelScope:
        """Made by ranks alone: a model may change its configuration while it is built, and only they build it."""
        return ModelScope(
            model=self.model,
            weights_version=self.weights_version,
            layout=layout,
            kv_quantization=self.kv_quantization,
            tp_rank=shard.kv_rank,
            tp_size=self.tp_size // self.kv_tp_replicas,
        )


def renewed(scope: ModelScope, generation: str) -> ModelScope:
    """What a rank's blocks are called since a reset. generation: '' before the first."""
    return msgspec.structs.replace(scope, revision=f"reset {generation}" if generation else "")


def engine_of(vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings) -> Engine:
    """Errors: ConfigError for what the connector cannot serve."""
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    _refuse(vllm_config)
    specs = _specs(vllm_config.model_config.model, kv_cache_config)
    first = next(iter(specs.values()))
    replicas, publishing = kv_cache_config.kv_tp_replicas, vllm_config.kv_events_config
    return Engine(
        block_tokens=first.block_size,
        hash_tokens=kv_cache_config.hash_block_size or first.block_size,
        n_blocks=kv_cache_config.num_blocks,
        specs=specs,
        attention="mla" if isinstance(first, MLAAttentionSpec) else "gqa",
        model=_name(vllm_config.model_config.model),
        weights_version=_weights_version(vllm_config, settings),
        kv_quantization=f"{cache.cache_dtype} of {str(vllm_config.model_config.dtype).removeprefix('torch.')}",
        tp_size=parallel.tensor_parallel_size,
        kv_tp_replicas=replicas,
        tells_events=publishing is not None and publishing.enable_kv_cache_events,
    )


def _refuse(vllm_config: Any) -> None:
    transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigError(
            "kv_load_failure_policy: with "
            f"{transfer.kv_load_failure_policy!r} a block that cannot be loaded fails its request; write "
            '"kv_load_failure_policy": "recompute" into the kv_transfer_config',
            field="kv_load_failure_policy",
        )
    if transfer.kv_role != "kv_both":
        raise ConfigError(
            f'kv_role: {transfer.kv_role!r} is for handing requests over; write "kv_role": "kv_both"', field="kv_role"
        )
    if parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "pipeline_parallel_size: each stage has other layers, and a worker keeps blocks of one layout; set it to "
            "1, and tensor_parallel_size in its place"
        )
    for size, name in (
        (parallel.decode_context_parallel_size, "decode_context_parallel_size"),
        (parallel.prefill_context_parallel_size, "prefill_context_parallel_size"),
    ):
        if size > 1:
            raise ConfigError(f"{name}: blocks that are dealt out to {size} ranks cannot be cached; set it to 1")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise ConfigError(
            "calculate_kv_scales: every engine would scale its KV its own way; take a checkpoint with scales"
        )
    guessing = vllm_config.speculative_config
    if guessing is not None and guessing.method not in _GUESSING_WITHOUT_KV:
        raise ConfigError(
            f"speculative_config: a draft model ({guessing.method}) keeps KV of its own among the model's, which "
            f"cannot be cached; use {', '.join(sorted(_GUESSING_WITHOUT_KV))} or none"
        )
    _refuse_model(vllm_config)


def _refuse_model(vllm_config: Any) -> None:
    """Those whose answers, or whose KV, are not made token after token."""
    model, pooling = vllm_config.model_config, vllm_config.model_config.pooler_config
    if pooling is not None and not model.is_prefix_caching_supported:
        kind = f"{pooling.seq_pooling_type}, {pooling.tok_pooling_type}"
        raise ConfigError(
            f"model: {model.model} answers from all tokens of its prompt (pooling {kind}), so none may be left out; "
            "use one that answers from the last, or start it without this connector",
            field="model",
        )
    if vllm_config.diffusion_config is not None:
        raise ConfigError(
            f"model: tokens that {model.model} writes see those after them, so their KV is no prefix's; start it "
            "without this connector",
            field="model",
        )


def _specs(model: str, kv_cache_config: Any) -> dict[str, FullAttentionSpec]:
    """By layer, in layer order. Errors: ConfigError for a model some of whose layers keep only part of their KV."""
    groups = kv_cache_config.kv_cache_groups
    found: dict[str, FullAttentionSpec] = {}
    for group in groups:
        spec = group.kv_cache_spec
        of_layer = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else {}
        found.update({layer: of_layer.get(layer, spec) for layer in group.layer_names})
    partial = sorted({type(spec).__name__ for spec in found.values() if type(spec) not in _WHOLE_CONTEXT})
    if partial or len(groups) != 1:
        kinds = f"layers of kind {', '.join(partial)}" if partial else f"{len(groups)} groups of layers"
        raise ConfigError(
            f"model: {model} has {kinds}, and blocks of its full context alone can be cached; start it without this "
            "connector, or, if it has sliding windows only, with --disable-hybrid-kv-cache-manager",
            field="model",
        )
    if any(spec.non_causal for spec in found.values()):
        raise ConfigError(
            f"model: tokens of {model} see those after them, so their KV is no prefix's; start it without this "
            "connector",
            field="model",
        )
    if len({spec.block_size for spec in found.values()}) > 1:
        raise ConfigError(f"model: layers of {model} have blocks of different sizes, which cannot be cached")
    return {layer: found[layer] for layer in in_layer_order(list(found))}


def _name(model: str) -> str:
    """A folder's own name: where it lies differs between machines, and its weights are told by their digest."""
    return Path(model).name if Path(model).is_dir() else model


def _weights_version(vllm_config: Any, settings: ConnectorSettings) -> str:
    """Of the weights, and of all else on which the KV depends but the tokens and the layout."""
    model, multimodal = vllm_config.model_config, vllm_config.model_config.multimodal_config
    facts = [model.architectures, model.quantization, str(model.quantization_config), *_of_its_length(model)]
    if multimodal is not None:  # what its items are hashed with does not say how they are made smaller
        facts += [multimodal.video_pruning_rate, multimodal.video_pruning_method, multimodal.mm_encoder_attn_dtype]
    named = settings.weights_version or _found_version(model, vllm_config.load_config)
    return f"{named}+{config_digest(model.hf_config, *facts)}"


def _of_its_length(model: Any) -> list[object]:
    """What the model decides by the longest context it is to serve, and then does to short ones as well."""
    # One that vLLM fits to its memory is made for what its configuration says, and shortened afterwards.
    is_fitted = model.original_max_model_len == -1
    facts: list[object] = []
    if length_bound_rope(model.hf_text_config):
        facts += ["length", "fitted" if is_fitted else model.max_model_len]
    if hasattr(model.hf_text_config, "attn_temperature_tuning"):  # Llama 4 sets it in a copy, where it has images
        told = model.try_get_generation_config() | model.override_generation_config
        is_long = "fitted" if is_fitted else model.max_model_len > _LLAMA_4_SHORT
        facts += ["temperature", told.get("attn_temperature_tuning", is_long)]
    return facts


def _found_version(model: Any, load: Any) -> str:
    if load.load_format == "dummy":
        raise ConfigError(
            f"load_format: dummy weights have no identity; name them by {WHERE}.weights_version",
            field="weights_version",
        )
    folder = Path(model.model)
    if folder.is_dir():
        try:
            return f"digest:{folder_digest(folder)}"
        except ValueError as error:
            raise ConfigError(
                f"{WHERE}.weights_version: {error}; name them, such as by a revision", field="weights_version"
            ) from None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
    if isinstance(found, str):
        return f"commit:{Path(found).parent.name}"
    raise ConfigError(
        f"model: it cannot be told which weights {model.model} are; name them by {WHERE}.weights_version",
        field="weights_version",
    )


def packing_of(vllm_config: Any, layers: list[str]) -> list[str]:
    """All that decides what vLLM's kernels put where within a page; known where the model is loaded."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

    backends = sorted(backend.get_name() for backend in get_current_attn_backends(vllm_config, layers))
    order = vllm_config.cache_config.get_resolved_kv_cache_layout().name
    return ["vllm", *backends, order, *_processor(vllm_config)]


def _processor(vllm_config: Any) -> list[str]:
    """vLLM's kernels for processors pack a block as the processor likes it; those for devices do not."""
    if vllm_config.device_config.device_type != "cpu":
        return []
    has_amx = torch.cpu._is_amx_tile_supported()
    return [torch.backends.cpu.get_cpu_capability(), "AMX" if has_amx else ""]


def this_host() -> str:
    """The machine, and this start of it: its processes can map each other's memory."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()
