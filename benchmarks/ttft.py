"""How long does the first token of a 2,000-token prompt take when its KV is hot, at a peer, or in Redis?

The demo model and real conversations, on transformers and, where TIERED_VLLM_PYTHON names a Python with vLLM and this
package (``make test-vllm`` makes one), on vLLM; TIERED_VLLM_LMCACHE_PYTHON names one with vLLM and LMCache, to be
measured beside it. ``python benchmarks/ttft.py transformers`` or ``... vllm`` measures one part.

transformers: three workers in processes of their own over the embedded server. Baseline of each row: the same prompts
on the same engine without a cache, each measured right beside its counterpart. Rows of *nothing cached*, and of what
is broken, are prompts that nobody has; their ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from _cluster import evict_to_redis, start_cluster, wait_until
from _harness import Report, median
from _ttft_vllm import measure_vllm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from tiered.cli.api import CoordinatorClient
from tiered.cli.demo.conversations import read_conversations
from tiered.cli.launcher import LocalCluster
from tiered.cli.model import ensure_demo_model
from tiered.client.remote import RemoteClient
from tiered.connectors.transformers import CachedGenerator, Generation, GeneratorOptions, model_scope
from tiered.types import Source, TenantId

TOKENS = 2_000
PROMPTS = 5
PAIRS = 7
"""Of prompts that nobody has."""

TENANT = TenantId("bench")
HOT_BYTES = 512 << 20


PARTS = ("transformers", "vllm")


def main() -> None:
    parts = sys.argv[1:] or PARTS
    transformers_logging.disable_progress_bar()
    path = ensure_demo_model()
    if "transformers" in parts:
        report = Report("ttft")
        on_transformers(report, path)
        report.finish()
    python = os.environ.get("TIERED_VLLM_PYTHON")
    if "vllm" in parts and python:
        report = Report("ttft_vllm")
        lmcache = os.environ.get("TIERED_VLLM_LMCACHE_PYTHON")
        measure_vllm(report, path, real_prompts(path, 2 * PROMPTS), python, lmcache)
        report.finish()


def on_transformers(report: Report, path: Path) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.eval()
    prompts = real_prompts(path, PROMPTS)
    cluster = start_cluster(n_workers=3, hot_bytes=HOT_BYTES)
    try:
        scope = model_scope(model, name=path.name)
        clients = [RemoteClient.attach(str(worker.socket_path), scope) for worker in cluster.workers]
        with CoordinatorClient(cluster.coordinator_url) as api:
            api.create_tenant(TENANT, {})
            measure(report, model, clients, prompts, api)
        broken(report, model, clients[2], cluster)
        for client in clients:
            client.close()
    finally:
        cluster.stop()


def measure(
    report: Report, model: object, clients: list[RemoteClient], prompts: list[list[int]], api: CoordinatorClient
) -> None:
    options = GeneratorOptions()
    uncached = CachedGenerator(model, None, options)
    writer, peer, reader = (CachedGenerator(model, client, options) for client in clients)
    cold: dict[str, list[float]] = {"first": [], "peer": [], "redis": [], "hot": []}
    warm: dict[str, list[float]] = {"first": [], "peer": [], "redis": [], "hot": []}

    def pair(name: str, generator: CachedGenerator, prompt: list[int], source: Source | None) -> None:
        without = answer(uncached, prompt)
        with_cache = answer(generator, prompt)
        assert torch.equal(without.first_logits, with_cache.first_logits), f"{name}: logits differ"
        assert set(with_cache.hit_tokens) == ({source} if source else set()), f"{name}: {with_cache.hit_tokens}"
        cold[name].append(without.ttft_s * 1e3)
        warm[name].append(with_cache.ttft_s * 1e3)

    answer(uncached, prompts[0])  # kernels' first use
    for prompt in prompts:
        pair("first", writer, prompt, None)
        pair("hot", writer, prompt, Source.HOT)
    wait_until(lambda: api.tenant(TENANT).hot.blocks >= PROMPTS * 120 - 4, "the blocks to be announced")
    for prompt in prompts:
        pair("peer", peer, prompt, Source.PEER)
    evict_to_redis(api, TENANT)
    for prompt in prompts:
        pair("redis", reader, prompt, Source.REDIS)

    report.add("time to first token, 2,000 tokens, no cache", median([t for run in cold.values() for t in run]), "ms")
    labels = {"first": "first time, cached nowhere", "hot": "hot", "peer": "from a peer", "redis": "from Redis"}
    for name, label in labels.items():
        report.add(f"time to first token, {label}", median(warm[name]), "ms", baseline=median(cold[name]))


def broken(report: Report, model: object, client: RemoteClient, cluster: LocalCluster) -> None:
    """Prompts that nobody has, while our side is well and while it is not."""
    uncached, cached = (CachedGenerator(model, each, GeneratorOptions()) for each in (None, client))
    seeds = iter(range(1_000_000))
    beside(report, "nothing cached", uncached, cached, seeds)
    worker, server = cluster.workers[2], cluster.services[0]
    os.kill(worker.pid, signal.SIGSTOP)
    beside(report, "worker answers nothing", uncached, cached, seeds)
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: client.attached, "the engine to attach again")
    os.kill(server.pid, signal.SIGKILL)
    beside(report, "Redis stopped", uncached, cached, seeds)
    worker.kill()
    beside(report, "worker killed", uncached, cached, seeds)


def beside(
    report: Report, what: str, uncached: CachedGenerator, cached: CachedGenerator, seeds: Iterator[int]
) -> None:
    """Pairs in turn, each first every second time."""
    times: dict[CachedGenerator, list[float]] = {uncached: [], cached: []}
    for index in range(PAIRS):
        rng = random.Random(next(seeds))
        prompt = [rng.randrange(1_000, 40_000) for _ in range(TOKENS)]
        for generator in (uncached, cached) if index % 2 else (cached, uncached):
            given = answer(generator, prompt)
            assert not given.hit_tokens, f"{what}: {given.hit_tokens}"
            times[generator].append(given.ttft_s * 1e3)
    ratio = median([ours / alone for ours, alone in zip(times[cached], times[uncached], strict=True)])
    alone_ms = median(times[uncached])
    report.add(f"time to first token, {what}", ratio * alone_ms, "ms", baseline=alone_ms)


def answer(generator: CachedGenerator, prompt: list[int]) -> Generation:
    gc.collect()
    return generator.generate(prompt, tenant=TENANT, max_new_tokens=1)


def real_prompts(model: Path, n_prompts: int) -> list[list[int]]:
    """Different conversations back to back, each list of prompts starting with another one, cut to length."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = ["\n".join(message["content"] for message in c.messages) for c in read_conversations()]
    prompts = []
    for index in range(n_prompts):
        turned = texts[index % len(texts) :] + texts[: index % len(texts)]
        text = f"Conversation {index}.\n" + "\n".join(turned)
        prompts.append(list(tokenizer(text)["input_ids"])[:TOKENS])
    return prompts


if __name__ == "__main__":
    main()
