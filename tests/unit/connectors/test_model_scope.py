"""A loaded model's scope: equal for every load of one model, another where weights or configuration are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.unit.connectors.families import SHAPE
from tiered.connectors.model_config import config_digest
from tiered.connectors.transformers import model_scope

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.0,
}


def llama(**config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE | config)).eval()


def mistral(**config: Any) -> MistralForCausalLM:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SHAPE | config)).eval()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (llama(), llama(rope_parameters=YARN)),
        (llama(), llama(rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})),
        (llama(), llama(rms_norm_eps=1e-5)),
        (mistral(sliding_window=20), mistral(sliding_window=None)),
    ],
    ids=["yarn", "theta", "epsilon", "window"],
)
def test_equal_weights_under_another_configuration_are_another_scope(one: Any, other: Any) -> None:
    theirs = other.state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in one.state_dict().items())
    assert model_scope(one, name="m") != model_scope(other, name="m")
    named = [model_scope(model, name="m", weights_version="1") for model in (one, other)]
    assert named[0] != named[1], "weights that are named are told apart like others"


def test_how_weights_are_quantized_is_told_whole() -> None:
    digests = [
        config_digest(LlamaConfig(**SHAPE, quantization_config={"quant_method": "fp8", "dtype": dtype}))
        for dtype in ("float8_e4m3fn", "float8_e5m2")
    ]
    assert digests[0] != digests[1]


def test_every_load_of_one_model_is_the_same_scope(tmp_path: Path) -> None:
    made = llama()
    before = model_scope(made, name="m")
    for folder in (tmp_path / "here", tmp_path / "there"):
        made.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        loaded.config.use_cache = False
        loaded.config.output_hidden_states = True
        assert model_scope(loaded, name="m") == before
    assert model_scope(made, name="m") == before, "saving a model changes its configuration"


def test_every_load_of_one_gguf_file_is_the_same_scope(tmp_path: Path) -> None:
    made, scopes = llama(), []
    for folder in (tmp_path / "here", tmp_path / "there"):
        write_gguf(folder, made)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf")
        assert torch.equal(loaded.get_input_embeddings().weight, made.get_input_embeddings().weight)
        scopes.append(model_scope(loaded, name="m"))
    assert scopes[0] == scopes[1]


def write_gguf(folder: Path, model: LlamaForCausalLM) -> None:
    folder.mkdir()
    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in weights.items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
