"""What the connector has to know of the engine it runs in, read from vLLM's configuration; what it cannot serve is
refused here, in one sentence, before the engine has started.

The only module that reads that configuration. Both sides read it, each in its own process.
"""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from vllm import __version__ as vllm_version
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

from tiered.connectors.vllm.geometry import Page, in_layer_order, layout_of
from tiered.connectors.vllm.orders import Shard
from tiered.connectors.vllm.settings import WHERE, ConnectorSettings
from tiered.connectors.weights import folder_digest
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout

VERSION: Final = f"vllm {vllm_version}"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_WHERE_FROM: Final = frozenset({"_name_or_path", "transformers_version"})
"""Of a model's configuration: where it was read, which changes nothing."""

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
    pp_size: int
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

    def scope(self, layout: KvLayout, shard: Shard, *, generation: str = "") -> ModelScope:
        return ModelScope(
            model=self.model,
            weights_version=self.weights_version,
            revision=f"reset {generation}" if generation else "",
            layout=layout,
            kv_quantization=self.kv_quantization,
            tp_rank=shard.kv_rank,
            tp_size=self.tp_size // self.kv_tp_replicas,
            pp_rank=shard.pp_rank,
            pp_size=self.pp_size,
        )


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
        pp_size=parallel.pipeline_parallel_size,
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


def _specs(model: str, kv_cache_config: Any) -> dict[str, FullAttentionSpec]:
    """By layer, in layer order. Errors: ConfigError for a model some of whose layers keep only part of their KV."""
    groups = kv_cache_config.kv_cache_groups
    found: dict[str, FullAttentionSpec] = {}
    for group in groups:
        spec = group.kv_cache_spec
        of_layer = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else {}
        found.update({layer: of_layer.get(layer, spec) for layer in group.layer_names})
    partial = sorted({type(spec).__name__ for spec in found.values() if not isinstance(spec, FullAttentionSpec)})
    if partial or len(groups) != 1:
        kinds = f"layers of kind {', '.join(partial)}" if partial else f"{len(groups)} groups of layers"
        raise ConfigError(
            f"model: {model} has {kinds}, and blocks of its full context alone can be cached; start it without this "
            "connector, or, if it has sliding windows only, with --disable-hybrid-kv-cache-manager",
            field="model",
        )
    if len({spec.block_size for spec in found.values()}) > 1:
        raise ConfigError(f"model: layers of {model} have blocks of different sizes, which cannot be cached")
    return {layer: found[layer] for layer in in_layer_order(list(found))}


def _name(model: str) -> str:
    """A folder's own name: where it lies differs between machines, and its weights are told by their digest."""
    return Path(model).name if Path(model).is_dir() else model


def _weights_version(vllm_config: Any, settings: ConnectorSettings) -> str:
    """Of the weights, and of all else in the configuration on which the KV depends."""
    model = vllm_config.model_config
    config = {name: value for name, value in model.hf_config.to_dict().items() if name not in _WHERE_FROM}
    facts = [model.quantization, json.dumps(config, sort_keys=True, default=str)]
    named = settings.weights_version or _found_version(model, vllm_config.load_config)
    return f"{named}+{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


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
