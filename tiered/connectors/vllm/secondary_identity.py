"""What a chunk of vLLM's offloaded memory is, so that only an engine that reads its bytes alike ever gets them.

vLLM's key of a chunk says what the tokens are and nothing else, so everything on which the meaning of the bytes
depends is folded into the scope here. A chunk's interior stays vLLM's own: one row of its memory, all layers and all
ranks of the engine one after the other, opaque bytes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from tiered.connectors.vllm.secondary_settings import WHERE
from tiered.errors import ConfigError
from tiered.hashing.scope import ModelScope
from tiered.layout import DTYPE_BYTES, KvLayout
from tiered.types import BlockHash

KEY_BYTES: Final = 36
"""A SHA-256 chain's hash and the number of the KV cache group. Another length is of a hash that is not made to
withstand somebody who looks for two prompts of one hash, and is seeded anew by every process."""

GROUP_BYTES: Final = 4

_DOMAIN: Final = b"tiered/vllm-chunk/1\x00"
_PAGE_BYTES: Final = 4096
_SIDE_MAX: Final = 1 << 20


class Group(msgspec.Struct, frozen=True):
    """One KV cache group. tokens_per_block: over all ranks."""

    group_id: int
    tokens_per_block: int
    layers: tuple[str, ...]


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What vLLM says of an engine's offloaded KV. order: the physical order of its KV cache, such as LBNHC.

    Ranks other than the data-parallel ones, which hold the same.
    """

    engine_version: str
    model: str
    dtype: str
    order: str
    groups: tuple[Group, ...]
    tokens_per_hash: int
    blocks_per_chunk: int
    rank_bytes_per_block: int
    chunk_bytes: int
    world_size: int
    tp_size: int
    pp_size: int
    pcp_size: int
    dcp_size: int
    is_replicated: bool
    is_canonical: bool


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """scope: of the engine. tokens_per_chunk: by group."""

    scope: ModelScope
    tokens_per_chunk: dict[int, int]

    @property
    def layout(self) -> KvLayout:
        return self.scope.layout


def identity_of(facts: EngineFacts, *, weights_version: str, model: str = "") -> ChunkIdentity:
    """model: what it is called here, if not as vLLM calls it.

    Errors: ConfigError for an engine of which too little is known to tell its bytes from another's.
    """
    if not facts.order:
        raise ConfigError(
            f"{WHERE}: vLLM does not say in which order its KV cache lies in memory, so its bytes cannot be told "
            "from another engine's; use a version and a model for which it does"
        )
    scope = ModelScope(
        model=model or facts.model,
        weights_version=weights_version,
        layout=_layout(facts),
        tp_size=facts.tp_size,
        pp_size=facts.pp_size,
    )
    tokens = {group.group_id: group.tokens_per_block * facts.blocks_per_chunk for group in facts.groups}
    return ChunkIdentity(scope, tokens)


def chunk_hash(scope_id: bytes, key: bytes) -> BlockHash:
    """The hash of the chunk that vLLM calls so, in one tenant's scope."""
    return BlockHash(hashlib.sha256(_DOMAIN + scope_id + key).digest())


def group_of(key: bytes) -> int:
    return int.from_bytes(key[-GROUP_BYTES:], "big")


def _layout(facts: EngineFacts) -> KvLayout:
    """Of opaque bytes: as many as a chunk has. The dtype tells the lossless codec how wide an element is."""
    dtype = facts.dtype if facts.dtype in DTYPE_BYTES else "uint8"
    if facts.chunk_bytes % DTYPE_BYTES[dtype]:
        dtype = "uint8"
    block_tokens, head_dim = _sides(facts, DTYPE_BYTES[dtype])
    return KvLayout(
        n_layers=1,
        n_kv_heads=1,
        head_dim=head_dim,
        dtype=dtype,
        block_tokens=block_tokens,
        attention="mla",
        interior=_interior(facts),
    )


def _sides(facts: EngineFacts, width: int) -> tuple[int, int]:
    """Tokens and elements a token where a chunk has no padding, else pages and elements a page."""
    elements = facts.chunk_bytes // width
    tokens = max((group.tokens_per_block for group in facts.groups), default=0) * facts.blocks_per_chunk
    for rows in (tokens, facts.chunk_bytes // _PAGE_BYTES, 1):
        if 0 < rows <= _SIDE_MAX and elements % rows == 0 and 0 < elements // rows <= _SIDE_MAX:
            return rows, elements // rows
    raise ConfigError(
        f"{WHERE}: chunks of {facts.chunk_bytes} bytes cannot be stored; they are 1 byte to 4 GiB, in whole pages of "
        f"{_PAGE_BYTES} bytes where they are more than 1 MiB"
    )


def _interior(facts: EngineFacts) -> str:
    """Short, for people; the digest is of every fact."""
    digest = hashlib.sha256(msgspec.msgpack.Encoder(order="sorted").encode(_nameless(facts))).hexdigest()[:32]
    version = re.sub(r"[^0-9A-Za-z.+-]", "_", facts.engine_version)[:32]
    return f"vllm {version} chunk {facts.order[:16]} x{facts.world_size} {digest}"


def _nameless(facts: EngineFacts) -> EngineFacts:
    """The name of the model stands in the scope, as the operator has it."""
    return msgspec.structs.replace(facts, model="")
