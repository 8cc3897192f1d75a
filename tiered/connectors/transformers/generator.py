"""CachedGenerator: greedy generation with a causal LM whose prompt's KV comes from, and goes to, the cache.

Prefill runs in fixed chunks that start at multiples of ``chunk_tokens``. Floating-point results depend on the shapes
a kernel is given. So with ``Reuse.EXACT`` only whole chunks are reused and stored: every chunk that is computed is then
computed from the same bits in the same shapes as without a cache, and logits agree to the last bit.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from transformers import DynamicCache

from tiered.client.port import CacheClient, Loaded, Saved
from tiered.client.saving import verified_blocks
from tiered.connectors.transformers.kv import blocks_from_cache, cache_argument, cache_from_blocks
from tiered.hashing.chain import Extras
from tiered.types import BlockId, Source, TenantId


class Reuse(enum.Enum):
    """How finely cached KV is reused."""

    EXACT = "exact"
    """Whole prefill chunks: results equal those without a cache bit for bit."""
    BLOCK = "block"
    """Every full block: a little more reuse; results equal up to the rounding of other kernel shapes."""


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """chunk_tokens: a multiple of the layout's block_tokens."""

    chunk_tokens: int = 128
    reuse: Reuse = Reuse.EXACT
    load_deadline_s: float = 5.0
    verify: bool = True
    """Check each block's checksum before its bytes are used: about 0.1 ms a MiB."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer and what it cost.

    tokens: the generated ids. first_logits: (vocab,), of the first generated token; logits_digest: XXH3-128 over the
    logits of all of them. hit_tokens: prompt tokens whose KV was reused, by where it was found; the others were
    computed. ttft_s: from the call to the first token. cache: KV of the prompt and of the answer but its last token.
    """

    tokens: list[int]
    first_logits: torch.Tensor
    logits_digest: str
    cache: DynamicCache = field(repr=False)
    prompt_tokens: int
    ttft_s: float
    total_s: float
    hit_tokens: dict[Source, int] = field(default_factory=dict)
    saved: Saved = field(default_factory=Saved)

    @property
    def missed_tokens(self) -> int:
        return self.prompt_tokens - sum(self.hit_tokens.values())


class CachedGenerator:
    """``client`` may be None: the same engine without a cache. One request at a time."""

    def __init__(self, model: Any, client: CacheClient | None, options: GeneratorOptions | None = None) -> None:
        self._model = model
        self._client = client
        self._options = options or GeneratorOptions()
        self._cache_argument = cache_argument(model)
        if client is not None and self._options.chunk_tokens % client.layout.block_tokens:
            raise ValueError(
                f"chunk_tokens: {self._options.chunk_tokens} is no multiple of the layout's block_tokens, "
                f"{client.layout.block_tokens}"
            )

    @torch.inference_mode()
    def generate(
        self,
        prompt: Sequence[int],
        *,
        tenant: TenantId,
        max_new_tokens: int,
        stop_tokens: frozenset[int] = frozenset(),
        extras: Extras | None = None,
    ) -> Generation:
        """Greedy decoding. ValueError for an empty prompt or one longer than the model's context."""
        self._check(prompt, max_new_tokens)
        started = time.perf_counter()
        cache, hit_tokens = self._reuse(prompt, tenant, extras)
        logits = self._prefill(prompt, cache, start=sum(hit_tokens.values()))
        first_logits = logits
        digest = xxhash.xxh3_128(_bytes_of(logits))
        tokens = [int(logits.argmax())]
        ttft_s = time.perf_counter() - started
        while len(tokens) < max_new_tokens and tokens[-1] not in stop_tokens:
            logits = self._forward(tokens[-1:], cache)
            digest.update(_bytes_of(logits))
            tokens.append(int(logits.argmax()))
        total_s = time.perf_counter() - started
        saved = self._save(prompt, cache, tenant, extras)
        return Generation(
            tokens=tokens,
            first_logits=first_logits,
            logits_digest=digest.hexdigest(),
            cache=cache,
            prompt_tokens=len(prompt),
            ttft_s=ttft_s,
            total_s=total_s,
            hit_tokens=hit_tokens,
            saved=saved,
        )

    def _reuse(
        self, prompt: Sequence[int], tenant: TenantId, extras: Extras | None
    ) -> tuple[DynamicCache, dict[Source, int]]:
        """A cache filled with what could be found, and how many tokens came from where."""
        client = self._client
        if client is None:
            return DynamicCache(), {}
        match = client.match(prompt, tenant=tenant, extras=extras)
        loaded = client.load(match, deadline_s=self._options.load_deadline_s) if match.n_blocks else Loaded()
        n_tokens = self._usable_tokens(loaded, len(prompt))
        cache = DynamicCache()
        if n_tokens:
            pool = client.pool
            assert pool is not None  # blocks were loaded into it a moment ago, on this thread
            n_blocks = -(-n_tokens // client.layout.block_tokens)
            cache = cache_from_blocks(pool, loaded.block_ids[:n_blocks], n_tokens=n_tokens)
        if match.lease is not None and not client.release(match, used_tokens=n_tokens):
            return DynamicCache(), {}  # the pins ended while we copied: any doubt is a miss
        return cache, self._by_source(loaded, n_tokens)

    def _usable_tokens(self, loaded: Loaded, n_prompt: int) -> int:
        """Tokens to take from the cache: verified, on a boundary, and short of the last, which is computed."""
        client, options = self._client, self._options
        if client is None or client.pool is None or not loaded.block_ids:
            return 0
        n_blocks = len(loaded.block_ids)
        if options.verify:
            n_blocks = verified_blocks(client.pool, loaded.block_ids, loaded.checksums)
        n_tokens = min(n_blocks * client.layout.block_tokens, n_prompt - 1)
        return n_tokens - n_tokens % self._grain()

    def _grain(self) -> int:
        return self._options.chunk_tokens if self._options.reuse is Reuse.EXACT else 1

    def _by_source(self, loaded: Loaded, n_tokens: int) -> dict[Source, int]:
        assert self._client is not None
        block_tokens = self._client.layout.block_tokens
        counts: dict[Source, int] = {}
        for start, source in zip(range(0, n_tokens, block_tokens), loaded.sources, strict=False):
            counts[source] = counts.get(source, 0) + min(block_tokens, n_tokens - start)
        return counts

    def _prefill(self, prompt: Sequence[int], cache: DynamicCache, *, start: int) -> torch.Tensor:
        """Compute tokens [start, end) chunk by chunk; returns the last token's logits."""
        step = self._options.chunk_tokens
        logits = None
        while start < len(prompt):
            end = min(len(prompt), start - start % step + step)
            logits = self._forward(prompt[start:end], cache)
            start = end
        assert logits is not None  # at least the last token is always computed
        return logits

    def _forward(self, tokens: Sequence[int], cache: DynamicCache) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self._model.device)
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_argument: cache})
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    def _save(self, prompt: Sequence[int], cache: DynamicCache, tenant: TenantId, extras: Extras | None) -> Saved:
        """Store the prompt's KV; generated tokens' KV was computed in other shapes and stays out."""
        client = self._client
        if client is None:
            return Saved()
        n_tokens = len(prompt) - len(prompt) % max(self._grain(), client.layout.block_tokens)

        def fill(pool: Any, block_ids: Sequence[BlockId], first_index: int) -> None:
            blocks_from_cache(cache, pool, block_ids, first_index)

        return client.save(prompt[:n_tokens], tenant=tenant, fill=fill, extras=extras)

    def _check(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        limit = self._model.config.get_text_config().max_position_embeddings
        if not prompt or max_new_tokens < 1:
            raise ValueError("a prompt of at least one token, and at least one token to generate")
        if len(prompt) + max_new_tokens > limit:
            raise ValueError(f"{len(prompt)} + {max_new_tokens} tokens do not fit the model's context of {limit}")


def _bytes_of(logits: torch.Tensor) -> bytes:
    return logits.cpu().view(torch.uint8).numpy().tobytes()
