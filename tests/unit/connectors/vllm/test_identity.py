"""What a request's blocks are called: tenant, adapter, items, weights, geometry, and settings that are refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.connectors.vllm.builders import FakeRequest, image, lora
from tiered.connectors.vllm.adapters import Adapters
from tiered.connectors.vllm.asks import Ask, Asking
from tiered.connectors.vllm.geometry import Page, in_layer_order, layout_of
from tiered.connectors.vllm.settings import read_settings
from tiered.connectors.weights import folder_digest
from tiered.errors import ConfigError
from tiered.hashing.chain import chain_hashes
from tiered.types import NO_HINTS, Continues, Hints, TenantId

_TOLD: Final = "Once upon a time"
"""Somebody's words, which are no log's business."""


def asking() -> Asking:
    return Asking(default_tenant=TenantId("default"), salt_tenants={"s3cret": TenantId("acme")}, adapters=Adapters())


def ask_of(**fields: Any) -> Ask:
    ask = asking().ask_of(FakeRequest("r", **fields))
    assert ask is not None
    return ask


def hashes(**fields: Any) -> list[bytes]:
    return list(chain_hashes(b"r" * 32, range(16), block_tokens=4, extras=ask_of(**fields).extras))


def write_weights(folder: Path, values: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    header, at = {}, 0
    for name, value in values.items():
        header[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": [at, at + len(value)]}
        at += len(value)
    packed = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(packed).to_bytes(8, "little") + packed + b"".join(values.values()))
    return folder


def test_the_tenant_is_named_by_the_request_else_by_its_salt_else_the_default() -> None:
    assert ask_of(kv_transfer_params={"tenant": "blue"}, cache_salt="s3cret").tenant == "blue"
    assert ask_of(cache_salt="s3cret").tenant == "acme"
    assert ask_of(cache_salt="other").tenant == "default"
    assert ask_of(kv_transfer_params={}).tenant == "default"


@pytest.mark.parametrize("name", ["", "a b", "../x", 7, "x" * 65, ["blue"]])
def test_a_tenant_that_nobody_may_be_called_is_served_without_the_cache(name: object) -> None:
    assert asking().ask_of(FakeRequest("r", kv_transfer_params={"tenant": name})) is None


def test_embeddings_are_served_without_the_cache() -> None:
    assert asking().ask_of(FakeRequest("r", prompt_embeds=object())) is None
    request = FakeRequest("r")
    request.prompt_token_ids = None
    assert asking().ask_of(request) is None


def test_input_that_comes_in_pieces_is_served_without_the_cache() -> None:
    """vLLM adds the images of later pieces to the request, and tells the connector of the first piece alone."""
    assert asking().ask_of(FakeRequest("r", resumable=True)) is None


def test_who_wants_its_prompt_computed_is_not_looked_up() -> None:
    assert not ask_of(skip_reading_prefix_cache=True).may_load


def test_what_the_front_end_knows_of_a_request_are_its_hints() -> None:
    params = {"continues": "yes", "ttl_s": 600, "session": "chat-7", "labels": ["tools=shop"], "tenant": "blue"}
    ask = ask_of(kv_transfer_params=params)
    assert ask.tenant == "blue"
    assert ask.hints == Hints(continues=Continues.YES, ttl_s=600, session="chat-7", labels=("tools=shop",))
    assert ask_of(kv_transfer_params={"continues": False}).hints == Hints(continues=Continues.NO)
    assert ask_of(kv_transfer_params={"remote_host": "x"}).hints == ask_of().hints == NO_HINTS


def test_vllms_own_session_is_one_unless_the_front_end_names_another() -> None:
    assert ask_of(session_id="s1").hints == Hints(session="s1")
    assert ask_of(session_id="s1", kv_transfer_params={"session": "s2"}).hints == Hints(session="s2")


@pytest.mark.parametrize(
    "wrong",
    [
        {"continues": "perhaps"},
        {"continues": ["yes"]},
        {"ttl_s": "soon"},
        {"ttl_s": -1},
        {"ttl_s": True},
        {"ttl_s": float("nan")},
        {"ttl_s": 10**400},
        {"session": 7},
        {"session": "x" * 257},
        {"labels": "tools"},
        {"labels": [1]},
        {"labels": ["a"] * 9},
    ],
)
def test_a_hint_that_cannot_be_one_changes_nothing_else(wrong: dict[str, Any]) -> None:
    ask = ask_of(kv_transfer_params={"tenant": "blue", **wrong})
    assert (ask.tenant, ask.hints) == ("blue", NO_HINTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": {"name": _TOLD}},
        {"tenant": _TOLD},
        {"continues": _TOLD},
        {"ttl_s": _TOLD},
        {"ttl_s": [_TOLD]},
        {"session": [_TOLD]},
        {"session": _TOLD * 40},
        {"labels": _TOLD},
        {"labels": [_TOLD, 1]},
        {"labels": [_TOLD * 40]},
    ],
)
def test_what_cannot_be_read_of_a_request_is_logged_by_its_name_alone(
    wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    asking().ask_of(FakeRequest("r", kv_transfer_params=wrong))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "request served without" in said
    assert "Once upon" not in said


def test_salt_adapter_and_items_each_change_the_blocks_they_concern(tmp_path: Path) -> None:
    adapter = lora("sql", str(write_weights(tmp_path / "a", {"w": b"1" * 64})))
    plain = hashes()
    assert not set(plain) & set(hashes(cache_salt="x"))
    assert not set(plain) & set(hashes(lora_request=adapter))
    with_image = hashes(mm_features=[image("cat", 4, 4)])
    assert with_image[0] == plain[0]
    assert not set(with_image[1:]) & set(plain[1:])
    assert hashes(mm_features=[image("dog", 4, 4)])[1] != with_image[1]
    assert hashes(mm_features=[image("cat", 5, 3)])[1] != with_image[1]


def test_an_adapters_name_with_other_weights_is_another_adapter(tmp_path: Path) -> None:
    first = lora("sql", str(write_weights(tmp_path / "a", {"w": b"1" * 64})))
    second = lora("sql", str(write_weights(tmp_path / "b", {"w": b"2" * 64})), number=2)
    assert hashes(lora_request=first) != hashes(lora_request=second)


def test_an_adapter_that_is_loaded_again_in_its_place_is_read_again(tmp_path: Path) -> None:
    adapters = Adapters()
    folder = write_weights(tmp_path / "a", {"w": b"1" * 64})
    before = adapters.identity_of(lora("sql", str(folder)))
    write_weights(tmp_path / "a", {"w": b"2" * 64})
    assert adapters.identity_of(lora("sql", str(folder))) == before, "the engine has not read it again either"
    assert adapters.identity_of(lora("sql", str(folder), load_inplace=True)) != before


def test_an_adapter_that_cannot_be_read_is_served_without_the_cache(tmp_path: Path) -> None:
    assert asking().ask_of(FakeRequest("r", lora_request=lora("sql", "someone/sql"))) is None
    assert asking().ask_of(FakeRequest("r", lora_request=lora("sql", str(tmp_path)))) is None


def test_an_adapter_of_other_scaling_is_another_adapter(tmp_path: Path) -> None:
    identities = set()
    for alpha in (None, 16, 32):
        folder = write_weights(tmp_path / f"alpha-{alpha}", {"w": b"1" * 64})
        if alpha is not None:
            (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": alpha}))
        identities.add(Adapters().identity_of(lora("sql", str(folder))))
    assert len(identities) == 3


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_an_adapter_whose_file_system_is_away_is_served_without_the_cache(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(self: Path) -> bool:
        raise OSError(number, "the share is away", str(self))

    monkeypatch.setattr(Path, "is_dir", away)
    assert asking().ask_of(FakeRequest("r", lora_request=lora("sql", "/share/sql"))) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert "adapter 'sql'" in said
    assert "the share is away" in said


def test_what_cannot_be_read_of_a_request_never_reaches_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    broken = FakeRequest("r", mm_features=[object()])
    asks = asking()
    assert [asks.ask_of(broken), asks.ask_of(broken)] == [None, None]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "AttributeError" in said


def test_equal_weights_have_one_digest_wherever_they_lie(tmp_path: Path) -> None:
    values = {"a": bytes(range(256)) * 100, "b": b"x" * 10}
    assert folder_digest(write_weights(tmp_path / "one", values)) == folder_digest(
        write_weights(tmp_path / "two", values)
    )


@pytest.mark.parametrize("tensor", ["a", "b"])
def test_a_change_throughout_any_tensor_changes_the_digest(tmp_path: Path, tensor: str) -> None:
    values = {"a": bytes(range(256)) * 100, "b": b"x" * 10}
    changed = values | {tensor: bytes(byte ^ 1 for byte in values[tensor])}
    assert folder_digest(write_weights(tmp_path / "one", values)) != folder_digest(
        write_weights(tmp_path / "two", changed)
    )


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (5).to_bytes(8, "little") + b"{]", (2).to_bytes(8, "little") + b"[]"]
)
def test_a_file_that_holds_no_weights_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be told"):
        folder_digest(tmp_path)


def test_a_folder_without_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        folder_digest(tmp_path)


def test_weights_of_another_format_are_told_by_samples(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(bytes(100_000))
    before = folder_digest(tmp_path)
    (tmp_path / "model.gguf").write_bytes(bytes(99_999) + b"x")
    assert folder_digest(tmp_path) != before


def page(layer: str, n_bytes: int, **fields: Any) -> Page:
    return Page(layer, n_bytes, **{"n_kv_heads": 3, "head_dim": 64, "dtype": "bfloat16"} | fields)


def layout(*pages: Page, packing: tuple[str, ...] = ("vllm", "CPU_ATTN", "LBHNC"), attention: Any = "gqa") -> Any:
    return layout_of(pages, block_tokens=128, attention=attention, packing=packing)


def test_a_plain_block_is_described_by_the_models_own_numbers() -> None:
    found = layout(*(page(f"l.{i}", 98_304) for i in range(30)))
    assert (found.n_layers, found.n_kv_heads, found.head_dim, found.dtype) == (30, 3, 64, "bfloat16")
    assert found.block_bytes == 30 * 98_304
    assert found.interior.startswith("vllm/CPU_ATTN/LBHNC#")


@pytest.mark.parametrize(
    ("pages", "attention"),
    [
        ([page("l.0", 98_304 + 256)], "gqa"),
        ([page("l.0", 98_304), page("l.1", 2 * 98_304)], "gqa"),
        ([page("l.0", 98_304, dtype="float8_e5m2")], "gqa"),
        ([page("l.0", 128 * 576, dtype="uint8")], "mla"),
        ([page("l.0", 128 * 576 * 2, n_kv_heads=1, head_dim=576)], "mla"),
    ],
)
def test_any_other_block_is_described_by_as_many_bytes(pages: list[Page], attention: str) -> None:
    assert layout(*pages, attention=attention).block_bytes == sum(one.n_bytes for one in pages)


def test_a_block_of_a_part_of_a_byte_a_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="block size"):
        layout(page("l.0", 1001))


def test_a_model_without_kv_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to cache"):
        layout()


@pytest.mark.parametrize(
    "other",
    [
        layout(page("l.0", 98_304), packing=("vllm", "CPU_ATTN", "LBNHC")),
        layout(page("l.0", 98_304), packing=("vllm", "FLASH_ATTN", "LBHNC")),
        layout(page("m.0", 98_304)),
    ],
)
def test_another_packing_or_layer_is_another_interior(other: Any) -> None:
    assert layout(page("l.0", 98_304)).interior != other.interior


def test_long_and_odd_words_make_an_interior_all_the_same() -> None:
    assert len(layout(page("l.0", 98_304), packing=("x y/\n" * 100,)).interior) <= 128


def test_layers_are_in_the_order_of_their_numbers() -> None:
    assert in_layer_order(["m.10.attn", "m.9.attn", "a.b", "m.attn"]) == ["a.b", "m.9.attn", "m.10.attn", "m.attn"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sockt": "/x"}, "sockt: unknown setting; known here: .*socket"),
        ({"store": "some"}, "store: 'some' is not valid"),
        ({"default_tenant": "a b"}, "default_tenant: 'a b' is not valid: a tenant name"),
        ({"salt_tenants": {"s": "a b"}}, "salt_tenants: a tenant name"),
        ({"lookup_timeout_s": 0}, "lookup_timeout_s"),
        ({"lookup_threads": 99}, "lookup_threads"),
        ({"socket": ""}, "socket"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_connector_extra_config.{told}"):
        read_settings(given)


@pytest.mark.parametrize("salts", [{"s3cret": "a b"}, {"s3cret": 7}, ["s3cret"]])
def test_no_salt_is_shown_by_a_refusal(salts: object) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings({"salt_tenants": salts})
    assert refused.value.field == "salt_tenants"
    assert "s3cret" not in str(refused.value)


def test_the_socket_is_where_a_worker_listens_that_was_not_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert read_settings({}).socket == "/run/user/7/tiered-worker.sock"
