"""The others that move blocks to and from a server: redis-py, valkey-glide, and LMCache in a process of its own.

Not a benchmark itself.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from _redis_movers import PATIENT_S, Address, Cargo, RawString, fits, strings

from tiered.layout import KvLayout


class RedisPyMover:
    """redis-py with hiredis: pipelines of a window each, and a copy from what it returns to the block's place."""

    def __init__(self, cargo: Cargo, address: Address) -> None:
        self._cargo = cargo
        self._client = redis.Redis.from_url(address.url, protocol=2)

    def put(self) -> float:
        start = time.perf_counter()
        for window in _windows(self._cargo.sources):
            with self._client.pipeline(transaction=False) as pipeline:
                for string in window:
                    pipeline.set(string.key, string.header + string.body, nx=True, px=30_000)
                assert all(pipeline.execute())
        return time.perf_counter() - start

    def get(self) -> float:
        start = time.perf_counter()
        for window in _windows(self._cargo.targets):
            values = self._client.mget([string.key for string in window])
            for string, value in zip(window, values, strict=True):
                string.body[:] = memoryview(value)[len(string.header) :]
        return time.perf_counter() - start

    def close(self) -> None:
        self._client.close()


class GlideMover:
    """valkey-glide's synchronous client, if it is installed; it has no Unix sockets."""

    def __init__(self, cargo: Cargo, address: Address) -> None:
        import glide_sync

        assert not isinstance(address.target, str)
        host, port = address.target
        self._glide: Any = glide_sync
        self._cargo = cargo
        self._client = glide_sync.GlideClient.create(
            glide_sync.GlideClientConfiguration(
                [glide_sync.NodeAddress(host, port)], request_timeout=round(PATIENT_S * 1e3)
            )
        )

    @staticmethod
    def is_here() -> bool:
        return find_spec("glide_sync") is not None

    def put(self) -> float:
        start = time.perf_counter()
        for window in _windows(self._cargo.sources):
            batch = self._glide.Batch(is_atomic=False)
            for string in window:
                batch.custom_command(["SET", string.key, string.header + string.body, "NX", "PX", "30000"])
            self._client.exec(batch, raise_on_error=True)
        return time.perf_counter() - start

    def get(self) -> float:
        start = time.perf_counter()
        for window in _windows(self._cargo.targets):
            for string, value in zip(window, self._client.mget([s.key for s in window]), strict=True):
                string.body[:] = memoryview(value)[len(string.header) :]
        return time.perf_counter() - start

    def close(self) -> None:
        self._client.close()


def _windows(views: Sequence[memoryview]) -> Iterator[list[RawString]]:
    window: list[RawString] = []
    for string in strings(views, 0, 1):
        if not fits(deque(s.body.nbytes for s in window), string.body.nbytes):
            yield window
            window = []
        window.append(string)
    yield window


class Peer:
    """A process with LMCache in it; see _lmcache_peer.py for what it is told and answers."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("_lmcache_peer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"},
        )
        self.version = self._line()

    def open(self, port: int, layout: KvLayout, n_blocks: int) -> None:
        """From now on its clients move blocks like these to and from the server at that port."""
        numbers = (port, layout.n_layers, layout.n_kv_heads, layout.head_dim, layout.block_tokens, n_blocks)
        self.ask(" ".join(["open", *map(str, numbers)]))

    def ask(self, line: str) -> float:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        """It is killed, because its clients do not always close."""
        with closing(self._process.stdin), closing(self._process.stdout):  # type: ignore[type-var]
            self._process.kill()
            self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise RuntimeError(f"the process with LMCache ended with {self._process.wait()}")


@dataclass(frozen=True, slots=True)
class PeerMover:
    """One of the clients in a peer's process, which takes the time itself and checks what it gets."""

    peer: Peer
    client: str

    def put(self) -> float:
        return self.peer.ask(f"put {self.client}")

    def get(self) -> float:
        return self.peer.ask(f"get {self.client}")

    def close(self) -> None:
        """The process is its owner's."""
