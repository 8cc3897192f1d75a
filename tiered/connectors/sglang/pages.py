"""One page of SGLang's host memory as buffers, copied from and to a block of the pool.

Owns addresses and lengths; does not know keys, or what a block is for. A page whose length is not a block's is never
copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import xxhash

from tiered.connectors.sglang.engine import HostPool
from tiered.errors import ConfigError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockId


@dataclass(frozen=True, slots=True)
class Page:
    """buffers: address and length of each, back to back a block's bytes."""

    buffers: tuple[tuple[int, int], ...]

    @property
    def n_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in self.buffers)

    def write_to(self, block: memoryview) -> None:
        """Copy the page into a block."""
        for address, at, n_bytes in self._pieces(block):
            ctypes.memmove(at, address, n_bytes)  # releases the interpreter's lock, as a slice of a view does not

    def read_from(self, block: memoryview) -> None:
        """Copy a block into the page."""
        for address, at, n_bytes in self._pieces(block):
            ctypes.memmove(address, at, n_bytes)

    def checksum(self) -> bytes:
        """As :func:`tiered.codec.frame.checksum_of` of the block, of what the page holds now."""
        digest = xxhash.xxh3_128()
        for address, n_bytes in self.buffers:
            digest.update((ctypes.c_ubyte * n_bytes).from_address(address))
        found: bytes = digest.digest()
        return found

    def _pieces(self, block: memoryview) -> Iterator[tuple[int, int, int]]:
        if len(block) != self.n_bytes:
            raise ValueError(f"a page of {self.n_bytes} bytes is no block of {len(block)}")
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(block))
        for address, n_bytes in self.buffers:
            yield address, start, n_bytes
            start += n_bytes


class PageMemory:
    """The pages of a host pool, each as a block of ``layout``."""

    def __init__(self, pool: HostPool, layout: KvLayout) -> None:
        """Errors: ConfigError where the pool's pages are not as long as its geometry says."""
        self.pool = pool
        self._layout = layout
        if not self.pages(torch.arange(layout.block_tokens), 1):
            raise ConfigError(
                f"sglang: a page of {type(pool).__name__} does not hold the {layout.block_bytes} bytes of "
                f"{layout.describe()}; run this model without --hicache-storage-backend"
            )

    def pages(self, host_indices: torch.Tensor, n_pages: int) -> list[Page]:
        """The pages of these token slots; none at all unless they are so many, each as long as a block."""
        if not n_pages or host_indices.numel() != n_pages * self._layout.block_tokens:
            return []
        addresses, sizes = self.pool.get_page_buffer_meta(host_indices)
        if isinstance(sizes, int):
            sizes = [sizes] * len(addresses)
        n_buffers, rest = divmod(len(addresses), n_pages)
        if rest or len(sizes) != len(addresses) or n_buffers % self._layout.n_planes or not n_buffers:
            return []
        buffers = list(zip(addresses, sizes, strict=True))
        pages = [
            Page(self._ordered(buffers[start : start + n_buffers])) for start in range(0, len(buffers), n_buffers)
        ]
        return pages if all(page.n_bytes == self._layout.block_bytes for page in pages) else []

    def flat_page(self, tensor: torch.Tensor | None) -> Page | None:
        """A page that is one tensor; None unless that is whole, in host memory and as long as a block."""
        if tensor is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        page = Page(((tensor.data_ptr(), tensor.numel() * tensor.element_size()),))
        return page if page.n_bytes == self._layout.block_bytes else None

    def _ordered(self, buffers: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """As in a flat page: the buffers come as K, V, K, V, while a flat page is all of K, then all of V."""
        n_planes = self._layout.n_planes
        return tuple(buffer for plane in range(n_planes) for buffer in buffers[plane::n_planes])


def copy_out(
    pool: BlockPool, block_ids: Sequence[BlockId], checksums: Sequence[bytes | None], pages: Sequence[Page]
) -> int:
    """Copy blocks into pages; returns how many pages, from the first on, hold the bytes that were committed.

    What has arrived is checked, not what was there before: whatever happens to the block meanwhile is seen.
    """
    staged = None if pool.device == "cpu" else memoryview(bytearray(pool.layout.block_bytes))
    for n_good, (block_id, checksum, page) in enumerate(zip(block_ids, checksums, pages, strict=False)):
        if staged is None:
            page.read_from(pool.host_view(block_id))
        else:
            pool.read(block_id, staged)
            page.read_from(staged)
        if checksum is not None and page.checksum() != checksum:
            return n_good
    return min(len(block_ids), len(pages))
