"""Blocks whose right bytes are known from their hash alone, so that any test can tell wrong bytes from right ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from tiered.client.port import CacheClient, Fill, Saved
from tiered.hashing.chain import Extras, chain_hashes
from tiered.hashing.scope import ModelScope, scope_id, tenant_label
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, BlockId, Source, TenantId

TENANT = TenantId("acme")

LAYOUT = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="float32", block_tokens=16)
"""8 KiB a block."""

SCOPE = ModelScope(model="test", weights_version="1", layout=LAYOUT)


def large_scope(block_kib: int = 512) -> ModelScope:
    """Blocks large enough for a transfer to be cut in its middle."""
    layout = KvLayout(n_layers=block_kib // 64, n_kv_heads=8, head_dim=64, dtype="float32", block_tokens=16)
    return ModelScope(model="large", weights_version="1", layout=layout)


def prompt(seed: int, n_blocks: int, *, block_tokens: int = LAYOUT.block_tokens) -> list[int]:
    """A prompt of full blocks that shares no block with that of another seed."""
    return [(seed * 1_000_003 + i * 31) % (1 << 31) for i in range(n_blocks * block_tokens)]


def hashes_of(
    tokens: Sequence[int], *, tenant: TenantId = TENANT, scope: ModelScope = SCOPE, extras: Extras | None = None
) -> list[BlockHash]:
    root = scope_id(scope, label=tenant_label(tenant))
    return chain_hashes(root, tokens, block_tokens=scope.layout.block_tokens, extras=extras)


def right_bytes(block_hash: BlockHash, block_bytes: int) -> bytes:
    """What the block of this hash holds; no two hashes give the same."""
    return hashlib.shake_128(block_hash).digest(block_bytes)


def filler(hashes: Sequence[BlockHash]) -> Fill:
    """A fill that writes the right bytes."""

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        for offset, block_id in enumerate(block_ids):
            pool.host_view(block_id)[:] = right_bytes(hashes[first_index + offset], pool.layout.block_bytes)

    return fill


def save(
    client: CacheClient,
    tokens: Sequence[int],
    *,
    tenant: TenantId = TENANT,
    scope: ModelScope = SCOPE,
    wait_s: float = 2.0,
) -> Saved:
    """Store a prompt with its right bytes."""
    return client.save(
        tokens, tenant=tenant, fill=filler(hashes_of(tokens, tenant=tenant, scope=scope)), wait_s=wait_s
    )


class WrongBytesError(AssertionError):
    """A block was served with bytes that are not its own: the first promise broken."""


def wrong_blocks(pool: BlockPool, block_ids: Sequence[BlockId], hashes: Sequence[BlockHash]) -> list[int]:
    """Indices of the blocks that do not hold every byte they should."""
    size = pool.layout.block_bytes
    return [
        index
        for index, (block_id, block_hash) in enumerate(zip(block_ids, hashes, strict=False))
        if pool.host_view(block_id) != right_bytes(block_hash, size)
    ]


def take(
    client: CacheClient,
    tokens: Sequence[int],
    *,
    tenant: TenantId = TENANT,
    scope: ModelScope = SCOPE,
    deadline_s: float = 5.0,
    hashes: Sequence[BlockHash] | None = None,
) -> Counter[Source]:
    """Match, load, compare every byte, release; how many blocks came from where.

    hashes: of a tenant that is not private.

    What was read under pins that had ended by then counts as nothing, as for an engine. Errors: WrongBytesError.
    """
    match = client.match(tokens, tenant=tenant)
    loaded = client.load(match, deadline_s=deadline_s)
    pool = client.pool
    n_blocks = len(loaded.block_ids)
    wrong: list[int] = []
    if n_blocks:
        assert pool is not None
        expected = hashes_of(tokens, tenant=tenant, scope=scope) if hashes is None else hashes
        wrong = wrong_blocks(pool, loaded.block_ids, expected)
    if not client.release(match, used_tokens=n_blocks * scope.layout.block_tokens):
        return Counter()
    if wrong:
        raise WrongBytesError(f"blocks {wrong} of {n_blocks}, from {[loaded.sources[i].value for i in wrong]}")
    return Counter(loaded.sources)
