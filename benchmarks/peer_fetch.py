"""How fast do blocks come from a peer, against bare sockets that move the same bytes into the same buffers?

Two processes on one machine, loopback TCP. One holds a real PeerServer over a real BlockPool, the other a PeerTier
over a BlockPool of its own: authenticated, pinned at the sender, each block with its header, each block's XXH3-128
checked before it counts. The baseline is a blocking socket pair for each stream that moves the same blocks from the
same pool into the same slots: one send and one receive a block, no header, no check. Both fetch jobs of 32 blocks,
as a worker does.

``--quick`` is for seeing that it runs.

What was tried, on two cores that both sides, their kernel and others' work share (load 3 to 11). There the ratio
comes down to that of the CPU both sides use, whatever the number of streams. Of a bare exchange: 0.33 to 0.37 s of
CPU a GiB; the header with each block 0.01 to 0.02 more; XXH3-128 of each block 0.04 to 0.06 more. That leaves 0.83 to
0.87 at best.

- Header and payload in one receive that waits for all of them, with the kernel's timeouts, instead of two with
  Python's, which poll the socket before each piece: one receive a block, and half of the switches between threads.
  Kept.
- A send buffer of 4 MiB at the sender: with two streams 1.13 to 1.22 instead of 1.23 to 1.26 times the CPU of the
  bare one (three alternating runs each), with one no difference. Kept.
- A receive buffer of 128 KiB to 4 MiB: no difference. Not kept.
- A send that blocks for a whole block instead of several that do not: 1.17 to 1.19 instead of 1.10 to 1.13 times the
  CPU, checks left out. Not kept; nor would it keep its deadline on a Unix socket.
- One send for the 32 blocks of a job: no less CPU. Not kept.
- Checksums over 64 to 512 KiB at a time as they arrive, while they are in the cache: more CPU, 0.42 to 0.46 instead
  of 0.40 s/GiB, since each piece is a call. Not kept.
- sendfile from the pool's memory file, which saves the sender its copy: 0.26 s/GiB in one run, 0.44 to 0.56 in five
  others. And the kernel would go on reading a block after it is unpinned, until the other side has received it, so
  the protocol would need one more message. Not kept.
- Headers padded to a page, so that payloads stay aligned to pages: 0.01 s/GiB less. Not kept: it changes the format.
- Checking one block in another thread while the next arrives: not tried, since several streams do that already, and
  with both cores busy it cannot save CPU. Asking for the next job ahead: not tried; a job of 64 MiB takes 15 to 60
  ms, the question about 0.1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection as Pipe
from typing import Final

import numpy as np
from _harness import Report, median

from tiered.codec.frame import checksum_of
from tiered.jobs import PeerAddress
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.tiers.peer import PeerTier
from tiered.types import BlockHash, BlockId, Epoch, LeaseId
from worker.hot_tier import Lent
from worker.peer_server import PeerServer

LAYOUT: Final = KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16", block_tokens=16)
"""2 MiB a block."""

N_BLOCKS: Final = 256
JOB_BLOCKS: Final = 32
"""As many as one fetch of a worker asks for."""

ROUNDS: Final = 15
STREAMS: Final = (1, 2, 4)
TARGET: Final = 0.8
PATIENT_S: Final = 30.0
NODE, SECRET, SCOPE_ID = "w1", "bench", b"\1" * 32
HASHES: Final = [BlockHash(sha256(b"%d" % index).digest()) for index in range(N_BLOCKS)]
ASK: Final = struct.Struct("<II")


class Holder:
    """A pool full of random bytes with their checksums, as the hot tier lends them."""

    def __init__(self) -> None:
        self.pool_ = BlockPool(LAYOUT, N_BLOCKS)
        random = np.random.default_rng(0)
        self._checksums: list[bytes] = []
        for index in range(N_BLOCKS):
            view = self.pool_.host_view(BlockId(index))
            view[:] = random.bytes(view.nbytes)
            self._checksums.append(checksum_of(view))
        self._places = {block_hash: index for index, block_hash in enumerate(HASHES)}

    def lend(self, hashes: list[BlockHash], *, scope_id: bytes) -> Lent:
        places = [self._places[block_hash] for block_hash in hashes]
        blocks = tuple((i, BlockId(place), self._checksums[place]) for i, place in enumerate(places))
        return Lent(LeaseId(1), blocks)

    def take_back(self, lent: Lent) -> None:
        pass

    def epoch(self) -> int:
        return 1

    def pool(self) -> BlockPool:
        return self.pool_


def hold(pipe: Pipe) -> None:
    """The serving process: says both ports, then for each word the CPU seconds it has used, until one is false."""
    holder = Holder()
    server = PeerServer("127.0.0.1", 0, holder, node=NODE, secrets=(SECRET,), timeout_s=PATIENT_S)
    server.start()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=send_raw, args=(sock, holder.pool_), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    pipe.send((server.port, listener.getsockname()[1]))
    while pipe.recv():
        pipe.send(time.process_time())
    server.stop()


def send_raw(sock: socket.socket, pool: BlockPool) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        while question := sock.recv(ASK.size, socket.MSG_WAITALL):
            first, n_blocks = ASK.unpack(question)
            for index in range(first, first + n_blocks):
                sock.sendall(pool.host_view(BlockId(index)))


Job = range
Fetch = Callable[[int, Job], None]
"""One stream's fetch of one job: stream, blocks."""


@dataclass(frozen=True, slots=True)
class Taken:
    """For all blocks once: wall time, and CPU of both processes."""

    wall_s: float
    cpu_s: float


def race(
    fetches: dict[str, Fetch], *, n_streams: int, rounds: int, forget: Callable[[], None], pipe: Pipe
) -> dict[str, Taken]:
    """Medians of alternating rounds; the first one warms up."""
    taken: dict[str, list[Taken]] = {name: [] for name in fetches}
    names = list(fetches)
    with ThreadPoolExecutor(n_streams) as threads:
        for turn in range(rounds + 1):
            for name in names if turn % 2 else reversed(names):
                forget()
                cpu_s = cpu_of_both(pipe)
                wall_s = timed(fetches[name], n_streams, threads)
                if turn:
                    taken[name].append(Taken(wall_s, cpu_of_both(pipe) - cpu_s))
    return {
        name: Taken(median([each.wall_s for each in all_]), median([each.cpu_s for each in all_]))
        for name, all_ in taken.items()
    }


def cpu_of_both(pipe: Pipe) -> float:
    pipe.send(True)
    there_s: float = pipe.recv()
    return there_s + time.process_time()


def timed(fetch: Fetch, n_streams: int, threads: ThreadPoolExecutor) -> float:
    """All blocks once, in jobs that the streams take as they get done."""
    jobs = iter([range(start, start + JOB_BLOCKS) for start in range(0, N_BLOCKS, JOB_BLOCKS)])
    lock = threading.Lock()

    def work(stream: int) -> None:
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            fetch(stream, job)

    began = time.perf_counter()
    list(threads.map(work, range(n_streams)))
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Target:
    """The fetching side's pool."""

    pool: BlockPool
    views: Sequence[memoryview]

    def forget(self) -> None:
        for view in self.views:
            view[:1] = view[-1:] = b"\0"

    def require_arrived(self, checksums: Sequence[bytes]) -> None:
        assert all(checksum_of(view) == each for view, each in zip(self.views, checksums, strict=True))


@contextmanager
def serving() -> Iterator[tuple[Pipe, int, int]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(PATIENT_S), "the serving process did not start"
    try:
        yield ours, *ours.recv()
    finally:
        ours.send(False)
        process.join(PATIENT_S)


def measure(report: Report, *, rounds: int) -> None:
    pool = BlockPool(LAYOUT, N_BLOCKS)
    target = Target(pool, [pool.host_view(BlockId(index)) for index in range(N_BLOCKS)])
    with serving() as (pipe, peer_port, raw_port), closing(PeerTier("w2", SECRET, timeout_s=PATIENT_S)) as tier:
        address = PeerAddress(NODE, Epoch(1), "127.0.0.1", peer_port)
        sockets = [socket.create_connection(("127.0.0.1", raw_port)) for _ in range(max(STREAMS))]
        for sock in sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def peer(stream: int, job: Job) -> None:
            part = slice(job.start, job.stop)
            checksums = tier.fetch(address, HASHES[part], target.views[part], scope_id=SCOPE_ID)
            assert None not in checksums

        def raw(stream: int, job: Job) -> None:
            sock = sockets[stream]
            sock.sendall(ASK.pack(job.start, len(job)))
            for view in target.views[job.start : job.stop]:
                done = 0
                while done < view.nbytes:
                    done += sock.recv_into(view[done:], 0, socket.MSG_WAITALL)

        fetches: dict[str, Fetch] = {"peer": peer, "raw": raw}
        gib = pool.nbytes / 2**30
        for n_streams in STREAMS:
            taken = race(fetches, n_streams=n_streams, rounds=rounds, forget=target.forget, pipe=pipe)
            ours, bare = taken["peer"], taken["raw"]
            name = f"{n_streams} stream{'s' * (n_streams > 1)}"
            report.add(f"2 MiB blocks from a peer, {name}", gib / ours.wall_s, "GiB/s", baseline=gib / bare.wall_s)
            report.add(f"CPU of both sides, {name}", ours.cpu_s / gib, "s/GiB", baseline=bare.cpu_s / gib)
        for sock in sockets:
            sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of a fetch from a peer.")
    parser.add_argument("--quick", action="store_true", help="few rounds; the figures mean little")
    arguments = parser.parse_args()
    report = Report("peer_fetch")
    measure(report, rounds=3 if arguments.quick else ROUNDS)
    report.add("load average of the last minute, at the end", os.getloadavg()[0], "")
    report.finish()


if __name__ == "__main__":
    main()
