"""A store over a small memory, and prompts whose chunks' right bytes are known from their keys."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.redis_server import eventually
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.vllm.secondary_identity import EngineFacts, Group, identity_of
from tiered.connectors.vllm.secondary_lookups import Answer
from tiered.connectors.vllm.secondary_settings import read_settings
from tiered.connectors.vllm.secondary_store import Chunk, JobDone, SecondaryStore
from tiered.types import TenantId

RED, BLUE = TenantId("red"), TenantId("blue")
CHUNK_BYTES = 8192
N_ROWS = 64

FACTS = EngineFacts(
    engine_version="0.32.0",
    model="tiny",
    dtype="bfloat16",
    order="LBNHC",
    groups=(Group(0, 16, ("layers.0", "layers.1")),),
    tokens_per_hash=16,
    blocks_per_chunk=1,
    rank_bytes_per_block=CHUNK_BYTES,
    chunk_bytes=CHUNK_BYTES,
    world_size=1,
    tp_size=1,
    pp_size=1,
    pcp_size=1,
    dcp_size=1,
    is_replicated=False,
    is_canonical=False,
)


def key(prompt: object, index: int, *, group: int = 0) -> bytes:
    """As vLLM makes them: a SHA-256 and the number of the group."""
    return hashlib.sha256(f"{prompt}/{index}".encode()).digest() + group.to_bytes(4, "big")


def keys(prompt: object, n: int) -> list[bytes]:
    return [key(prompt, i) for i in range(n)]


def right_bytes(chunk_key: bytes, n_bytes: int = CHUNK_BYTES) -> bytes:
    return hashlib.shake_128(chunk_key).digest(n_bytes)


def given(server: EmbeddedServer | str, **changes: Any) -> dict[str, Any]:
    """What an operator would write, with deadlines for a busy machine and a namespace shared by a test's stores."""
    url = server if isinstance(server, str) else server.url
    generous = {"lookup_timeout_s": 5.0, "control_timeout_s": 5.0, "value_timeout_s": 5.0, "lookup_wait_s": 20.0}
    return {"redis_url": url, "weights_version": "1", **generous, **changes}


@dataclass
class Engine:
    """As vLLM's tiering manager uses a tier: what was looked up is loaded into rows of its own, what it computed is
    stored from there."""

    store: SecondaryStore
    memory: bytearray
    tenant: TenantId = RED
    _next_job: int = 0
    _done: dict[int, JobDone] = field(default_factory=dict)

    def row(self, index: int) -> memoryview:
        return memoryview(self.memory)[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]

    def fill(self, chunk_keys: Sequence[bytes], *, first_row: int = 0) -> None:
        for index, chunk_key in enumerate(chunk_keys):
            self.row(first_row + index)[:] = right_bytes(chunk_key)

    def submit_store(self, chunk_keys: Sequence[bytes], *, first_row: int = 0, request: str = "r") -> int:
        self._next_job += 1
        chunks = [Chunk(k, depth, first_row + depth) for depth, k in enumerate(chunk_keys)]
        self.store.store(self._next_job, request, self.tenant, chunks, {0: list(chunk_keys)})
        return self._next_job

    def submit_load(
        self, chunk_keys: Sequence[bytes], *, first_row: int = 0, request: str = "r", tenant: TenantId | None = None
    ) -> int:
        self._next_job += 1
        chunks = [Chunk(k, depth, first_row + depth) for depth, k in enumerate(chunk_keys)]
        self.store.load(self._next_job, request, tenant or self.tenant, chunks, {0: list(chunk_keys)})
        return self._next_job

    def wait(self, job: int, *, within_s: float = 20.0) -> list[bool]:
        def ended() -> bool:
            for done in self.store.finished():
                assert done.job_id not in self._done, "reported twice"
                self._done[done.job_id] = done
            return job in self._done

        eventually(ended, within_s=within_s)
        return list(self._done[job].good)

    def save(self, chunk_keys: Sequence[bytes]) -> list[bool]:
        self.fill(chunk_keys)
        return self.wait(self.submit_store(chunk_keys))

    def fetch(self, chunk_keys: Sequence[bytes], **how: Any) -> list[bool]:
        """Load into rows that held something else; each that is reported good has the right bytes."""
        first_row = how.get("first_row", 0)
        for index in range(len(chunk_keys)):
            self.row(first_row + index)[:] = b"\xee" * CHUNK_BYTES
        good = self.wait(self.submit_load(chunk_keys, **how))
        for index, (chunk_key, is_good) in enumerate(zip(chunk_keys, good, strict=True)):
            assert not is_good or self.row(first_row + index) == right_bytes(chunk_key), "wrong bytes"
        return good

    def ask(self, chunk_keys: Sequence[bytes], *, request: str = "r", tenant: TenantId | None = None) -> list[Answer]:
        """One scheduling pass."""
        answers = [self.store.lookup(k, request, tenant or self.tenant) for k in chunk_keys]
        self.store.end_pass()
        return answers

    def resolve(
        self, chunk_keys: Sequence[bytes], *, request: str = "r", tenant: TenantId | None = None
    ) -> list[Answer]:
        """Passes until nothing has to be waited for."""
        found: list[Answer] = []

        def decided() -> bool:
            found[:] = self.ask(chunk_keys, request=request, tenant=tenant)
            return Answer.RETRY not in found

        eventually(decided)
        return found


@contextmanager
def engine(server: EmbeddedServer | str, *, facts: EngineFacts = FACTS, **changes: Any) -> Iterator[Engine]:
    memory = bytearray(N_ROWS * CHUNK_BYTES)
    tenant = TenantId(changes.get("tenant", RED))
    identity = identity_of(facts, weights_version=changes.get("weights_version", "1"))
    store = SecondaryStore(read_settings(given(server, **changes)), identity, memoryview(memory))
    try:
        yield Engine(store, memory, tenant)
    finally:
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < 20
        memory.extend(b"x")  # BufferError, if anybody still held it
