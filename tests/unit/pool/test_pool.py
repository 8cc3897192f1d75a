"""The pool's bytes: copied out and in without a changed bit, seen by another process, and gone when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from tests.support.alone import alone
from tiered.errors import ConfigError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool, layout_dtype, require_device, torch_dtype
from tiered.types import BlockId

GQA = KvLayout(n_layers=3, n_kv_heads=2, head_dim=4, dtype="bfloat16", block_tokens=5)
LAYOUTS = {
    "bf16": GQA,
    "f32": msgspec.structs.replace(GQA, dtype="float32"),
    "f16": msgspec.structs.replace(GQA, dtype="float16"),
    "fp8": msgspec.structs.replace(GQA, dtype="float8_e4m3fn"),
    "u8": msgspec.structs.replace(GQA, dtype="uint8"),
    "mla": msgspec.structs.replace(GQA, attention="mla", n_kv_heads=1, head_dim=12),
}
every_layout = pytest.mark.parametrize("layout", list(LAYOUTS.values()), ids=list(LAYOUTS))
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]
every_device = pytest.mark.parametrize("device", DEVICES)
IDS = [BlockId(6), BlockId(0), BlockId(3)]


def random_bits(shape: tuple[int, ...], layout: KvLayout, device: str) -> torch.Tensor:
    """Any bit pattern, NaNs included: a copy may not care."""
    generator = torch.Generator().manual_seed(1)
    *outer, last = shape
    width = torch_dtype(layout).itemsize
    bits = torch.randint(0, 256, (*outer, last * width), dtype=torch.uint8, generator=generator)
    return bits.view(torch_dtype(layout)).to(device)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def pool(layout: KvLayout, device: str) -> BlockPool:
    return BlockPool(layout, 8, device=device)


@every_layout
@every_device
def test_scatter_then_gather_is_bit_equal(pool: BlockPool, layout: KvLayout, device: str) -> None:
    source = random_bits((3, *layout.block_shape), layout, device)
    pool.scatter(IDS, source)
    out = torch.empty_like(source)
    pool.gather(IDS, out)
    assert bits(out) == bits(source)
    assert bits(pool.tensor[6]) == bits(source[0])


@every_layout
@every_device
def test_a_layer_scattered_and_gathered_is_bit_equal(pool: BlockPool, layout: KvLayout, device: str) -> None:
    shape = (layout.n_planes, layout.n_kv_heads, 3 * layout.block_tokens, layout.head_dim)
    layers = [random_bits(shape, layout, device).roll(layer) for layer in range(layout.n_layers)]
    for layer, planes in enumerate(layers):
        pool.scatter_layer(IDS, layer, list(planes))
    for layer, planes in enumerate(layers):
        assert bits(pool.gather_layer(IDS, layer)) == bits(planes)


@every_layout
@every_device
def test_a_token_lies_where_the_layout_says(pool: BlockPool, layout: KvLayout, device: str) -> None:
    """gather_layer and the physical order agree: token t of a run is token t % block_tokens of block t // ..."""
    source = random_bits((3, *layout.block_shape), layout, device)
    pool.scatter(IDS, source)
    plane, head, token = layout.n_planes - 1, layout.n_kv_heads - 1, 2 * layout.block_tokens - 1
    found = pool.gather_layer(IDS, 1)[plane, head, token]
    assert bits(found) == bits(source[1, 1, plane, layout.block_tokens - 1, head])


@every_device
@pytest.mark.parametrize("layout", [GQA])
def test_other_blocks_and_layers_are_not_touched(pool: BlockPool, layout: KvLayout, device: str) -> None:
    pool.tensor.zero_()
    pool.scatter_layer([BlockId(2)], 1, list(torch.ones(2, 2, 5, 4, dtype=torch.bfloat16, device=device)))
    assert int(pool.tensor.count_nonzero()) == 2 * 2 * 5 * 4
    assert int(pool.tensor[2, 1].count_nonzero()) == 2 * 2 * 5 * 4


@every_layout
@every_device
def test_no_blocks_are_no_work(pool: BlockPool, layout: KvLayout, device: str) -> None:
    empty = torch.empty((0, *layout.block_shape), dtype=torch_dtype(layout), device=device)
    pool.scatter([], empty)
    pool.gather([], empty)
    assert pool.gather_layer([], 0).shape == (layout.n_planes, layout.n_kv_heads, 0, layout.head_dim)


@every_layout
@every_device
def test_bytes_written_are_the_bytes_read(pool: BlockPool, layout: KvLayout, device: str) -> None:
    payload = bits(random_bits(layout.block_shape, layout, "cpu"))
    assert len(payload) == layout.block_bytes
    with pool.write(BlockId(5)) as view:
        view[:] = payload
    out = memoryview(bytearray(layout.block_bytes))
    pool.read(BlockId(5), out)
    assert bytes(out) == payload == bits(pool.tensor[5])


@every_device
@pytest.mark.parametrize("layout", [GQA])
def test_a_write_that_fails_raises_and_later_writes_work(pool: BlockPool, layout: KvLayout, device: str) -> None:
    with pytest.raises(RuntimeError, match="lost"), pool.write(BlockId(0)):
        raise RuntimeError("lost")
    with pool.write(BlockId(0)) as view:
        view[:] = b"\x01" * layout.block_bytes
    assert bits(pool.tensor[0]) == b"\x01" * layout.block_bytes


def test_a_host_view_is_the_block_itself() -> None:
    pool = BlockPool(GQA, 3)
    pool.host_view(BlockId(1))[:] = b"\x07" * GQA.block_bytes
    assert bits(pool.tensor[1]) == b"\x07" * GQA.block_bytes
    assert set(bits(pool.tensor[0]) + bits(pool.tensor[2])) == {0}


def test_a_pool_of_no_block_is_refused_by_setting() -> None:
    with pytest.raises(ConfigError) as refused:
        BlockPool(GQA, 0)
    assert refused.value.field == "pool.bytes"


def test_a_pool_that_cannot_be_mapped_is_refused_and_leaves_no_descriptor() -> None:
    alone(make_a_pool_that_cannot_be_mapped)


def make_a_pool_that_cannot_be_mapped() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError) as refused:
        BlockPool(GQA, (1 << 62) // GQA.block_bytes)
    assert refused.value.field == "pool.bytes"
    assert set(os.listdir("/proc/self/fd")) == before


def test_memory_smaller_than_it_should_be_is_not_attached() -> None:
    pool = BlockPool(GQA, 2)
    assert pool.descriptor is not None
    with pytest.raises(ConfigError):
        BlockPool.attach(GQA, 3, descriptor=pool.descriptor)


def test_dtypes_have_names_and_the_others_are_refused() -> None:
    for layout in LAYOUTS.values():
        assert layout_dtype(torch_dtype(layout)) == layout.dtype
    with pytest.raises(ValueError, match=r"layout\.dtype"):
        layout_dtype(torch.float64)


def test_a_device_that_is_not_here_is_named() -> None:
    require_device("cpu")
    with pytest.raises(ConfigError) as refused:
        require_device("cuda:99")
    assert refused.value.field == "pool.device"


SECOND_PROCESS = """
import sys
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockId
layout = KvLayout(n_layers=3, n_kv_heads=2, head_dim=4, dtype="bfloat16", block_tokens=5)
pool = BlockPool.attach(layout, 4, descriptor=int(sys.argv[1]))
seen = bytes(pool.host_view(BlockId(1)))
pool.host_view(BlockId(2))[:] = seen[::-1]
sys.stdout.write(seen.hex())
"""


def test_another_process_sees_the_same_bytes_and_we_see_its() -> None:
    pool = BlockPool(GQA, 4)
    payload = os.urandom(GQA.block_bytes)
    pool.host_view(BlockId(1))[:] = payload
    assert pool.descriptor is not None
    ran = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(pool.descriptor)],
        pass_fds=[pool.descriptor],
        capture_output=True,
        check=True,
        timeout=100,
    )
    assert bytes.fromhex(ran.stdout.decode()) == payload
    assert bytes(pool.host_view(BlockId(2))) == payload[::-1]


def test_the_memory_has_no_name_and_goes_with_its_last_user() -> None:
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    pool = BlockPool(GQA, 4)
    descriptor = pool.descriptor
    assert Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("memfd:tiered-pool")
    inode = str(os.stat(f"/proc/self/fd/{descriptor}").st_ino)

    def mapped() -> bool:
        return any(line.split()[4] == inode for line in Path("/proc/self/maps").read_text().splitlines())

    kept = pool.tensor
    pool.close()
    pool.close()
    assert not Path(f"/proc/self/fd/{descriptor}").exists()
    kept.fill_(1.0)  # mapped for as long as somebody holds it
    assert mapped()
    del pool, kept
    assert not mapped()
    assert (set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()) <= before


@every_layout
@every_device
def test_the_first_tokens_of_a_block_are_copied_bit_for_bit_and_no_others(layout: KvLayout, device: str) -> None:
    pool = BlockPool(layout, 4, device=device)
    before = random_bits(tuple(pool.tensor.shape), layout, device)
    pool.tensor.copy_(before)
    for n_tokens in (0, 2, layout.block_tokens):
        pool.copy_tokens(BlockId(3), BlockId(1), n_tokens)
        expected = before.view(torch.uint8).clone()
        expected[1, :, :, :n_tokens] = expected[3, :, :, :n_tokens]
        assert torch.equal(pool.tensor.view(torch.uint8), expected)
    pool.close()
