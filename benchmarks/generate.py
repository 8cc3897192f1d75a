"""What does ``generate`` cost over a tiered cache, beside transformers' own DynamicCache?

The demo model in bfloat16 on the CPU, one sequence after prompts of several lengths, and a batch of unequal ones.
Each row is measured in turns with its baseline, DynamicCache: tokens/s of decoding, with attention from the blocks
(paged) and with the model's own over gathered tensors (model); then the time to the first token, with nothing cached
and with the prompt cached, lookup, checksums and copies included.

Set OMP_NUM_THREADS=1 where other work shares the cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from _harness import Report, median
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from tiered.cli.model import ensure_demo_model
from tiered.client.local import LocalClient
from tiered.config import PoolSettings
from tiered.connectors.transformers import model_scope, tiered_cache
from tiered.connectors.transformers.kv import cache_argument

LENGTHS = (256, 1_000)
BATCH = (100, 200, 300)
NEW, RUNS = 16, 3
POOL_BYTES = 512 << 20


def prompts(lengths: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    """Random tokens, padded on the left."""
    longest = max(lengths)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(100, 40_000, (len(lengths), longest), generator=generator)
    mask = (torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def run(model: Any, inputs: dict[str, torch.Tensor], make: Callable[[], Any]) -> tuple[float, float]:
    """Seconds to the first token and tokens/s after it, making the cache included."""
    began = time.perf_counter()
    cache = make()
    argument = {cache_argument(model): cache}
    ids = model.generate(**inputs, max_new_tokens=1, do_sample=False, **argument)
    first = time.perf_counter()
    grown = ids.shape[1] - inputs["attention_mask"].shape[1]
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, grown), value=1)
    model.generate(ids, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **argument)
    return first - began, len(ids) * NEW / (time.perf_counter() - first)


def in_turns(
    model: Any, inputs: Callable[[int], dict[str, torch.Tensor]], makes: dict[str, Callable[[Any], Any]]
) -> dict[str, tuple[float, float]]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in makes}
    for index in range(RUNS + 1):
        given = inputs(index)
        for name, make in makes.items():
            found = run(model, given, lambda make=make, given=given: make(given))
            if index:
                taken[name].append(found)
    return {name: (median([a for a, _ in runs]), median([b for _, b in runs])) for name, runs in taken.items()}


def compare(report: Report, model: Any, client: LocalClient, label: str, lengths: tuple[int, ...]) -> None:
    cached = prompts(lengths, 0)
    with tiered_cache(client, model, cached) as cache, torch.no_grad():
        model.generate(**cached, max_new_tokens=1, **{cache_argument(model): cache})
    found = in_turns(
        model,
        lambda index: prompts(lengths, 1 + index),
        {
            "DynamicCache": lambda _: DynamicCache(config=model.config),
            "paged": lambda given: tiered_cache(client, model, given),
            "model": lambda given: tiered_cache(client, model, given, attention="model"),
        },
    )
    warm = in_turns(model, lambda _: cached, {"paged": lambda given: tiered_cache(client, model, given)})
    base_first, base_rate = found["DynamicCache"]
    for name in ("paged", "model"):
        report.add(f"{label}, decode, {name}", found[name][1], "tokens/s", baseline=base_rate)
    report.add(f"{label}, first token, nothing cached", found["paged"][0] * 1e3, "ms", baseline=base_first * 1e3)
    report.add(f"{label}, first token, cached", warm["paged"][0] * 1e3, "ms", baseline=base_first * 1e3)


def main() -> None:
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    path = ensure_demo_model()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    scope = model_scope(model, name=path.name)
    client = LocalClient(scope, PoolSettings.model_validate({"bytes": POOL_BYTES}))
    report = Report("generate")
    try:
        for length in LENGTHS:
            compare(report, model, client, f"{length:,} tokens", (length,))
        compare(report, model, client, f"{len(BATCH)} rows of {BATCH[0]} to {BATCH[-1]} tokens", BATCH)
    finally:
        client.close()
    report.finish()


if __name__ == "__main__":
    main()
