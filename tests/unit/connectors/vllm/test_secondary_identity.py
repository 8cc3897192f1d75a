"""Two engines share bytes only if everything agrees on which the meaning of the bytes depends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.unit.connectors.vllm.secondary_builders import FACTS, given, key
from tiered.connectors.vllm.secondary_identity import Group, chunk_hash, group_of, identity_of
from tiered.connectors.vllm.secondary_settings import in_our_words, read_settings
from tiered.errors import ConfigError
from tiered.hashing.scope import scope_id

URL = "redis://127.0.0.1:6379"


def root(weights_version: str = "1", model: str = "", **changes: Any) -> bytes:
    facts = msgspec.structs.replace(FACTS, **changes)
    return scope_id(identity_of(facts, weights_version=weights_version, model=model).scope, label="public")


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_version": "0.33.0"},
        {"model": "other"},
        {"dtype": "float16"},
        {"dtype": "fp8_e4m3"},
        {"order": "LBHNC"},
        {"groups": (Group(0, 16, ("layers.0", "layers.2")),)},
        {"groups": (Group(0, 32, ("layers.0", "layers.1")),)},
        {"groups": (Group(1, 16, ("layers.0", "layers.1")),)},
        {"tokens_per_hash": 8},
        {"blocks_per_chunk": 2},
        {"rank_bytes_per_block": 4096},
        {"chunk_bytes": 16_384},
        {"world_size": 2},
        {"tp_size": 2},
        {"pp_size": 2},
        {"pcp_size": 2},
        {"dcp_size": 2},
        {"is_replicated": True},
        {"is_canonical": True},
    ],
)
def test_every_fact_counts(changes: dict[str, Any]) -> None:
    assert root(**changes) != root()


def test_every_fact_is_in_the_list_above() -> None:
    marks = test_every_fact_counts.pytestmark  # type: ignore[attr-defined]
    changed = {name for changes in marks[0].args[1] for name in changes}
    assert changed == set(type(FACTS).__struct_fields__)


def test_weights_count_and_a_given_name_takes_the_place_of_a_path() -> None:
    assert root(weights_version="2") != root()
    here, there = (msgspec.structs.replace(FACTS, model=path) for path in ("/a/llama", "/b/llama"))
    assert identity_of(here, weights_version="1").scope != identity_of(there, weights_version="1").scope
    named = [identity_of(facts, weights_version="1", model="llama") for facts in (here, there)]
    assert named[0] == named[1]


def test_a_chunk_is_told_by_scope_and_key_alone() -> None:
    chunks = (key(1, 0), key(1, 0, group=1), key(1, 1))
    hashes = {chunk_hash(scope, chunk) for scope in (root(), root("2")) for chunk in chunks}
    assert len(hashes) == 6
    assert group_of(key(1, 0, group=7)) == 7


@pytest.mark.parametrize(
    ("chunk_bytes", "tokens", "dtype", "rows"),
    [
        (8192, 16, "bfloat16", 16),
        (2 << 20, 16, "bfloat16", 16),
        (12_288, 7, "bfloat16", 3),
        (4099, 16, "bfloat16", 1),
        (96 << 20, 1, "uint8", (96 << 20) // 4096),
    ],
)
def test_the_layout_has_as_many_bytes_as_a_chunk(chunk_bytes: int, tokens: int, dtype: str, rows: int) -> None:
    facts = msgspec.structs.replace(FACTS, chunk_bytes=chunk_bytes, groups=(Group(0, tokens, ("l",)),), dtype=dtype)
    layout = identity_of(facts, weights_version="1").layout
    assert layout.block_bytes == chunk_bytes
    assert layout.block_tokens == rows
    assert layout.interior.startswith("vllm 0.32.0 chunk LBNHC x1 ")


@pytest.mark.parametrize("chunk_bytes", [0, 8 << 30, (1 << 20) * 4 + 3])
def test_a_chunk_that_cannot_be_stored_is_refused(chunk_bytes: int) -> None:
    facts = msgspec.structs.replace(FACTS, chunk_bytes=chunk_bytes, groups=(Group(0, 1, ("l",)),))
    with pytest.raises(ConfigError, match=f"chunks of {chunk_bytes} bytes cannot be stored"):
        identity_of(facts, weights_version="1")


def test_an_engine_that_does_not_say_its_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="order"):
        identity_of(msgspec.structs.replace(FACTS, order=""), weights_version="1")


# Settings.


@dataclass(frozen=True)
class Wrong:
    changes: dict[str, Any]
    field: str
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong({"redis_ulr": URL}, "redis_ulr", "unknown setting; known here: breaker_failures"),
        Wrong({"url": URL}, "url", "unknown setting"),
        Wrong({"redis_url": "127.0.0.1"}, "redis_url", "write redis://host:port"),
        Wrong({"weights_version": ""}, "weights_version", "at least 1 character"),
        Wrong({"partitions": 3}, "partitions", "power of two"),
        Wrong({"namespace": "a b"}, "namespace", "pattern"),
        Wrong({"tenant": "a/b"}, "tenant", "a tenant name is"),
        Wrong({"load_threads": 0}, "load_threads", "greater than or equal to 1"),
        Wrong({"lookup_wait_s": 0}, "lookup_wait_s", "greater than 0"),
        Wrong({"lookup_timeout_s": "soon"}, "lookup_timeout_s", "valid number"),
        Wrong({"locality": "here"}, "locality", "'LOCAL' or 'REMOTE'"),
    ],
    ids=lambda wrong: wrong.field,
)
def test_a_mistake_is_one_sentence_that_names_the_field(wrong: Wrong) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(given(URL) | wrong.changes)
    assert caught.value.field == wrong.field
    assert str(caught.value).startswith(f"secondary_tiers.{wrong.field}: ")
    assert wrong.says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["redis_url", "weights_version"])
def test_what_has_to_be_said_is_asked_for(name: str) -> None:
    settings = given(URL)
    del settings[name]
    with pytest.raises(ConfigError, match=rf"secondary_tiers\.{name}: missing; write"):
        read_settings(settings)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(given("http://user:hidden@host"))
    assert "hidden" not in str(caught.value)


def test_settings_of_redis_are_named_as_they_are_here() -> None:
    error = in_our_words(ConfigError("redis.url: no usable server at redis://h; set redis.url", field="redis.url"))
    assert str(error) == "secondary_tiers.redis_url: no usable server at redis://h; set redis_url"
    assert error.field == "redis_url"
