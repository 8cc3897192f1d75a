"""Engines in processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.content import LAYOUT, SCOPE, TENANT, filler, hashes_of, prompt, save, wrong_blocks
from tests.support.small_cluster import PATIENT
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient, RemoteOptions
from tiered.errors import TieredError
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, TenantId

OPTIONS = RemoteOptions(call_timeout_s=0.5, grace_s=0.5)
LOAD_S, SAVE_S = 0.5, 0.1
CALL_S = max(LOAD_S + OPTIONS.grace_s, SAVE_S + OPTIONS.grace_s + 3 * OPTIONS.call_timeout_s)
"""The longest that any one call of a round may take by its deadlines: a save opens, asks, commits and releases."""


def hold_and_stall(socket_path: str, marker: str, n_pinned: int, n_filling: int) -> None:
    """Pin ``prompt(1)``, then stop for ever in the middle of writing a block of ``prompt(2)``; then marker exists."""
    client = RemoteClient.attach(socket_path, SCOPE, engine="doomed", options=PATIENT)
    save(client, prompt(1, n_pinned))
    client.match(prompt(1, n_pinned), tenant=TENANT)

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        half = LAYOUT.block_bytes // 2
        pool.host_view(block_ids[0])[:half] = b"\xee" * half
        Path(marker).touch()
        signal.pause()

    client.save(prompt(2, n_filling), tenant=TENANT, fill=fill)


@dataclass
class Round:
    """What one round of :func:`run_rounds` says of itself, as a line of its report."""

    asked: int
    hits: dict[str, int]
    slowest_s: float
    slowest: str
    wrong: str = ""
    at: float = 0.0
    """When it ended, by the clock that all processes of a machine share."""


def run_rounds(socket_path: str, report: str, stop: str, seed: int) -> None:
    """Match, load, compare every byte, release, save - until the stop file exists, whatever happens to the worker.

    All engines draw from the same few prompts of two tenants, so that they find each other's blocks.
    """
    rng = random.Random(seed)
    client = _attach_patiently(socket_path, stop)
    if client is None:
        return
    with closing(client), open(report, "a", buffering=1) as lines:
        while not os.path.exists(stop):
            tenant = TenantId(rng.choice(("red", "blue")))
            wanted = prompt(rng.randrange(4), 3) + prompt(10 + rng.randrange(6), rng.randrange(1, 5))
            lines.write(json.dumps(asdict(_round(client, wanted, tenant))) + "\n")


def _attach_patiently(socket_path: str, stop: str) -> RemoteClient | None:
    """None when told to stop before there was a worker."""
    attached: list[RemoteClient] = []

    def settled() -> bool:
        try:
            attached.append(RemoteClient.attach(socket_path, SCOPE, engine="chaos", options=OPTIONS))
        except TieredError:
            return os.path.exists(stop)
        return True

    until(settled, "a worker to attach to", within_s=30)
    return attached[0] if attached else None


def _round(client: RemoteClient, wanted: Sequence[int], tenant: TenantId) -> Round:
    watch = _Stopwatch()
    hashes = hashes_of(wanted, tenant=tenant)
    with watch("match"):
        match = client.match(wanted, tenant=tenant)
    with watch("load"):
        loaded = client.load(match, deadline_s=LOAD_S)
    pool = client.pool
    wrong = wrong_blocks(pool, loaded.block_ids, hashes) if pool is not None and loaded.block_ids else []
    with watch("release"):
        held = client.release(match, used_tokens=len(loaded.block_ids) * LAYOUT.block_tokens)
    with watch("save"):
        client.save(wanted, tenant=tenant, fill=filler(hashes), wait_s=SAVE_S)
    return Round(
        asked=len(hashes),
        hits=dict(Counter(source.value for source in loaded.sources)) if held else {},
        slowest_s=watch.slowest_s,
        slowest=watch.slowest,
        wrong=f"blocks {wrong} of {loaded}" if held and wrong else "",
        at=time.monotonic(),
    )


class _Stopwatch:
    def __init__(self) -> None:
        self.slowest_s, self.slowest = 0.0, ""

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        took = time.monotonic() - started
        if took > self.slowest_s:
            self.slowest_s, self.slowest = took, what
