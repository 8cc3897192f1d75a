"""Bytes between vLLM's memory and a pool, for every physical order in which a block can be moved whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from tiered.connectors.vllm.pages import DevicePages, HostPages, Pages, pages_of, rows_of
from tiered.errors import ConfigError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockId

L, B, H, N, C = 3, 7, 2, 4, 16
LAYOUT = KvLayout(n_layers=L, n_kv_heads=H, head_dim=C // 2, dtype="bfloat16", block_tokens=N, interior="test")
ORDERS = {"LBHNC": (0, 1, 2, 3, 4), "LBNHC": (0, 1, 3, 2, 4), "BLHNC": (1, 0, 2, 3, 4), "BLNHC": (1, 0, 3, 2, 4)}


def memory(order: str, *, ratio: int = 1) -> dict[str, torch.Tensor]:
    """By layer [B * ratio, H, N / ratio, C], all of one storage in that physical order, filled with noise."""
    sizes = (L, B * ratio, H, N // ratio, C)
    permutation = ORDERS[order]
    physical = torch.empty([sizes[i] for i in permutation], dtype=torch.bfloat16)
    physical.view(torch.int16).random_(-(1 << 15), 1 << 15)
    inverse = [permutation.index(i) for i in range(5)]
    logical = physical.permute(inverse)
    return {f"layer.{i}": logical[i] for i in reversed(range(L))}


def bits(tensors: dict[str, torch.Tensor], block: int, *, ratio: int = 1) -> list[torch.Tensor]:
    return [tensors[f"layer.{i}"][block * ratio : (block + 1) * ratio].clone().view(torch.int16) for i in range(L)]


@pytest.fixture
def pool() -> Iterator[BlockPool]:
    made = BlockPool(LAYOUT, 5)
    yield made
    made.close()


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", [HostPages, DevicePages])
@pytest.mark.parametrize("order", ORDERS)
def test_a_block_goes_to_the_pool_and_comes_back_bit_for_bit(order: str, kind: type, pool: BlockPool) -> None:
    tensors = memory(order)
    pages: Pages = kind(list(rows_of(tensors, B).values()))
    assert pages.block_bytes == LAYOUT.block_bytes
    before = {block: bits(tensors, block) for block in range(B)}
    pages.copy_out([6, 2], pool, [BlockId(0), BlockId(4)])
    for tensor in tensors.values():
        tensor[2].zero_()
        tensor[6].zero_()
    pages.copy_in(pool, [BlockId(4), BlockId(0)], [2, 6])
    assert all(equal(bits(tensors, block), before[block]) for block in range(B))


@pytest.mark.parametrize("order", ORDERS)
def test_no_byte_beside_the_block_is_touched(order: str, pool: BlockPool) -> None:
    tensors = memory(order)
    before = {block: bits(tensors, block) for block in range(B)}
    pages_of(list(rows_of(tensors, B).values())).copy_in(pool, [BlockId(1)], [3])
    assert all(equal(bits(tensors, block), before[block]) for block in range(B) if block != 3)
    assert not equal(bits(tensors, 3), before[3])


def test_blocks_of_one_order_of_heads_lie_alike_in_the_pool(pool: BlockPool) -> None:
    """Layer by layer: whether blocks or layers lie outermost in vLLM's memory does not matter."""
    one, other = memory("LBHNC"), memory("BLHNC")
    for layer, tensor in one.items():
        other[layer].copy_(tensor)
    for slot, tensors in enumerate((one, other)):
        pages_of(list(rows_of(tensors, B).values())).copy_out([5], pool, [BlockId(slot)])
    assert pool.host_view(BlockId(0)) == pool.host_view(BlockId(1))


def test_a_block_of_several_of_the_kernels_is_one(pool: BlockPool) -> None:
    tensors = memory("LBHNC", ratio=2)
    pages = pages_of(list(rows_of(tensors, B).values()))
    before = bits(tensors, 3, ratio=2)
    pages.copy_out([3], pool, [BlockId(0)])
    pages.copy_in(pool, [BlockId(0)], [1])
    assert equal(bits(tensors, 1, ratio=2), before)


def test_layers_in_memories_of_their_own_are_moved_too(pool: BlockPool) -> None:
    tensors = {layer: tensor.clone() for layer, tensor in memory("LBHNC").items()}
    pages = pages_of(list(rows_of(tensors, B).values()))
    before = bits(tensors, 6)
    pages.copy_out([6], pool, [BlockId(2)])
    pages.copy_in(pool, [BlockId(2)], [0])
    assert equal(bits(tensors, 0), before)


def test_layers_that_share_their_memory_are_moved_once() -> None:
    tensors = memory("LBHNC")
    tensors["layer.9"] = tensors["layer.0"]
    assert list(rows_of(tensors, B)) == ["layer.0", "layer.1", "layer.2"]


def test_a_padded_page_is_moved_without_its_padding() -> None:
    raw = torch.zeros(B, H * N * C + 8, dtype=torch.bfloat16)
    padded = torch.as_strided(raw, (B, H, N, C), (H * N * C + 8, N * C, C, 1))
    (rows,) = rows_of({"layer.0": padded}, B).values()
    assert rows.shape == (B, H * N * C * 2)


def test_a_block_that_is_spread_out_is_refused_by_name() -> None:
    spread = torch.zeros(H, B, N, C).permute(1, 0, 2, 3)
    with pytest.raises(ConfigError, match=r"layer\.0 spreads a block"):
        rows_of({"layer.0": spread}, B)


def test_memory_that_is_not_in_blocks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"layer\.0 does not keep"):
        rows_of({"layer.0": torch.zeros(B + 1, H, N, C)}, B)


def test_more_blocks_than_a_batch_are_all_copied() -> None:
    n_blocks = 40
    layout = KvLayout(n_layers=1, n_kv_heads=1, head_dim=4, dtype="uint8", block_tokens=2, interior="test")
    tensor = torch.arange(n_blocks * 16, dtype=torch.int16).to(torch.uint8).view(n_blocks, 1, 2, 8)
    pool = BlockPool(layout, n_blocks)
    pages = DevicePages(list(rows_of({"layer.0": tensor}, n_blocks).values()))
    before = tensor.clone()
    order = [*range(1, n_blocks), 0]
    pages.copy_out(order, pool, [BlockId(i) for i in range(n_blocks)])
    tensor.zero_()
    pages.copy_in(pool, [BlockId(i) for i in range(n_blocks)], order)
    assert torch.equal(tensor, before)
    pool.close()


def test_every_pair_of_orders_has_rows_of_one_size() -> None:
    sizes = {name: [row.shape for row in rows_of(memory(name), B).values()] for name in ORDERS}
    assert all(one == other for one, other in itertools.combinations(sizes.values(), 2))
