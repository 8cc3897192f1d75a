"""The bytes of vLLM's blocks, and their copies from and to the pool's.

Each layer's tensor is seen as rows of bytes, one a block. A pool's block is the rows of all layers, one after the
other. What the bytes mean is nobody's business here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch

from tiered.connectors.vllm.geometry import in_layer_order
from tiered.errors import ConfigError
from tiered.pool.pool import BlockPool
from tiered.types import BlockId

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

DEVICE_BATCH: Final = 16
"""Blocks that a device copies before anybody looks up: each copy takes a launch per layer, however few there are."""


class Pages(Protocol):
    """batch: how many blocks one call should copy, so that whoever waits for it does not wait long."""

    batch: int

    @property
    def block_bytes(self) -> int: ...

    def copy_in(self, pool: BlockPool, slots: Sequence[BlockId], targets: Sequence[int]) -> None:
        """From the pool into vLLM's blocks; done when it returns."""

    def copy_out(self, sources: Sequence[int], pool: BlockPool, slots: Sequence[BlockId]) -> None:
        """From vLLM's blocks into the pool; done when it returns."""


def rows_of(kv_caches: Mapping[str, torch.Tensor], n_blocks: int) -> dict[str, torch.Tensor]:
    """By layer, in layer order, its blocks as (n_blocks, bytes of a page), uint8; layers that share memory once.

    Errors: ConfigError for an order in which a page is not one run of bytes.
    """
    rows: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for layer in in_layer_order(list(kv_caches)):
        tensor = kv_caches[layer]
        place = tensor.data_ptr(), tensor.stride()
        if place not in seen:
            seen.add(place)
            rows[layer] = _rows(layer, tensor, n_blocks)
    return rows


def pages_of(rows: Sequence[torch.Tensor]) -> Pages:
    return DevicePages(rows) if rows[0].is_cuda else HostPages(rows)


def _rows(layer: str, tensor: torch.Tensor, n_blocks: int) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.shape[0] % n_blocks:
        raise ConfigError(f"model: layer {layer} does not keep its KV in {n_blocks} blocks, so it cannot be cached")
    ratio = tensor.shape[0] // n_blocks  # of the kernel's blocks to vLLM's
    inner = [(tensor.stride(0), ratio), *zip(tensor.stride()[1:], tensor.shape[1:], strict=True)]
    expected = 1
    for stride, size in sorted(pair for pair in inner if pair[1] > 1):
        if stride != expected:
            raise ConfigError(
                f"model: layer {layer} spreads a block over several places; set VLLM_KV_CACHE_LAYOUT to LBHNC"
            )
        expected *= size
    width = tensor.element_size()
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * width,
        (n_blocks, expected * width),
        (tensor.stride(0) * ratio * width, 1),
    )


class HostPages:
    """Blocks in host memory; one copy a block where all layers lie at even distances, else one a layer."""

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self.batch = 1
        self._grid = _grid(rows)
        self._layers = [row.numpy() for row in rows]
        self._offsets = list(itertools.accumulate((row.shape[1] for row in rows), initial=0))

    @property
    def block_bytes(self) -> int:
        return self._offsets[-1]

    def copy_in(self, pool: BlockPool, slots: Sequence[BlockId], targets: Sequence[int]) -> None:
        blocks = self._blocks_of(pool)
        for slot, target in zip(slots, targets, strict=True):
            block = blocks[slot]
            if self._grid is not None:
                np.copyto(self._grid[target], block.reshape(self._grid.shape[1:]))
            else:
                for layer, first, last in zip(self._layers, self._offsets, self._offsets[1:], strict=False):
                    np.copyto(layer[target], block[first:last])

    def copy_out(self, sources: Sequence[int], pool: BlockPool, slots: Sequence[BlockId]) -> None:
        blocks = self._blocks_of(pool)
        for source, slot in zip(sources, slots, strict=True):
            block = blocks[slot]
            if self._grid is not None:
                np.copyto(block.reshape(self._grid.shape[1:]), self._grid[source])
            else:
                for layer, first, last in zip(self._layers, self._offsets, self._offsets[1:], strict=False):
                    np.copyto(block[first:last], layer[source])

    @staticmethod
    def _blocks_of(pool: BlockPool) -> Bytes:
        if pool.device != "cpu":
            raise TypeError(f"an engine on the CPU cannot copy from and to a pool on {pool.device}")
        return pool.tensor.view(torch.uint8).view(pool.n_blocks, -1).numpy()


def _grid(rows: Sequence[torch.Tensor]) -> Bytes | None:
    """All layers as (n_blocks, n_layers, bytes of a page), if they lie at even distances in one storage."""
    first = rows[0]
    step = rows[1].storage_offset() - first.storage_offset() if len(rows) > 1 else 0
    for index, row in enumerate(rows):
        is_even = row.storage_offset() == first.storage_offset() + index * step
        if not is_even or row.shape != first.shape or row.stride() != first.stride() or not _is_same(row, first):
            return None
    shape = (first.shape[0], len(rows), first.shape[1])
    grid = torch.as_strided(first, shape, (first.stride(0), step, 1), first.storage_offset())
    return grid.numpy()


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class DevicePages:
    """Blocks on a CUDA device, copied on a stream of their own; the thread that copies waits, the model does not.

    The caller knows that the model is done with the blocks: what is stored was computed in a step whose results
    vLLM has, what is loaded into nobody else uses.
    """

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self.batch = DEVICE_BATCH
        self._rows = list(rows)
        self._offsets = list(itertools.accumulate((row.shape[1] for row in rows), initial=0))
        self._stream: torch.cuda.Stream | None = None
        self._staged: torch.Tensor | None = None

    @property
    def block_bytes(self) -> int:
        return self._offsets[-1]

    def copy_in(self, pool: BlockPool, slots: Sequence[BlockId], targets: Sequence[int]) -> None:
        blocks = _bytes_of(pool)
        for first in range(0, len(slots), self.batch):
            ids = torch.tensor(slots[first : first + self.batch])
            staged = self._staging(len(ids), on_host=not blocks.is_cuda)
            with self._on_the_side():
                torch.index_select(blocks, 0, ids.to(blocks.device), out=staged)
                beside = staged.to(self._device, non_blocking=True)
                index = torch.tensor(targets[first : first + self.batch], device=self._device)
                for row, begin, end in zip(self._rows, self._offsets, self._offsets[1:], strict=False):
                    row.index_copy_(0, index, beside[:, begin:end])
            self._settle()

    def copy_out(self, sources: Sequence[int], pool: BlockPool, slots: Sequence[BlockId]) -> None:
        blocks = _bytes_of(pool)
        for first in range(0, len(slots), self.batch):
            ids = torch.tensor(slots[first : first + self.batch])
            with self._on_the_side():
                index = torch.tensor(sources[first : first + self.batch], device=self._device)
                beside = torch.cat([row.index_select(0, index) for row in self._rows], dim=1)
                if blocks.is_cuda:
                    blocks.index_copy_(0, ids.to(blocks.device), beside)
                else:
                    staged = self._staging(len(ids), on_host=True)
                    staged.copy_(beside, non_blocking=True)
            self._settle()
            if not blocks.is_cuda:
                blocks.index_copy_(0, ids, staged)

    @property
    def _device(self) -> torch.device:
        return self._rows[0].device

    def _staging(self, n_blocks: int, *, on_host: bool) -> torch.Tensor:
        """Pinned where it can be, so that a copy to the device goes on beside the host."""
        if self._staged is None:
            device = torch.device("cpu") if on_host else self._device
            shape = (self.batch, self.block_bytes)
            pinned = on_host and self._device.type == "cuda"
            self._staged = torch.empty(shape, dtype=torch.uint8, device=device, pin_memory=pinned)
        return self._staged[:n_blocks]

    def _on_the_side(self) -> torch.cuda.StreamContext:
        if self._stream is None and self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._stream)

    def _settle(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _bytes_of(pool: BlockPool) -> torch.Tensor:
    return pool.tensor.view(torch.uint8).view(pool.n_blocks, -1)
