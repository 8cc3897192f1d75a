"""What the connector takes from vLLM's configuration: what an engine's blocks are called, and which it refuses.

Configurations are vLLM's own, of models that nobody loads; no engine is started.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of themselves
    pytest.importorskip("vllm.v1.engine.llm_engine")

from transformers import Llama4TextConfig, LlamaConfig, Phi3Config, PretrainedConfig
from vllm import EngineArgs
from vllm.config import PoolerConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, RSWASpec

from tiered.connectors.vllm import scheduler
from tiered.connectors.vllm.engine import Engine, engine_of, this_host
from tiered.connectors.vllm.orders import Shard
from tiered.connectors.vllm.scheduler import SchedulerSide
from tiered.connectors.vllm.settings import ConnectorSettings
from tiered.connectors.vllm.worker import Seen
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 512,
}
SETTINGS = ConnectorSettings(socket="/nowhere/worker.sock", weights_version="1")
SPEC = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
LAYOUT = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="bfloat16", block_tokens=32, interior="test")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return saved(LlamaConfig(**SHAPE, architectures=["LlamaForCausalLM"]), tmp_path / "llama")


def saved(config: PretrainedConfig, folder: Path) -> Path:
    config.save_pretrained(folder)
    return folder


def configured(model: Path, **arguments: Any) -> Any:
    transfer = {"kv_connector": "TieredConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    transfer["kv_connector_module_path"] = "tiered.connectors.vllm"
    made = EngineArgs(
        model=str(model), skip_tokenizer_init=True, load_format="dummy", kv_transfer_config=transfer, **arguments
    )
    return made.create_engine_config()


def engine(config: Any, *specs: Any) -> Engine:
    """specs: one for each of the layers."""
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"l.{n}"]) for n, spec in enumerate(specs or [SPEC])]
    kv = SimpleNamespace(kv_cache_groups=groups, kv_tp_replicas=1, hash_block_size=None, num_blocks=8)
    return engine_of(config, kv, SETTINGS)


# Which weights.


def test_every_start_of_one_model_has_one_identity(llama: Path) -> None:
    config = configured(llama, max_model_len=1_024)
    first, again = engine(config), engine(configured(llama, max_model_len=2_048))
    assert first.weights_version == again.weights_version
    config.model_config.hf_config.use_cache = False
    assert engine(config).weights_version == first.weights_version


@pytest.mark.parametrize(
    "override", [{"rms_norm_eps": 1e-3}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}]
)
def test_what_overrides_the_configuration_is_part_of_the_identity(llama: Path, override: dict[str, Any]) -> None:
    assert (
        engine(configured(llama)).weights_version != engine(configured(llama, hf_overrides=override)).weights_version
    )


def test_long_rope_turns_by_the_length_that_an_engine_is_to_serve(tmp_path: Path) -> None:
    config = Phi3Config(
        **SHAPE,
        architectures=["Phi3ForCausalLM"],
        max_position_embeddings=4_096,
        original_max_position_embeddings=512,
        rope_parameters=LONG_ROPE,
    )
    phi = saved(config, tmp_path)
    short, long, again, fitted = (
        engine(configured(phi, max_model_len=length)).weights_version for length in (512, 2_048, 2_048, -1)
    )
    assert long == again
    assert len({short, long, fitted}) == 3
    shrunk = configured(phi, max_model_len=-1)
    shrunk.model_config.max_model_len = 256  # as vLLM does once it knows how much memory there is
    assert engine(shrunk).weights_version == fitted


def test_llama_4_tunes_its_attention_by_the_length_that_an_engine_is_to_serve(tmp_path: Path) -> None:
    config = Llama4TextConfig(
        **SHAPE, architectures=["Llama4ForCausalLM"], max_position_embeddings=1 << 20, num_local_experts=2
    )
    model = saved(config, tmp_path)

    def version(length: int, **told: Any) -> str:
        return engine(configured(model, max_model_len=length, override_generation_config=told)).weights_version

    assert version(8_192) == version(32_768)
    assert version(32_769) == version(65_536)
    assert version(32_768) != version(32_769)
    assert version(8_192, attn_temperature_tuning=True) == version(65_536, attn_temperature_tuning=True)
    assert version(8_192, attn_temperature_tuning=True) != version(8_192)


# The scheduler's side.


class Recorded:
    """In the place of RemoteClient: the scopes that clients were made with."""

    def __init__(self) -> None:
        self.scopes: list[ModelScope] = []

    def attach_later(self, socket: str, scope: ModelScope, **_: Any) -> Any:
        self.scopes.append(scope)
        return SimpleNamespace(attached=False, close=lambda: None)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(scheduler, "RemoteClient", recorded)
    return recorded


@pytest.fixture
def side(llama: Path) -> Iterator[SchedulerSide]:
    with closing(SchedulerSide(engine(configured(llama)), SETTINGS)) as made:
        yield made


def rank(tp_rank: int, tp_size: int, **changes: Any) -> Seen:
    scope = ModelScope(model="m", weights_version="the rank's", layout=LAYOUT, tp_rank=tp_rank, tp_size=tp_size)
    return Seen(msgspec.structs.replace(scope, **changes), Shard(0, tp_rank), this_host(), {})


def test_lookups_are_made_under_the_names_that_the_ranks_store_under(side: SchedulerSide, clients: Recorded) -> None:
    """A model may change its configuration while it is built, which happens in the ranks' processes."""
    ranks = {(0, tp_rank): rank(tp_rank, 2) for tp_rank in range(2)}
    side.meet(ranks)
    assert set(clients.scopes) == {seen.scope for seen in ranks.values()}
    clients.scopes.clear()
    side.reset()
    found = set(clients.scopes)
    assert {scope.revision for scope in found} != {""}
    assert {msgspec.structs.replace(scope, revision="") for scope in found} == {seen.scope for seen in ranks.values()}


def test_of_ranks_that_hold_the_same_kv_the_one_that_stores_it_names_it(llama: Path, clients: Recorded) -> None:
    alike = replace(engine(configured(llama)), tp_size=2, kv_tp_replicas=2, attention="mla")
    writer, reader = rank(0, 1), rank(0, 1, weights_version="another's")
    with closing(SchedulerSide(alike, SETTINGS)) as side:
        side.meet({(0, 0): writer, (0, 1): reader})
    assert set(clients.scopes) == {writer.scope}


def test_a_reset_says_that_this_engine_is_alone_from_now_on(
    side: SchedulerSide, clients: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    side.meet({(0, 0): rank(0, 1)})
    with caplog.at_level(logging.WARNING):
        side.reset()
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("tiered")]
    for part in (
        "shares with no other until it is started again",
        "/pause resets nothing with clear_cache=false",
        "/sleep",
    ):
        assert part in said


def test_the_reset_that_the_documentation_names_is_vllms_own() -> None:
    from vllm import LLM
    from vllm.entrypoints.rl.online.api_router import pause_generation
    from vllm.entrypoints.serve.dev.cache.api_router import reset_prefix_cache

    page = Path(__file__).resolve().parents[2] / "docs" / "engines" / "vllm.md"
    text = page.read_text(encoding="utf-8")
    queries = re.findall(r"/reset_prefix_cache\?([a-z_=&]+)", text)
    assert queries
    for query in queries:
        names = {pair.partition("=")[0] for pair in query.split("&")}
        assert names <= set(signature(reset_prefix_cache).parameters)
        assert "reset_external" in names
    calls = re.findall(r"LLM\.reset_prefix_cache\(([a-z_]+)=", text)
    assert calls
    assert set(calls) <= set(signature(LLM.reset_prefix_cache).parameters)
    assert "`POST /pause`, unless it says `clear_cache=false`" in text.replace("\n", " ")
    assert signature(pause_generation).parameters["clear_cache"].default is True


# What is refused.


def refusal(config: Any, *specs: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        engine(config, *specs)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("pooling", [{"seq_pooling_type": "MEAN"}, {"seq_pooling_type": "CLS"}])
def test_a_model_that_answers_from_all_tokens_is_refused(llama: Path, pooling: dict[str, Any]) -> None:
    config = configured(llama, runner="pooling", convert="embed", pooler_config=PoolerConfig(**pooling))
    assert "answers from all tokens of its prompt" in refusal(config)


def test_a_model_that_answers_from_the_last_token_is_served(llama: Path) -> None:
    pooling = PoolerConfig(seq_pooling_type="LAST")
    assert engine(configured(llama, runner="pooling", convert="embed", pooler_config=pooling)).block_tokens == 32


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(SPEC, non_causal=True), "see those after them"),
        (RSWASpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.bfloat16, rswa_window=64), "RSWASpec"),
    ],
    ids=["prefix-lm", "reference-window"],
)
def test_kv_that_is_not_of_what_comes_before_alone_is_refused(llama: Path, spec: Any, said: str) -> None:
    assert said in refusal(configured(llama), spec)


def test_answers_that_are_written_many_tokens_at_once_are_refused(llama: Path) -> None:
    config = configured(llama)
    config.diffusion_config = SimpleNamespace(canvas_length=32)
    assert "see those after them" in refusal(config)


@pytest.mark.parametrize("stages", [2, 4])
def test_pipeline_parallelism_is_refused(llama: Path, stages: int) -> None:
    config = configured(llama)
    config.parallel_config.pipeline_parallel_size = stages
    assert refusal(config).startswith("pipeline_parallel_size: ")
