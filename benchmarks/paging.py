"""What does paging the KV gain in memory, and what does it cost in speed?

Memory: how many sequences of a bursty two-tenant mix fit at once, and how many bytes are wasted, in blocks of 8 to
128 tokens and in contiguous memory of the maximal length. Lengths and arrivals are synthetic: see _paging_mix.py.

Speed: tokens/s of paged attention as a share of scaled_dot_product_attention over contiguous memory, in the fastest
of the ways tried to call it. One layer of the demo model in bfloat16, on the CPU, as many threads as torch takes. Set
OMP_NUM_THREADS=1 where other work shares the cores, or waiting for one another is all that is measured.

What was tried for decode, in ms of CPU time of one thread, for blocks of 16 / of 128, on the 16 sequences of the mix
(24,700 tokens, four layers, 75 MB; contiguous, one by one: 21 ms). The kernel is bound by arithmetic and hides its
reads; a gather only reads, which is 7 to 11 ms here, and the kernel is 10 to 17 % slower on tokens-first than on
heads-first memory. So 0.9 of contiguous speed is not reached while torch gathers the keys and values.
  - sequences gathered whole, one by one                                            34 / 29
  - kept: at most 1.5 MiB at once, similar lengths together, long ones in parts     30-32 / 25-28
  - at most 0.5 MiB at once; 8 MiB                                                  35; 37 for blocks of 16
  - heads-first gather by (token, head), rows of 128 bytes                          16 / 15 for the gather, was 10 / 7
  - no gather, each block a batch entry of the kernel, merged by log-sum-exp: needs neighbouring block ids, and takes
    2.4 / 1.2 times as long as contiguous memory even then
  - matrix products in bfloat16 instead of the kernel                               27 / 22, with twice the error
  - matrix products, with keys widened to float32 part by part                      31 / 27
  - advanced indexing instead of index_select: 6 times slower; an output buffer kept for the gather: no difference
For prefill the gather is nothing beside the arithmetic. What counted: keys and values copied heads first (5 to 10 %),
and chunks after a prefix cut into pieces of 256 queries, which leave out the keys they cannot see. Not taken: prefix
and chunk apart, merged by log-sum-exp, 10 % faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from _harness import Report, median, timed_ms
from _paging_mix import MAX_TOKENS, hold, make_mix
from torch.nn.functional import scaled_dot_product_attention as sdpa

from tiered.attention import PagedBatch, paged_attention
from tiered.layout import KvLayout

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM = 4, 9, 3, 64
"""Of the demo model, but for its layers: one is like another, and four differ in what the caches hold."""
GROUP = N_HEADS // N_KV_HEADS
BLOCK_TOKENS = (8, 16, 32, 64, 128)
CAPACITIES_MIB = (512, 1024, 2048)
MODEL = KvLayout(n_layers=30, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, dtype="bfloat16")
BATCH, CHUNK, RUNS = 16, 512, 11
PREFILLS = ((CHUNK, 0), (CHUNK, 2_048))
"""Queries, and tokens that stand before them."""


Way = Callable[["Contiguous", torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True)
class Contiguous:
    """Room for every sequence's longest: (N_LAYERS, batch, n_kv_heads, tokens, head_dim)."""

    keys: torch.Tensor
    values: torch.Tensor
    lengths: list[int]


def contiguous(lengths: list[int]) -> Contiguous:
    shape = (N_LAYERS, len(lengths), N_KV_HEADS, max(lengths), HEAD_DIM)
    return Contiguous(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16(), lengths)


def paged(kv: Contiguous, block_tokens: int, *, query_lens: list[int]) -> tuple[torch.Tensor, PagedBatch]:
    """The same keys and values in blocks that lie in random order."""
    counts = [-(-n // block_tokens) for n in kv.lengths]
    pool = torch.empty(sum(counts), N_LAYERS, 2, block_tokens, N_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    free = torch.randperm(len(pool)).tolist()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int64)
    for row, (n_tokens, count) in enumerate(zip(kv.lengths, counts, strict=True)):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
        for plane, source in enumerate((kv.keys, kv.values)):
            tokens = torch.zeros(N_LAYERS, count * block_tokens, N_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
            tokens[:, :n_tokens] = source[:, row, :, :n_tokens].transpose(1, 2)
            blocks = tokens.view(N_LAYERS, count, block_tokens, N_KV_HEADS, HEAD_DIM).transpose(0, 1)
            pool[table[row, :count], :, plane] = blocks
    return pool, PagedBatch(table, torch.tensor(kv.lengths), torch.tensor(query_lens))


def decode_each(kv: Contiguous, queries: torch.Tensor) -> list[torch.Tensor]:
    """Heads that share a key head stand as queries of one call: six times as fast as enable_gqa."""
    folded = queries.view(len(queries), 1, N_KV_HEADS, GROUP, HEAD_DIM)
    return [
        sdpa(folded[row], kv.keys[layer, row : row + 1, :, :n], kv.values[layer, row : row + 1, :, :n])
        for layer in range(N_LAYERS)
        for row, n in enumerate(kv.lengths)
    ]


def decode_together(kv: Contiguous, queries: torch.Tensor) -> list[torch.Tensor]:
    folded = queries.view(len(queries), N_KV_HEADS, GROUP, HEAD_DIM)
    mask = (torch.arange(max(kv.lengths)) < torch.tensor(kv.lengths)[:, None])[:, None, None]
    return [sdpa(folded, kv.keys[layer], kv.values[layer], attn_mask=mask) for layer in range(N_LAYERS)]


def prefill(kv: Contiguous, queries: torch.Tensor) -> list[torch.Tensor]:
    n_queries, n_tokens = len(queries), kv.lengths[0]
    heads_first = queries.transpose(0, 1)[None]
    mask = None
    if n_queries < n_tokens:
        mask = torch.arange(n_tokens) <= torch.arange(n_tokens - n_queries, n_tokens)[:, None]
    return [
        sdpa(heads_first, kv.keys[i], kv.values[i], attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        for i in range(N_LAYERS)
    ]


def through_layers(queries: torch.Tensor, pool: torch.Tensor, batch: PagedBatch) -> list[torch.Tensor]:
    """One layer after the other. The batch's plan, made once a step, is measured apart: the model has 30 layers."""
    return [paged_attention(queries, pool, layer, batch) for layer in range(N_LAYERS)]


def plan(batch: PagedBatch) -> None:
    fresh = PagedBatch(batch.block_table, batch.seq_lens, batch.query_lens)
    fresh.host_plan(block_tokens=16, token_bytes=MODEL.token_bytes // MODEL.n_layers)


def medians_ms(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """In turns, so that whatever else the machine does falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for run in range(RUNS + 3):
        for name, action in actions.items():
            took = timed_ms(action)
            if run >= 3:
                times[name].append(took)
    return {name: median(taken) for name, taken in times.items()}


def compare(report: Report, label: str, kv: Contiguous, query_lens: list[int], baselines: dict[str, Way]) -> None:
    """Tokens a second through one layer, of the fastest contiguous way and of each block size."""
    queries = torch.randn(sum(query_lens), N_HEADS, HEAD_DIM).bfloat16()
    actions: dict[str, Callable[[], object]] = {
        name: (lambda run=run: run(kv, queries)) for name, run in baselines.items()
    }
    for block_tokens in BLOCK_TOKENS:
        pool, batch = paged(kv, block_tokens, query_lens=query_lens)
        actions[str(block_tokens)] = lambda pool=pool, batch=batch: through_layers(queries, pool, batch)
    took_ms = medians_ms(actions)

    def rate(name: str) -> float:
        return len(queries) * N_LAYERS / took_ms[name] * 1e3

    best = max(baselines, key=rate)
    for name in baselines:
        report.add(f"{label}, contiguous, {name}", rate(name), "tokens/s of a layer")
    for block_tokens in BLOCK_TOKENS:
        metric = f"{label}, paged, blocks of {block_tokens}"
        report.add(metric, rate(str(block_tokens)), "tokens/s of a layer", baseline=rate(best))


def memory(report: Report) -> None:
    requests = make_mix(600, seed=1)
    for capacity_mib in CAPACITIES_MIB:
        capacity_tokens = (capacity_mib << 20) // MODEL.token_bytes
        whole = hold(requests, capacity_tokens=capacity_tokens, unit_tokens=MAX_TOKENS)
        label = f"{capacity_mib} MiB"
        report.add(f"{label}, contiguous, sequences at once", whole.sequences, "sequences")
        report.add(f"{label}, contiguous, wasted", whole.wasted_tokens * MODEL.token_bytes / 2**20, "MiB")
        for block_tokens in BLOCK_TOKENS:
            held = hold(requests, capacity_tokens=capacity_tokens, unit_tokens=block_tokens)
            name = f"{label}, blocks of {block_tokens}"
            report.add(f"{name}, sequences at once", held.sequences, "sequences", baseline=whole.sequences)
            wasted_mib = held.wasted_tokens * MODEL.token_bytes / 2**20
            report.add(f"{name}, wasted", wasted_mib, "MiB", baseline=whole.wasted_tokens * MODEL.token_bytes / 2**20)


def main() -> None:
    torch.manual_seed(0)
    report = Report("paging")
    memory(report)
    lengths = [request.prompt_tokens for request in make_mix(8 * BATCH, seed=2)]
    batches = {"of the mix": lengths[:BATCH], "up to 1,024 tokens": [n for n in lengths if n <= 1_024][:BATCH]}
    with torch.inference_mode():
        both = {"one by one": decode_each, "padded": decode_together}
        for name, chosen in batches.items():
            kv = contiguous(chosen)
            compare(report, f"decode of {BATCH} {name}", kv, [1] * BATCH, both)
            _, batch = paged(kv, 16, query_lens=[1] * BATCH)
            plan_ms = medians_ms({"plan": lambda batch=batch: plan(batch)})["plan"]
            report.add(f"decode of {BATCH} {name}, plan of a step, blocks of 16", plan_ms, "ms")
        for n_queries, n_before in PREFILLS:
            kv = contiguous([n_before + n_queries])
            label = f"prefill of {n_queries} after {n_before}"
            compare(report, label, kv, [n_queries], {"one call": prefill})
    report.finish()


if __name__ == "__main__":
    main()
