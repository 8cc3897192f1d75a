"""What moving blocks costs on a CUDA device, against plain copies of the same bytes; and that no engine waits for it.

Targets: gather and scatter at least 0.8 of a device-to-device copy, pool to pinned host and back at least 0.85 of a
pinned copy, an engine's step no slower while blocks are demoted. Ratios of bandwidths are given, more is better; that
of the step is of times. Without a device nothing is measured, and the script says so.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch
from _harness import Report

from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.pool.staging import StagingBuffers
from tiered.types import BlockId

LAYOUT = KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16", block_tokens=16)
"""2 MiB a block, as of a model of 8 billion parameters."""
N_BLOCKS, N_MOVED, ROUNDS = 2_048, 512, 20


def device_ms(work: Callable[[], object]) -> float:
    """Median by the device's own clock."""
    times = []
    for _ in range(ROUNDS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def host_ms(work: Callable[[], object]) -> float:
    """Median by the host's clock, the device settled before and after."""
    times = []
    for _ in range(ROUNDS + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[3:])


def gib_s(ms: float, n_bytes: int) -> float:
    return n_bytes / (1 << 30) / (ms / 1e3)


def main() -> None:
    if not torch.cuda.is_available():
        print("gpu: no CUDA device here; nothing was measured", file=sys.stderr)
        return
    report = Report("gpu")
    pool = BlockPool(LAYOUT, N_BLOCKS, device="cuda")
    ids = [BlockId(int(i)) for i in torch.randperm(N_BLOCKS)[:N_MOVED]]
    n_bytes = N_MOVED * LAYOUT.block_bytes
    gathered = torch.empty((N_MOVED, *LAYOUT.block_shape), dtype=pool.tensor.dtype, device="cuda")
    other = torch.empty_like(gathered)
    copy = gib_s(device_ms(lambda: other.copy_(gathered)), n_bytes)
    report.add("gather", gib_s(device_ms(lambda: pool.gather(ids, gathered)), n_bytes), "GiB/s", baseline=copy)
    report.add("scatter", gib_s(device_ms(lambda: pool.scatter(ids, gathered)), n_bytes), "GiB/s", baseline=copy)

    staging = StagingBuffers(1, LAYOUT.block_bytes, pinned=True)
    buffer = staging.lend(timeout_s=1.0)
    assert buffer is not None
    pinned = torch.empty(LAYOUT.block_bytes, dtype=torch.uint8, pin_memory=True)
    plain = torch.empty(LAYOUT.block_bytes, dtype=torch.uint8, device="cuda")

    def down() -> None:
        for block_id in ids[:64]:
            pool.read(block_id, buffer)

    def up() -> None:
        for block_id in ids[:64]:
            with pool.write(block_id):
                pass

    def plain_down() -> None:
        for _ in range(64):
            pinned.copy_(plain, non_blocking=True)
            torch.cuda.current_stream().synchronize()

    def plain_up() -> None:
        for _ in range(64):
            plain.copy_(pinned, non_blocking=True)
            torch.cuda.current_stream().synchronize()

    part = 64 * LAYOUT.block_bytes
    report.add("to host", gib_s(host_ms(down), part), "GiB/s", baseline=gib_s(host_ms(plain_down), part))
    report.add("from host", gib_s(host_ms(up), part), "GiB/s", baseline=gib_s(host_ms(plain_up), part))

    left, right = (torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def step() -> None:
        for _ in range(10):
            left @ right

    alone = device_ms(step)
    stop = threading.Event()

    def demote() -> None:
        while not stop.is_set():
            down()

    mover = threading.Thread(target=demote)
    mover.start()
    try:
        report.add("an engine's step while blocks are demoted", device_ms(step), "ms", baseline=alone)
    finally:
        stop.set()
        mover.join()
    report.finish()


if __name__ == "__main__":
    main()
