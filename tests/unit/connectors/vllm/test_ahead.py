"""KV memory on the host is resident before it is used, and not all of it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from tests.support.worker_process import until
from tiered.connectors.vllm.ahead import Ahead, populate

PAGE = mmap.PAGESIZE
N_BLOCKS = 64
LAYERS = 3
BLOCK_BYTES = LAYERS * PAGE
_libc = ctypes.CDLL(None, use_errno=True)


def resident(row: torch.Tensor) -> list[bool]:
    """Of each block, whether its page of this row is."""
    found = []
    for block in row:
        answer = (ctypes.c_ubyte * 1)()
        assert _libc.mincore(ctypes.c_void_p(block.data_ptr()), ctypes.c_size_t(PAGE), answer) == 0
        found.append(bool(answer[0] & 1))
    return found


@pytest.fixture(params=["layer by layer", "block by block"])
def rows(request: pytest.FixtureRequest) -> Iterator[list[torch.Tensor]]:
    """Memory that nobody has touched, a page for each layer of a block."""
    with closing(mmap.mmap(-1, N_BLOCKS * BLOCK_BYTES)) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        shape = (LAYERS, N_BLOCKS, PAGE) if request.param == "layer by layer" else (N_BLOCKS, LAYERS, PAGE)
        whole = torch.frombuffer(memory, dtype=torch.uint8).view(shape)
        whole = whole if shape[0] == LAYERS else whole.transpose(0, 1)
        views = [whole[layer] for layer in range(LAYERS)]
        del whole
        yield views
        views.clear()


def test_the_first_blocks_are_and_those_far_behind_are_not(rows: list[torch.Tensor]) -> None:
    with closing(Ahead(rows, ahead_bytes=10 * BLOCK_BYTES)):
        for row in rows:
            until(lambda row=row: resident(row)[:10] == [True] * 10, "the first ten are resident")
            assert not any(resident(row)[10:])


def test_the_blocks_after_those_in_use_are(rows: list[torch.Tensor]) -> None:
    with closing(Ahead(rows, ahead_bytes=10 * BLOCK_BYTES)) as ahead:
        ahead.used([3, 20, 7])
        ahead.used([2])
        ahead.used([])
        for row in rows:
            until(lambda row=row: resident(row)[:31] == [True] * 31, "ten more than the last one used are resident")
            assert not any(resident(row)[31:])
        ahead.used([N_BLOCKS - 1])
        for row in rows:
            until(lambda row=row: all(resident(row)), "all are resident")


def test_what_is_in_the_blocks_stays(rows: list[torch.Tensor]) -> None:
    for number, row in enumerate(rows):
        row[5] = number + 1
    with closing(Ahead(rows)):
        until(lambda: all(resident(rows[-1])), "all are resident")
    for number, row in enumerate(rows):
        assert row[5].eq(number + 1).all()
        assert row[6].eq(0).all()


def test_a_kernel_that_refuses_is_asked_once_and_nothing_else_happens(rows: list[torch.Tensor]) -> None:
    asked = []

    def refused(address: int, n_bytes: int) -> bool:
        asked.append((address, n_bytes))
        return False

    with closing(Ahead(rows, populate=refused)) as ahead:
        until(lambda: "tiered-ahead" not in {thread.name for thread in threading.enumerate()}, "the thread has ended")
        ahead.used([N_BLOCKS - 1])
    assert len(asked) == 1
    assert not populate(1 << 46, PAGE)
