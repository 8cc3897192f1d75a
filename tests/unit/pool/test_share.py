"""Handing a pool to another process: the descriptor over a socket, the CUDA handle as bytes."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys

import pytest
import torch

from tests.support.alone import alone
from tiered.errors import ProtocolError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.pool.share import cuda_handle, open_cuda_handle, send_with_descriptor
from tiered.types import BlockId

LAYOUT = KvLayout(n_layers=2, n_kv_heads=1, head_dim=8, dtype="bfloat16", block_tokens=4)


def test_a_descriptor_travels_with_its_message() -> None:
    pool = BlockPool(LAYOUT, 2)
    pool.host_view(BlockId(1))[:] = b"\x05" * LAYOUT.block_bytes
    assert pool.descriptor is not None
    here, there = socket.socketpair()
    with here, there:
        send_with_descriptor(here.fileno(), b"attached", pool.descriptor)
        data, (descriptor,), _, _ = socket.recv_fds(there, 100, 1)
    assert data == b"attached"
    other = BlockPool.attach(LAYOUT, 2, descriptor=descriptor)
    assert bytes(other.host_view(BlockId(1))) == b"\x05" * LAYOUT.block_bytes
    other.host_view(BlockId(0))[:] = b"\x06" * LAYOUT.block_bytes
    assert bytes(pool.host_view(BlockId(0))) == b"\x06" * LAYOUT.block_bytes
    other.close()
    pool.close()


def test_a_message_that_does_not_fit_is_an_error_and_not_half_a_message() -> None:
    pool = BlockPool(LAYOUT, 1)
    assert pool.descriptor is not None
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        with pytest.raises(ProtocolError):
            send_with_descriptor(here.fileno(), bytes(64 << 20), pool.descriptor)


def test_the_caller_keeps_its_socket() -> None:
    alone(send_a_descriptor)


def send_a_descriptor() -> None:
    pool = BlockPool(LAYOUT, 1)
    assert pool.descriptor is not None
    here, there = socket.socketpair()
    with here, there:
        before = len(os.listdir("/proc/self/fd"))
        send_with_descriptor(here.fileno(), b"x", pool.descriptor)
        assert len(os.listdir("/proc/self/fd")) == before
        here.sendall(b"y")


def test_what_is_no_cuda_handle_is_refused_and_not_run() -> None:
    hostile = pickle.dumps(os.getpid)
    for handle in (b"", b"\x01", hostile):
        with pytest.raises(ProtocolError, match="not a CUDA memory handle"):
            open_cuda_handle(handle, LAYOUT, 3)


CUDA_ENGINE = """
import sys, torch
from tiered.layout import KvLayout
from tiered.pool.share import open_cuda_handle
layout = KvLayout(n_layers=2, n_kv_heads=1, head_dim=8, dtype="bfloat16", block_tokens=4)
pool = open_cuda_handle(bytes.fromhex(sys.stdin.read()), layout, 3)
assert (pool.tensor[1] == 1.5).all(), pool.tensor[1]
pool.tensor[2].fill_(2.5)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_process_opens_a_cuda_pool_by_its_handle() -> None:
    pool = BlockPool(LAYOUT, 3, device="cuda")
    pool.tensor[1].fill_(1.5)
    torch.cuda.synchronize()
    for _ in range(2):  # an engine that comes back gets a handle of its own
        subprocess.run(
            [sys.executable, "-c", CUDA_ENGINE],
            input=cuda_handle(pool).hex(),
            text=True,
            check=True,
            timeout=100,
        )
        assert bool((pool.tensor[2] == 2.5).all())
