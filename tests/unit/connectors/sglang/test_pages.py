"""Pages as runs of memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tiered.codec.frame import checksum_of
from tiered.connectors.sglang.pages import Page, copy_out
from tiered.layout import KvLayout
from tiered.types import BlockId

LAYOUT = KvLayout(n_layers=1, n_kv_heads=1, head_dim=8, dtype="uint8", block_tokens=4)


class DevicePool:
    """A pool that the host cannot read in place."""

    device = "cuda:0"
    layout = LAYOUT

    def read(self, block_id: BlockId, out: memoryview) -> None:
        out[:] = bytes([block_id]) * LAYOUT.block_bytes


def split_page(memory: torch.Tensor) -> Page:
    """Two runs with a gap between them."""
    start = memory.data_ptr()
    return Page(((start, 40), (start + 60, 24)))


def test_runs_are_copied_back_to_back_and_nothing_between_them_is_touched() -> None:
    memory = torch.zeros(84, dtype=torch.uint8)
    block = bytearray(range(64))
    page = split_page(memory)
    page.read_from(memoryview(block))
    assert bytes(memory.numpy()) == bytes(block[:40]) + bytes(20) + bytes(block[40:])
    assert page.checksum() == checksum_of(memoryview(block))
    other = bytearray(64)
    page.write_to(memoryview(other))
    assert other == block


@pytest.mark.parametrize("n_bytes", [0, 63, 65])
def test_a_block_of_another_length_is_never_copied(n_bytes: int) -> None:
    memory = torch.full((84,), 9, dtype=torch.uint8)
    with pytest.raises(ValueError, match="64 bytes is no block"):
        split_page(memory).read_from(memoryview(bytearray(n_bytes)))
    assert bool((memory == 9).all())


def test_blocks_on_a_device_come_by_way_of_the_host_and_are_checked_too() -> None:
    pool: Any = DevicePool()
    memories = [torch.zeros(84, dtype=torch.uint8) for _ in range(3)]
    pages = [split_page(memory) for memory in memories]
    right = checksum_of(memoryview(bytes([2]) * 64))
    ids = [BlockId(1), BlockId(2), BlockId(3)]
    assert copy_out(pool, ids, [None, right, b"another"], pages) == 2
    assert [int(memory[0]) for memory in memories[:2]] == [1, 2]
    assert copy_out(pool, ids, [None] * 3, pages) == 3
    assert copy_out(pool, ids, [None] * 3, pages[:2]) == 2
    assert copy_out(pool, ids[:1], [None], pages) == 1
