"""What do many threads on one pool get done together, compared with one thread alone?

A request matches its prompt, opens a sequence over it, forks it, appends to both (one copies the open block, the
other writes in place), and drops them; the hot prompts are shared by all. The same number of requests is given to
one thread, and to 64 at once; rounds of both alternate, and the ratio is that of their medians.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from _harness import Report, median

from tiered.client.local import LocalClient
from tiered.config import PoolSettings
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.types import TenantId

N_THREADS = 64
REQUESTS = 1_280
"""Of one round, shared among its threads."""

ROUNDS = 9
N_PROMPTS = 8
PROMPT_TOKENS = 1_030
"""64 blocks and an open one."""

TENANT = TenantId("bench")
LAYOUT = KvLayout(n_layers=8, n_kv_heads=2, head_dim=64, dtype="bfloat16")
SCOPE = ModelScope(model="bench", weights_version="0", layout=LAYOUT)
POOL_BLOCKS = N_PROMPTS * (PROMPT_TOKENS // LAYOUT.block_tokens + 1) + 4 * N_THREADS


def prompt(number: int) -> list[int]:
    return [(number % N_PROMPTS * 7_919 + i) % 50_000 for i in range(PROMPT_TOKENS)]


PROMPTS = [prompt(number) for number in range(N_PROMPTS)]


def request(client: LocalClient, number: int) -> None:
    tokens = PROMPTS[number % N_PROMPTS]
    match = client.match(tokens, tenant=TENANT)
    with client.open_sequence(tenant=TENANT, tokens=tokens) as sequence:
        sequence.written()
        with sequence.fork() as twin:
            for branch in (twin, sequence):
                branch.append([number])
                branch.written()
    client.release(match, used_tokens=len(match.block_ids) * LAYOUT.block_tokens)


def requests_per_s(client: LocalClient, n_threads: int) -> float:
    start = threading.Barrier(n_threads + 1)

    def work(first: int) -> None:
        start.wait(30)
        for number in range(first, REQUESTS, n_threads):
            request(client, number)

    with ThreadPoolExecutor(n_threads) as threads:
        running = [threads.submit(work, first) for first in range(n_threads)]
        start.wait(30)
        began = time.perf_counter()
        for done in running:
            done.result()
        return REQUESTS / (time.perf_counter() - began)


def main() -> None:
    report = Report("threads")
    client = LocalClient(SCOPE, PoolSettings(bytes=POOL_BLOCKS * LAYOUT.block_bytes))
    for number in range(N_PROMPTS):
        request(client, number)
    rounds = [(requests_per_s(client, 1), requests_per_s(client, N_THREADS)) for _ in range(ROUNDS)]
    client.close()
    alone = median([one for one, _ in rounds])
    report.add("requests of one thread", alone, "1/s")
    report.add(
        f"requests of {N_THREADS} threads together", median([many for _, many in rounds]), "1/s", baseline=alone
    )
    report.finish()


if __name__ == "__main__":
    main()
