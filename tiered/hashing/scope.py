"""What must agree before cached bytes may be reused, folded into the root of every hash chain.

Owns the canonical encoding of a scope; refuses to know tokens. Two scopes that differ in any field, or in the type
of any field, encode differently, so nothing can be confused by printing alike.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tiered.layout import KvLayout
from tiered.types import TenantId

_DOMAIN: Final = b"tiered/scope/1\x00"


class ModelScope(msgspec.Struct, frozen=True, kw_only=True):
    """One engine rank's model and KV geometry: all of a scope but who may read.

    weights_version: names the very weights, so that a fine-tune under the same model name never matches.
    """

    model: str
    weights_version: str
    layout: KvLayout
    revision: str = ""
    kv_quantization: str = "none"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1


def tenant_label(tenant: TenantId) -> str:
    """The sharing label of blocks that stay private to one tenant: the default."""
    return f"tenant:{tenant}"


def scope_id(model: ModelScope, *, label: str) -> bytes:
    """32 bytes: SHA-256 of the canonical MessagePack map of every field and the sharing label.

    label: ``tenant:<id>``, ``group:<name>`` or ``public``.
    """
    kind, _, name = label.partition(":")
    if not ((kind in ("tenant", "group") and name) or label == "public"):
        raise ValueError(f"sharing label {label!r} is none of tenant:<id>, group:<name>, public")
    return hashlib.sha256(_DOMAIN + _ENCODER.encode({"label": label, "model": model})).digest()


_ENCODER: Final = msgspec.msgpack.Encoder(order="sorted")
_JSON_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_JSON_DECODER: Final = msgspec.json.Decoder(ModelScope)


def encode_scope(model: ModelScope) -> str:
    """As JSON, for others who are to name the same scope."""
    return _JSON_ENCODER.encode(model).decode()


def decode_scope(text: str) -> ModelScope:
    """Errors: msgspec.DecodeError for what is no scope, such as one of a later version."""
    return _JSON_DECODER.decode(text)
