"""The pool on a device: bytes go in and out whole, another process sees the same memory, nobody's stream waits."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import torch

from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.pool.share import cuda_handle
from tiered.types import BlockId

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LAYOUT = KvLayout(n_layers=3, n_kv_heads=2, head_dim=64, dtype="bfloat16", block_tokens=16)
IDS = [BlockId(i) for i in (5, 0, 7, 2)]

OTHER_PROCESS = """
import sys
import msgspec
import torch
from tiered.layout import KvLayout
from tiered.pool.share import open_cuda_handle

layout = msgspec.json.decode(sys.argv[1], type=KvLayout)
pool = open_cuda_handle(sys.stdin.buffer.read(), layout, int(sys.argv[2]))
assert bool((pool.tensor[3] == 3).all()), "the blocks of the process before are not there"
pool.tensor[4] = 44
torch.cuda.synchronize()
"""


def filled(n_blocks: int = 8, layout: KvLayout = LAYOUT) -> BlockPool:
    pool = BlockPool(layout, n_blocks, device="cuda")
    pool.tensor.view(torch.uint8).copy_(torch.randint(0, 256, (pool.tensor.view(torch.uint8).shape), device="cuda"))
    pool.settle()
    return pool


def block_bytes(pool: BlockPool, block_id: BlockId) -> bytes:
    return pool.tensor[block_id].view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_gather_and_scatter_move_whole_blocks(dtype: str) -> None:
    pool = filled(layout=KvLayout(n_layers=3, n_kv_heads=2, head_dim=64, dtype=dtype, block_tokens=16))
    before = [block_bytes(pool, block_id) for block_id in IDS]
    out = torch.empty((len(IDS), *pool.layout.block_shape), dtype=pool.tensor.dtype, device="cuda")
    pool.gather(IDS, out)
    pool.tensor.view(torch.uint8).zero_()
    pool.scatter(IDS, out)
    assert [block_bytes(pool, block_id) for block_id in IDS] == before
    assert not any(block_bytes(pool, BlockId(1)))


def test_blocks_are_read_to_the_host_and_written_back() -> None:
    pool = filled()
    out = bytearray(LAYOUT.block_bytes)
    pool.read(BlockId(6), memoryview(out))
    assert bytes(out) == block_bytes(pool, BlockId(6))
    with pool.write(BlockId(1)) as memory:
        memory[:] = out
    assert block_bytes(pool, BlockId(1)) == bytes(out)


def test_another_process_reads_and_writes_the_same_memory() -> None:
    pool = BlockPool(LAYOUT, 8, device="cuda")
    for block_id in range(8):
        pool.tensor[block_id] = block_id
    pool.settle()
    command = [sys.executable, "-c", OTHER_PROCESS, msgspec.json.encode(LAYOUT).decode(), "8"]
    done = subprocess.run(command, input=cuda_handle(pool), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert bool((pool.tensor[4] == 44).all())
    assert bool((pool.tensor[5] == 5).all())


def test_a_read_does_not_wait_for_the_engines_stream() -> None:
    """A block is read while the engine's stream is busy for far longer than the copy takes."""
    pool = filled()
    out = torch.empty(LAYOUT.block_bytes, dtype=torch.uint8, pin_memory=True)
    pool.read(BlockId(0), out.numpy().data)
    engine = torch.cuda.Stream()
    with torch.cuda.stream(engine):
        torch.cuda._sleep(2_000_000_000)
        busy_until = torch.cuda.Event()
        busy_until.record()
    pool.read(BlockId(3), out.numpy().data)
    assert not busy_until.query()
    engine.synchronize()
    assert out.numpy().tobytes() == block_bytes(pool, BlockId(3))
