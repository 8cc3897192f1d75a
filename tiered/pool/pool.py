"""One block-outermost tensor, on CUDA or in shared memory; gathers, scatters and lends views by block id.

Owns the bytes and nothing else: which block is whose, and whether it may be read, is the table's business.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from tiered.errors import ConfigError
from tiered.layout import KvLayout
from tiered.types import BlockId

_TORCH_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "uint8": torch.uint8,
}


def torch_dtype(layout: KvLayout) -> torch.dtype:
    return _TORCH_DTYPES[layout.dtype]


def layout_dtype(dtype: torch.dtype) -> str:
    """The layout's name of a torch dtype; ValueError for one that no pool can hold."""
    for name, candidate in _TORCH_DTYPES.items():
        if candidate is dtype:
            return name
    raise ValueError(f"layout.dtype: {dtype} is none of {', '.join(sorted(_TORCH_DTYPES))}")


def require_device(device: str) -> None:
    """For start-up: ConfigError naming the setting unless this machine has the device."""
    kind, _, index = device.partition(":")
    if kind == "cuda" and int(index or 0) >= (n_devices := torch.cuda.device_count()):
        raise ConfigError(
            f"pool.device: there is no {device}, torch sees {n_devices} CUDA devices here; choose one of them or cpu",
            field="pool.device",
        )


class BlockPool:
    """``n_blocks`` blocks in one tensor of shape (n_blocks, n_layers, n_planes, block_tokens, n_kv_heads, head_dim).

    On ``cpu`` the memory is an anonymous file in RAM (memfd): another process maps it from the descriptor, and it
    vanishes by itself when the last process that maps it ends, however it ends. All of it is made resident at the
    start, so that a budget the machine does not have fails here and first use pays for no page fault.

    descriptor: of a file in RAM to take instead, as large as the pool; what it holds stays. The pool then owns it.

    ``name`` is random: no other pool has it, so block ids of another are not taken for this one's.
    """

    def __init__(
        self, layout: KvLayout, n_blocks: int, *, device: str = "cpu", descriptor: int | None = None
    ) -> None:
        if n_blocks < 1:
            raise ConfigError(
                f"pool.bytes: too small for one block of {layout.block_bytes} bytes; give at least that much",
                field="pool.bytes",
            )
        self.layout = layout
        self.n_blocks = n_blocks
        self.device = device
        self.name = secrets.token_bytes(16)
        self.descriptor = descriptor
        self._memory: memoryview | None = None
        self._stream: torch.cuda.Stream | None = None
        if device == "cpu":
            if self.descriptor is None:
                self.descriptor = os.memfd_create("tiered-pool", os.MFD_CLOEXEC)
            try:
                self._adopt(_map(self.descriptor, self.nbytes, grow=True))
            except BaseException:
                self.close()
                raise
        else:
            self.tensor = torch.empty((n_blocks, *layout.block_shape), dtype=torch_dtype(layout), device=device)

    @classmethod
    def attach(cls, layout: KvLayout, n_blocks: int, *, descriptor: int, name: bytes = b"") -> BlockPool:
        """The pool of another process, from its shared-memory descriptor, which this pool then owns."""
        pool = cls.__new__(cls)
        pool.layout, pool.n_blocks, pool.device, pool.descriptor = layout, n_blocks, "cpu", descriptor
        pool._stream, pool.name = None, name
        pool._adopt(_map(descriptor, pool.nbytes, grow=False))
        return pool

    @classmethod
    def attach_tensor(cls, layout: KvLayout, tensor: torch.Tensor, *, name: bytes = b"") -> BlockPool:
        """The pool of another process, from a tensor that already aliases its CUDA memory."""
        pool = cls.__new__(cls)
        pool.layout, pool.n_blocks, pool.device, pool.name = layout, tensor.shape[0], str(tensor.device), name
        pool.descriptor, pool._memory, pool._stream, pool.tensor = None, None, None, tensor
        return pool

    def _adopt(self, memory: mmap.mmap) -> None:
        self._memory = memoryview(memory)
        flat = torch.frombuffer(memory, dtype=torch_dtype(self.layout))
        self.tensor = flat.view((self.n_blocks, *self.layout.block_shape))

    @property
    def nbytes(self) -> int:
        return self.n_blocks * self.layout.block_bytes

    def gather(self, block_ids: Sequence[BlockId], out: torch.Tensor) -> None:
        """Copy whole blocks into one buffer.

        Shapes: out is (n, n_layers, n_planes, block_tokens, n_kv_heads, head_dim), pool dtype, contiguous.
        """
        torch.index_select(_rows(self.tensor), 0, self._index(block_ids), out=_rows(out))

    def scatter(self, block_ids: Sequence[BlockId], source: torch.Tensor) -> None:
        """Copy one buffer of whole blocks, shaped as in :meth:`gather`, into the blocks' places."""
        _rows(self.tensor).index_copy_(0, self._index(block_ids), _rows(source))

    def gather_layer(self, block_ids: Sequence[BlockId], layer: int) -> torch.Tensor:
        """One layer's planes of a run of blocks as the engine lays them out.

        Shapes: returns (n_planes, n_kv_heads, n * block_tokens, head_dim), new memory, pool dtype.
        """
        layout = self.layout
        blocks = self.tensor[:, layer].index_select(0, self._index(block_ids))
        heads_first = blocks.permute(1, 3, 0, 2, 4)
        n_tokens = len(block_ids) * layout.block_tokens
        return heads_first.reshape(layout.n_planes, layout.n_kv_heads, n_tokens, layout.head_dim)

    def scatter_layer(self, block_ids: Sequence[BlockId], layer: int, planes: Sequence[torch.Tensor]) -> None:
        """The inverse of :meth:`gather_layer`.

        Shapes: each of the n_planes planes is (n_kv_heads, n * block_tokens, head_dim), pool dtype.
        """
        layout = self.layout
        index = self._index(block_ids)
        for plane, source in enumerate(planes):
            split = source.reshape(layout.n_kv_heads, len(block_ids), layout.block_tokens, layout.head_dim)
            _movable(self.tensor[:, layer, plane]).index_copy_(0, index, _movable(split.permute(1, 2, 0, 3)))

    def copy_tokens(self, source: BlockId, target: BlockId, n_tokens: int) -> None:
        """Copy the first ``n_tokens`` of a block, all layers, into another; returns when it is done."""
        tensor = _movable(self.tensor)
        tensor[target, :, :, :n_tokens].copy_(tensor[source, :, :, :n_tokens])
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()

    def host_view(self, block_id: BlockId) -> memoryview:
        """The block's own bytes; only for a pool in host memory."""
        if self._memory is None:
            raise TypeError("a CUDA pool has no host view; use read() and write()")
        start = block_id * self.layout.block_bytes
        return self._memory[start : start + self.layout.block_bytes]

    def read(self, block_id: BlockId, out: memoryview) -> None:
        """Copy a block's bytes into host memory of ``block_bytes`` bytes.

        Of a CUDA pool on a stream of its own: this thread waits for the copy, no engine's stream does.
        """
        if self._memory is not None:
            out[:] = self.host_view(block_id)
        else:
            self._copy_beside(torch.frombuffer(out, dtype=torch.uint8), self._bytes_of(block_id))

    @contextmanager
    def write(self, block_id: BlockId) -> Iterator[memoryview]:
        """Host memory whose content is the block's once the ``with`` ends: in place, or staged for CUDA."""
        if self._memory is not None:
            yield self.host_view(block_id)
            return
        staged = torch.empty(self.layout.block_bytes, dtype=torch.uint8, pin_memory=True)
        yield staged.numpy().data
        self._copy_beside(self._bytes_of(block_id), staged)

    def settle(self) -> None:
        """Wait until what this thread has queued for the pool's device is done, before others may read it."""
        if self.device != "cpu":
            torch.cuda.current_stream(self.device).synchronize()

    def _bytes_of(self, block_id: BlockId) -> torch.Tensor:
        return self.tensor[block_id].flatten().view(torch.uint8)

    def _copy_beside(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def _index(self, block_ids: Sequence[BlockId]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self.device)

    def close(self) -> None:
        """Close the descriptor; the mapping itself lives as long as somebody holds the tensor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _rows(blocks: torch.Tensor) -> torch.Tensor:
    """The same memory as (n, bytes of a block), in the widest integers that fit: fewer elements to index."""
    flat = blocks.view(len(blocks), math.prod(blocks.shape[1:]))
    n_bytes = flat.shape[1] * flat.element_size()
    return flat.view(
        next(d for d in (torch.int64, torch.int32, torch.int16, torch.uint8) if n_bytes % d.itemsize == 0)
    )


def _movable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory under a dtype that torch can copy by index; on the CPU it cannot for float8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _map(descriptor: int, nbytes: int, *, grow: bool) -> mmap.mmap:
    try:
        if grow:
            os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"pool.bytes: cannot map {nbytes} bytes of shared memory: {error}; give the pool less",
            field="pool.bytes",
        ) from None
