"""Hands the pool's memory to another process: a descriptor over a Unix socket, or a CUDA IPC handle.

Knows sockets and handles; refuses to know what is in the memory.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import msgspec
import torch

from tiered.errors import ProtocolError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool, torch_dtype


def send_with_descriptor(connection_fd: int, data: bytes, descriptor: int) -> None:
    """Send ``data`` and a duplicate of ``descriptor`` in one message over a connected Unix socket.

    Used once per connection on an empty send buffer, so that a non-blocking socket takes all of it.
    Errors: OSError when the other side is gone; ProtocolError when its buffer was not empty.
    """
    with socket.socket(fileno=os.dup(connection_fd)) as duplicate:
        sent = socket.send_fds(duplicate, [data], [descriptor])
    if sent != len(data):
        raise ProtocolError(f"only {sent} of {len(data)} bytes of the attach reply were taken")


_HANDLE: Final = msgspec.msgpack.Decoder(tuple[int, bytes, int, int, bytes, int, bytes, bool])
"""What torch shares a CUDA storage by: device, memory handle, size and offset, reference counter and its offset,
event and whether to wait for it. Plain values, never a pickle: an engine must not run what a stranger sends."""


def cuda_handle(pool: BlockPool) -> bytes:
    """What another process needs to open a CUDA pool."""
    storage = pool.tensor.untyped_storage()
    return msgspec.msgpack.encode(storage._share_cuda_())  # type: ignore[no-untyped-call]


def open_cuda_handle(handle: bytes, layout: KvLayout, n_blocks: int, *, name: bytes = b"") -> BlockPool:
    """Map a CUDA pool exported by :func:`cuda_handle` in another process on the same device.

    Errors: ProtocolError for what is no handle; RuntimeError from torch for one it cannot open.
    """
    try:
        parts = _HANDLE.decode(handle)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a CUDA memory handle: {error}") from error
    storage = torch.UntypedStorage._new_shared_cuda(*parts)
    tensor = torch.empty(0, dtype=torch_dtype(layout), device=storage.device)
    shape = (n_blocks, *layout.block_shape)
    tensor.set_(storage, 0, shape, tensor.new_empty(shape, device="meta").stride())
    return BlockPool.attach_tensor(layout, tensor, name=name)
