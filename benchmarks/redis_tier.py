"""How fast do blocks move to and from Redis, and what do its books cost?

Blocks: batches of four sizes, from pool memory and into it, on each server that is found, over a Unix socket and over
TCP. Each round lets all movers go once, in rotated order, on a server that was emptied before; a figure is the median
over the rounds, of a mover with several variants (sockets, threads, workers) that of its best one. The tier reserves,
checksums, commits, verifies and touches; those it is compared with only move bytes.

TIERED_LMCACHE_PYTHON names a Python with lmcache and torch; without it there are no rows against LMCache, and without
a redis-server on the PATH none for Redis. With valkey-glide-sync installed there are rows for it too. ``--quick`` is
for seeing that it runs. ``--only blocks`` and ``--only books`` run one half.

What was tried on the way, over a Unix socket to Valkey 9.1, on a machine at load 3 to 6:

- Several GETs in one send, and again once half of a window of eight is through, instead of one GET a send and four in
  flight: 32 values of 256 bytes in 0.55 instead of 0.84 ms (best of 100). At 360 KiB the change was within the noise.
  The same eight hold for SETs, which were not measured apart. Kept.
- A length line that is the expected one is compared and not parsed, and a value that is whole is not split: 0.45 ms.
  A bare socket with the same windows takes 0.21, and 2.9 to the client's 3.4 ms at 360 KiB. Kept.
- Equal Whereabouts of a lookup are made once: 512 present blocks in 0.62 instead of 1.75 ms (best of 300, one chain
  asked for again and again). Kept.
- A send buffer of 4 MiB on the Unix socket: within the noise. Not kept.
- Checksums of a put just before each send instead of for the whole batch ahead, tried on the bare socket: 0.6 to 1.6
  ms of 9 to 13. Not done: a size must be reserved first, and with a codec only encoding tells it.

Where the time of 64 blocks of 360 KiB goes (medians): a get takes 10.7 to 11.4 ms and a bare socket 7.8. Of the
difference the touch is 1.0 to 1.2, verifying and headers together 1.2 to 1.3, the rest the value client. A put takes
12.8 and a bare socket 7.8: about 1.0 is checksums, 1.5 the server's time in four script calls; the rest was not taken
apart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from _harness import Report, median
from _redis_books import measure_books
from _redis_movers import EMPTY, Address, Cargo, Mover, RawMover, TierMover
from _redis_rivals import GlideMover, Peer, PeerMover, RedisPyMover

from tiered.cluster.embedded import EmbeddedServer, find_server_binary
from tiered.layout import KvLayout

LAYOUTS: Mapping[str, tuple[KvLayout, int]] = {
    "360 KiB": (KvLayout(n_layers=30, n_kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=16), 64),
    "2 MiB": (KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16", block_tokens=16), 16),
    "2.8 MiB": (KvLayout(n_layers=30, n_kv_heads=3, head_dim=64, dtype="bfloat16", block_tokens=128), 12),
    "32 MiB": (KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16", block_tokens=256), 2),
}
"""With the number of blocks in a batch."""

ROUNDS = 5
SOCKETS = (1, 2)
WORKERS = (1, 2, 8)
BOOKED_BLOCKS = (1_000_000, 200_000)
"""On the first server, and on the second: filling takes its time."""
FEW_BLOCKS = 10_240


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    unix: Address
    tcp: Address
    port: int
    client: redis.Redis


@contextmanager
def running(binary: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        with EmbeddedServer.start(Path(directory), maxmemory_bytes=None, port=port, binary=binary) as server:
            client = redis.Redis.from_url(server.url, protocol=2)
            about = client.info("server")
            kind = "Valkey" if "valkey_version" in about else "Redis"
            yield Server(
                name=f"{kind} {about.get('valkey_version', about['redis_version'])}",
                unix=Address("unix", server.url, str(server.socket_path)),
                tcp=Address("TCP", f"redis://127.0.0.1:{port}", ("127.0.0.1", port)),
                port=port,
                client=client,
            )
            client.close()


def binaries() -> list[Path]:
    found = [find_server_binary()]
    distribution = shutil.which("redis-server")
    if distribution is None:
        print("redis_tier: no redis-server on the PATH, so there are no rows for Redis", file=sys.stderr)
    elif Path(distribution) not in found:
        found.append(Path(distribution))
    return found


def movers_of(cargo: Cargo, server: Server, peer: Peer | None) -> dict[str, list[Mover]]:
    """By name, each with its variants."""
    movers: dict[str, list[Mover]] = {}
    for address in (server.unix, server.tcp):
        movers[f"tier {address.transport}"] = [TierMover(cargo, address, n) for n in SOCKETS]
        movers[f"raw {address.transport}"] = [RawMover(cargo, address, n) for n in SOCKETS]
        movers[f"redis-py {address.transport}"] = [RedisPyMover(cargo, address)]
    if GlideMover.is_here():
        movers["glide TCP"] = [GlideMover(cargo, server.tcp)]
    if peer is not None:
        peer.open(server.port, cargo.layout, len(cargo.hashes))
        movers["connector"] = [PeerMover(peer, "connector")]
        movers["native"] = [PeerMover(peer, f"native{n}") for n in WORKERS]
    return movers


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of the best variant of each mover, GiB/s, and which one it was."""

    put: Mapping[str, float]
    get: Mapping[str, float]


def race(server: Server, cargo: Cargo, movers: Mapping[str, Sequence[Mover]], *, rounds: int) -> Speeds:
    """The first round warms up and does not count."""
    field = [(name, mover) for name, variants in movers.items() for mover in variants]
    puts: list[list[float]] = [[] for _ in field]
    gets: list[list[float]] = [[] for _ in field]
    for turn in range(rounds + 1):
        for index in [*range(turn % len(field), len(field)), *range(turn % len(field))]:
            name, mover = field[index]
            server.client.execute_command(*EMPTY)
            cargo.forget()
            put_s, get_s = mover.put(), mover.get()
            assert isinstance(mover, PeerMover) or cargo.has_arrived(), name
            if turn:
                puts[index].append(put_s)
                gets[index].append(get_s)
    server.client.execute_command(*EMPTY)
    return Speeds(*(_best(field, seconds, cargo.nbytes / 2**30) for seconds in (puts, gets)))


def _best(field: Sequence[tuple[str, Mover]], seconds: Sequence[Sequence[float]], gib: float) -> dict[str, float]:
    best: dict[str, float] = {}
    for (name, _), each in zip(field, seconds, strict=True):
        best[name] = max(best.get(name, 0.0), gib / median(each))
    return best


def measure_blocks(report: Report, server: Server, peer: Peer | None, *, rounds: int) -> None:
    for size, (layout, n_blocks) in LAYOUTS.items():
        cargo = Cargo(layout, n_blocks)
        with ExitStack() as stack:
            stack.callback(cargo.close)
            movers = movers_of(cargo, server, peer)
            for mover in (mover for variants in movers.values() for mover in variants):
                stack.callback(mover.close)
            speeds = race(server, cargo, movers, rounds=rounds)
        for verb, of in (("get", speeds.get), ("put", speeds.put)):
            _add_rows(report, f"{server.name}, {size}, {verb}", of, peer)


def _add_rows(report: Report, what: str, of: Mapping[str, float], peer: Peer | None) -> None:
    for transport in ("unix", "TCP"):
        rivals = {name: f"{name} {transport}" for name in ("raw", "redis-py", "glide")}
        if peer is not None:
            rivals[f"LMCache {peer.version} native, TCP"] = "native"
            if transport == "TCP":
                rivals[f"LMCache {peer.version} redis://"] = "connector"
        for rival, name in rivals.items():
            if name in of:
                report.add(f"{what}, {transport} / {rival}", of[f"tier {transport}"], "GiB/s", baseline=of[name])


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and books of the Redis tier.")
    parser.add_argument("--quick", action="store_true", help="few rounds and blocks; the figures mean little")
    parser.add_argument("--only", choices=("blocks", "books"), help="one half only")
    arguments = parser.parse_args()
    report = Report("redis_tier")
    python = os.environ.get("TIERED_LMCACHE_PYTHON")
    if python is None:
        print("redis_tier: TIERED_LMCACHE_PYTHON is not set, so there are no rows against LMCache", file=sys.stderr)
    with ExitStack() as stack:
        peer = None
        if python is not None and arguments.only != "books":
            peer = Peer(python)
            stack.callback(peer.close)
        for binary, n_booked in zip(binaries(), BOOKED_BLOCKS, strict=False):
            if arguments.only != "books":
                with running(binary) as server:
                    measure_blocks(report, server, peer, rounds=2 if arguments.quick else ROUNDS)
            if arguments.only != "blocks":
                n_blocks = 2 * FEW_BLOCKS if arguments.quick else n_booked
                with running(binary) as server, running(binary) as second:
                    urls = server.unix.url, second.unix.url
                    measure_books(report, server.name, *urls, n_blocks=n_blocks, few_blocks=FEW_BLOCKS)
    report.add("load average of the last minute, at the end", os.getloadavg()[0], "")
    report.finish()


if __name__ == "__main__":
    main()
