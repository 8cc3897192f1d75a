"""How long does the first token of a 2,000-token prompt take when its KV is hot, at a peer, or in Redis?

The demo model, real conversations, three workers in processes of their own over the embedded server. Baseline of each
row: the same prompts on the same engine without a cache, each measured right beside its warm counterpart.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
from _cluster import evict_to_redis, start_cluster, wait_until
from _harness import Report, median
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from tiered.cli.api import CoordinatorClient
from tiered.cli.demo.conversations import read_conversations
from tiered.cli.model import ensure_demo_model
from tiered.client.remote import RemoteClient
from tiered.connectors.transformers import CachedGenerator, Generation, GeneratorOptions, model_scope
from tiered.types import Source, TenantId

TOKENS = 2_000
PROMPTS = 5
TENANT = TenantId("bench")
HOT_BYTES = 512 << 20


def main() -> None:
    transformers_logging.disable_progress_bar()
    path = ensure_demo_model()
    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.eval()
    prompts = real_prompts(path)
    cluster = start_cluster(n_workers=3, hot_bytes=HOT_BYTES)
    try:
        scope = model_scope(model, name=path.name)
        clients = [RemoteClient.attach(str(worker.socket_path), scope) for worker in cluster.workers]
        with CoordinatorClient(cluster.coordinator_url) as api:
            api.create_tenant(TENANT, {})
            measure(model, clients, prompts, api)
        for client in clients:
            client.close()
    finally:
        cluster.stop()


def measure(model: object, clients: list[RemoteClient], prompts: list[list[int]], api: CoordinatorClient) -> None:
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

    report = Report("ttft")
    report.add("time to first token, 2,000 tokens, no cache", median([t for run in cold.values() for t in run]), "ms")
    labels = {"first": "first time, cached nowhere", "hot": "hot", "peer": "from a peer", "redis": "from Redis"}
    for name, label in labels.items():
        report.add(f"time to first token, {label}", median(warm[name]), "ms", baseline=median(cold[name]))
    report.finish()


def answer(generator: CachedGenerator, prompt: list[int]) -> Generation:
    gc.collect()
    return generator.generate(prompt, tenant=TENANT, max_new_tokens=1)


def real_prompts(model: Path) -> list[list[int]]:
    """Different conversations back to back, each list of prompts starting with another one, cut to length."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = ["\n".join(message["content"] for message in c.messages) for c in read_conversations()]
    prompts = []
    for index in range(PROMPTS):
        text = f"Conversation {index}.\n" + "\n".join(texts[index:] + texts[:index])
        prompts.append(list(tokenizer(text)["input_ids"])[:TOKENS])
    return prompts


if __name__ == "__main__":
    main()
