"""What SGLang's pages are called here: the scope of a rank, and block hashes from SGLang's keys.

SGLang's key of a page is a SHA-256 chain over the tokens of it and all before it, seeded by ``extra_key`` and
``cache_salt``, so it names the content but neither the model nor the rank, dtype or layout. Those are in the scope;
what the scope has no place for is in the salt of :class:`Naming`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from tiered.connectors.sglang.engine import HostPool, StorageConfig
from tiered.connectors.sglang.settings import WHERE, BackendSettings
from tiered.connectors.weights import folder_digest
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import DTYPE_BYTES, KvLayout
from tiered.types import BlockHash

PLANES_APART: Final = ("layer_first", "page_first", "page_first_direct", "page_head")
"""Layouts whose pages are all of K, then all of V, once their buffers are put in that order."""

ONE_PLANE: Final = ("layer_first", "page_first", "page_first_direct")

_BYTES_DTYPE: Final = "uint8"
_KEY_SCHEME: Final = "sglang/1"
_CONFIG: Final = "config.json"


def scope_of(config: StorageConfig, pool: HostPool, settings: BackendSettings) -> ModelScope:
    """Errors: ConfigError for a pool whose pages cannot be kept, or an identity that is not known."""
    tp_rank, tp_size = (0, 1) if config.is_mla_model else (config.tp_rank, config.tp_size)
    dtype, stored_as = _dtypes(pool, settings)
    return ModelScope(
        model=_model_name(config, settings),
        weights_version=settings.weights_version or _weights_of(config),
        layout=_layout(pool, stored_as),
        kv_quantization=settings.kv_cache_dtype or ("none" if dtype == stored_as else dtype),
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=config.pp_rank,
        pp_size=config.pp_size,
    )


def _model_name(config: StorageConfig, settings: BackendSettings) -> str:
    name = settings.model or config.model_name
    if not name:
        raise ConfigError(f"{WHERE}.model: SGLang did not say which model this is; name it", field="model")
    return name


def _weights_of(config: StorageConfig) -> str:
    """Of a model in a folder, with its configuration, under which equal weights have other KV; the hub's name of a
    model does not say which weights were loaded."""
    name = config.model_name or ""
    if not Path(name).is_dir():
        raise ConfigError(
            f"{WHERE}.weights_version: {name!r} is no folder to tell the weights from; name them, such as by the "
            "revision that is loaded",
            field="weights_version",
        )
    try:
        return folder_digest(Path(name), beside=(_CONFIG,))
    except ValueError as error:
        raise ConfigError(
            f"{WHERE}.weights_version: {error}; name them, such as by a revision", field="weights_version"
        ) from None


def _dtypes(pool: HostPool, settings: BackendSettings) -> tuple[str, str]:
    """The pool's dtype, and the dtype that a block of the same bytes has here."""
    dtype = str(pool.dtype).removeprefix("torch.")
    if dtype == _BYTES_DTYPE and not settings.kv_cache_dtype:
        raise ConfigError(
            f"{WHERE}.kv_cache_dtype: the host pool holds plain bytes, which KV of several formats does; say what "
            "--kv-cache-dtype is",
            field="kv_cache_dtype",
        )
    if dtype in DTYPE_BYTES:
        return dtype, dtype
    if pool.dtype.itemsize != 1:
        raise ConfigError(f"sglang: KV of dtype {dtype} cannot be kept; choose another --kv-cache-dtype")
    return dtype, _BYTES_DTYPE


def _layout(pool: HostPool, dtype: str) -> KvLayout:
    latent_dim = getattr(pool, "kv_cache_dim", None)
    known = PLANES_APART if latent_dim is None else ONE_PLANE
    if pool.layout not in known:
        raise ConfigError(
            f"sglang: pages of the memory layout {pool.layout!r} cannot be kept; choose a --hicache-mem-layout of "
            f"{', '.join(known)}"
        )
    tag = getattr(pool, "storage_format_tag", None)
    interior = f"sglang/{pool.layout}" + (f"/{tag}" if tag else "")
    if latent_dim is not None:
        return KvLayout(
            n_layers=pool.layer_num,
            n_kv_heads=1,
            head_dim=latent_dim,
            dtype=dtype,
            block_tokens=pool.page_size,
            attention="mla",
            interior=interior,
        )
    head_num, head_dim = getattr(pool, "head_num", None), getattr(pool, "head_dim", None)
    v_head_dim = getattr(pool, "v_head_dim", head_dim)
    if head_num is None or head_dim is None or v_head_dim != head_dim:
        raise ConfigError(
            f"sglang: a {type(pool).__name__} holds no plain keys and values of one size; run this model without "
            "--hicache-storage-backend"
        )
    return KvLayout(
        n_layers=pool.layer_num,
        n_kv_heads=head_num,
        head_dim=head_dim,
        dtype=dtype,
        block_tokens=pool.page_size,
        interior=interior,
    )


@dataclass(frozen=True, slots=True)
class Naming:
    """Block hashes of keys: SHA-256 of the scope's root, the salt and the key.

    cp_rank, cp_size: of context parallelism, where each rank holds its own slice of every page. generation: another
    one after each ``clear``, so that nothing older is found.
    """

    cp_rank: int = 0
    cp_size: int = 1
    generation: str = ""

    def renewed(self) -> Naming:
        """Unlike every other, in this life of the engine and in others."""
        return replace(self, generation=secrets.token_hex(16))

    def hashes(self, root: bytes, keys: Sequence[str]) -> list[BlockHash]:
        """Cost: about a microsecond a key."""
        salt = msgspec.msgpack.encode((_KEY_SCHEME, self.cp_rank, self.cp_size, self.generation))
        begun = sha256(root + salt)
        hashes: list[BlockHash] = []
        for key in keys:
            digest = begun.copy()
            digest.update(key.encode())
            hashes.append(BlockHash(digest.digest()))
        return hashes
