"""What pages are called: everything that changes their bytes or their meaning changes the name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.hicache import HiCacheConfig, HostPool, LatentPool, page_keys
from tiered.connectors.sglang.identity import Naming, scope_of
from tiered.connectors.sglang.settings import BackendSettings, read_settings
from tiered.errors import ConfigError
from tiered.hashing.scope import scope_id

SETTINGS = BackendSettings(weights_version="1")


def test_a_scope_says_what_the_pool_and_the_rank_are() -> None:
    config = HiCacheConfig(tp_rank=1, tp_size=2, pp_rank=2, pp_size=4)
    scope = scope_of(config, HostPool(page_size=16, layer_num=3, layout="page_head"), SETTINGS)
    layout = scope.layout
    assert (layout.n_layers, layout.n_kv_heads, layout.head_dim, layout.block_tokens) == (3, 2, 8, 16)
    assert (layout.dtype, layout.interior) == ("bfloat16", "sglang/page_head")
    assert (scope.tp_rank, scope.tp_size, scope.pp_rank, scope.pp_size) == (1, 2, 2, 4)
    assert (scope.model, scope.weights_version) == ("test-model", "1")


def test_every_difference_that_matters_is_another_scope() -> None:
    config, pool = HiCacheConfig(tp_size=2, pp_size=2), HostPool()
    scopes = [
        scope_of(config, pool, SETTINGS),
        scope_of(replace(config, tp_rank=1), pool, SETTINGS),
        scope_of(replace(config, tp_size=4), pool, SETTINGS),
        scope_of(replace(config, pp_rank=1), pool, SETTINGS),
        scope_of(replace(config, pp_size=4), pool, SETTINGS),
        scope_of(replace(config, model_name="other"), pool, SETTINGS),
        scope_of(config, pool, BackendSettings(weights_version="2")),
        scope_of(config, HostPool(layout="page_first_direct"), SETTINGS),
        scope_of(config, HostPool(dtype=torch.float16), SETTINGS),
        scope_of(config, HostPool(page_size=8), SETTINGS),
        *[
            scope_of(config, HostPool(dtype=dtype), BackendSettings(weights_version="1", kv_cache_dtype=name))
            for dtype, name in ((torch.uint8, "fp8_e4m3"), (torch.uint8, "fp8_e5m2"), (torch.float8_e5m2, ""))
        ],
    ]
    assert len({scope_id(scope, label="public") for scope in scopes}) == len(scopes)


def test_ranks_that_hold_the_same_kv_share_it_whatever_their_number() -> None:
    pool = LatentPool()
    one = scope_of(HiCacheConfig(is_mla_model=True), pool, SETTINGS)
    other = scope_of(HiCacheConfig(is_mla_model=True, tp_rank=3, tp_size=8), pool, SETTINGS)
    assert one == other
    assert (one.layout.attention, one.layout.head_dim, one.layout.n_kv_heads) == ("mla", 12, 1)


def test_keys_are_renamed_by_root_slice_and_generation() -> None:
    keys, root = page_keys("p", 3), bytes(32)
    namings = [Naming(), Naming(0, 2), Naming(1, 2), Naming().renewed(), Naming().renewed()]
    names = [tuple(naming.hashes(each, keys)) for naming in namings for each in (root, b"\1" * 32)]
    assert len(set(names)) == len(names)
    assert Naming().hashes(root, keys)[1:] == Naming().hashes(root, keys[1:])
    assert {len(name) for name in names[0]} == {32}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"sockets": "x"},
            r"extra-config\.sockets: unknown setting; known here: kv_cache_dtype, load_timeout_s, model",
        ),
        ({"tenant": "a b"}, r"extra-config\.tenant: 'a b' is not valid: a tenant name is"),
        ({"load_timeout_s": 60}, r"load_timeout_s: 60 is not valid"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_settings(given)


def test_sglangs_own_keys_are_no_settings_of_ours() -> None:
    given = {"backend_name": "tiered", "interface_v1": 1, "prefetch_threshold": 64, "tenant": "acme"}
    assert read_settings(given).tenant == "acme"


def test_weights_that_nobody_names_are_told_from_the_folder_or_refused(tmp_path: Path) -> None:
    unnamed = BackendSettings()
    with pytest.raises(ConfigError, match="weights_version: 'test-model' is no folder"):
        scope_of(HiCacheConfig(), HostPool(), unnamed)
    with pytest.raises(ConfigError, match=r"weights_version: the weights in .* cannot be told"):
        scope_of(HiCacheConfig(model_name=str(tmp_path)), HostPool(), unnamed)
    versions = []
    for content in (b"one" * 9000, b"two" * 9000):
        (tmp_path / "model.bin").write_bytes(content)
        versions.append(scope_of(HiCacheConfig(model_name=str(tmp_path)), HostPool(), unnamed).weights_version)
    for config in ({"rope_theta": 1e4}, {"rope_theta": 5e5}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        versions.append(scope_of(HiCacheConfig(model_name=str(tmp_path)), HostPool(), unnamed).weights_version)
    assert len(set(versions)) == 4
    with pytest.raises(ConfigError, match="model: SGLang did not say"):
        scope_of(HiCacheConfig(model_name=None), HostPool(), SETTINGS)


def test_pools_that_cannot_be_told_apart_or_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype: the host pool holds plain bytes"):
        scope_of(HiCacheConfig(), HostPool(dtype=torch.uint8), SETTINGS)
    unequal = HostPool()
    unequal.v_head_dim = 4
    with pytest.raises(ConfigError, match="no plain keys and values of one size"):
        scope_of(HiCacheConfig(), unequal, SETTINGS)
    odd = HostPool()
    odd.layout = "page_unified"
    with pytest.raises(ConfigError, match="'page_unified' cannot be kept; choose a --hicache-mem-layout of layer_f"):
        scope_of(HiCacheConfig(), odd, SETTINGS)
    with pytest.raises(ConfigError, match="dtype float64 cannot be kept"):
        scope_of(HiCacheConfig(), HostPool(dtype=torch.float64), SETTINGS)
