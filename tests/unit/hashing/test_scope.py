"""The scope id: every field counts, none can stand for another, and labels are one of three kinds."""

from __future__ import annotations

import hashlib
import itertools

import msgspec
import pytest

from tiered.hashing.scope import ModelScope, scope_id, tenant_label
from tiered.layout import KvLayout
from tiered.types import TenantId

LAYOUT = KvLayout(n_layers=2, n_kv_heads=4, head_dim=8, dtype="bfloat16")
SCOPE = ModelScope(model="m", weights_version="w", layout=LAYOUT)

OTHER_LAYOUT = {
    "n_layers": 3,
    "n_kv_heads": 5,
    "head_dim": 16,
    "dtype": "float16",
    "block_tokens": 32,
    "attention": "mla",
    "version": 2,
    "interior": "vllm/CPU_ATTN/LBHNC",
}
OTHER_MODEL = {
    "model": "n",
    "weights_version": "v",
    "revision": "r",
    "kv_quantization": "fp8",
    "tp_rank": 1,
    "tp_size": 2,
    "pp_rank": 1,
    "pp_size": 2,
}


def all_variants() -> dict[str, ModelScope]:
    layouts = {f: msgspec.structs.replace(LAYOUT, **{f: value}) for f, value in OTHER_LAYOUT.items()}
    variants = {f"layout.{f}": msgspec.structs.replace(SCOPE, layout=layout) for f, layout in layouts.items()}
    variants.update({f: msgspec.structs.replace(SCOPE, **{f: value}) for f, value in OTHER_MODEL.items()})
    return {"plain": SCOPE, **variants}


def test_the_variants_cover_every_field() -> None:
    assert set(OTHER_LAYOUT) == set(KvLayout.__struct_fields__)
    assert set(OTHER_MODEL) == set(ModelScope.__struct_fields__) - {"layout"}


def test_every_field_of_model_layout_and_label_changes_the_id() -> None:
    labels = ("tenant:a", "tenant:b", "group:a", "public")
    ids = [scope_id(scope, label=label) for scope, label in itertools.product(all_variants().values(), labels)]
    assert len(set(ids)) == len(ids)


def test_equal_scopes_built_apart_have_one_id() -> None:
    again = ModelScope(
        layout=KvLayout(dtype="bfloat16", head_dim=8, n_kv_heads=4, n_layers=2), weights_version="w", model="m"
    )
    assert scope_id(again, label="public") == scope_id(SCOPE, label="public")
    assert len(scope_id(SCOPE, label="public")) == 32


def test_the_id_is_the_documented_digest() -> None:
    layout = dict(sorted({f: getattr(LAYOUT, f) for f in KvLayout.__struct_fields__}.items()))
    model = dict(sorted({**{f: getattr(SCOPE, f) for f in ModelScope.__struct_fields__}, "layout": layout}.items()))
    encoded = msgspec.msgpack.encode({"label": "group:g", "model": model})
    assert scope_id(SCOPE, label="group:g") == hashlib.sha256(b"tiered/scope/1\x00" + encoded).digest()


def test_fields_do_not_run_into_each_other() -> None:
    one = msgspec.structs.replace(SCOPE, model="ab", revision="c")
    other = msgspec.structs.replace(SCOPE, model="a", revision="bc")
    assert scope_id(one, label="public") != scope_id(other, label="public")


@pytest.mark.parametrize("label", ["", "tenant:", "group:", "tenant", "Public", "public:", "public:x", "user:a", "x"])
def test_a_label_of_no_known_kind_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="sharing label"):
        scope_id(SCOPE, label=label)


def test_a_tenant_is_private_by_default() -> None:
    assert tenant_label(TenantId("red")) == "tenant:red"


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_layers": 0},
        {"n_kv_heads": -1},
        {"head_dim": (1 << 20) + 1},
        {"block_tokens": 0},
        {"dtype": "float64"},
        {"attention": "mqa"},
    ],
)
def test_an_impossible_layout_is_refused_by_field(wrong: dict[str, object]) -> None:
    fields = {"n_layers": 2, "n_kv_heads": 4, "head_dim": 8, "dtype": "bfloat16", **wrong}
    with pytest.raises(ValueError, match=f"layout.{next(iter(wrong))}"):
        KvLayout(**fields)  # type: ignore[arg-type]


def test_block_bytes_are_all_planes_of_all_layers() -> None:
    assert LAYOUT.block_bytes == 2 * 2 * 16 * 4 * 8 * 2
    latent = msgspec.structs.replace(LAYOUT, attention="mla", n_kv_heads=1)
    assert latent.block_bytes == 2 * 1 * 16 * 1 * 8 * 2
    assert LAYOUT.token_bytes * 16 == LAYOUT.block_bytes
