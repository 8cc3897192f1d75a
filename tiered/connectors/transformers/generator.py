"""CachedGenerator: greedy generation with a causal LM whose prompt's KV comes from, and goes to, the cache.

Prefill runs in fixed chunks that start at multiples of ``chunk_tokens``. Floating-point results depend on the shapes
a kernel is given. So with ``Reuse.EXACT`` only whole chunks are reused and stored, and only by engines with chunks of
the same size: every chunk that is computed is then computed from the same bits in the same shapes as without a cache,
and logits agree to the last bit.

With ``storage="paged"`` reused blocks are not copied out: attention reads them in the pool until the answer is done.
Its kernels see other shapes, so that goes with ``Reuse.BLOCK``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import xxhash
from transformers import DynamicCache

from tiered.client.port import CacheClient, Loaded, Saved
from tiered.client.saving import verified_blocks
from tiered.connectors.transformers.kv import blocks_from_cache, cache_argument, cache_from_blocks
from tiered.connectors.transformers.options import GeneratorOptions, Reuse
from tiered.connectors.transformers.paged import PagedCache, paged_attention_of
from tiered.connectors.transformers.pins import Pins, PinsEnded
from tiered.connectors.transformers.scope import layer_windows
from tiered.connectors.transformers.steering import Abandoned, Steering, Told
from tiered.errors import BlockNotResident
from tiered.hashing.chain import Extras
from tiered.pool.pool import BlockPool
from tiered.types import NO_HINTS, BlockId, Hints, Source, TenantId


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer and what it cost.

    tokens: the generated ids. first_logits: (vocab,), of the first generated token; logits_digest: XXH3-128 over the
    logits of all of them. hit_tokens: prompt tokens whose KV was reused, by where it was found; the others were
    computed. ttft_s: from the call to the first token. cache: KV of the prompt and of the answer but its last token;
    None with paged storage, because its blocks have been given back. Of a kept answer its end may be missing.
    """

    tokens: list[int]
    first_logits: torch.Tensor
    logits_digest: str
    cache: DynamicCache | None = field(repr=False)
    prompt_tokens: int
    ttft_s: float
    total_s: float
    hit_tokens: dict[Source, int] = field(default_factory=dict)
    saved: Saved = field(default_factory=Saved)

    @property
    def missed_tokens(self) -> int:
        return self.prompt_tokens - sum(self.hit_tokens.values())


@dataclass(frozen=True, slots=True)
class _Ask:
    """What the cache is asked for, in one request's lookup and save."""

    tokens: Sequence[int]
    tenant: TenantId
    extras: Extras | None
    hints: Hints


@dataclass(frozen=True, slots=True)
class _Start:
    """What the computation starts from. pins: of blocks that the cache reads in place."""

    cache: DynamicCache | PagedCache
    hit_tokens: dict[Source, int] = field(default_factory=dict)
    pins: Pins | None = None

    @property
    def n_tokens(self) -> int:
        return sum(self.hit_tokens.values())


@dataclass(frozen=True, slots=True)
class _Answer:
    first_logits: torch.Tensor
    logits_digest: str
    prefill_s: float


class CachedGenerator:
    """``client`` may be None: the same engine without a cache. One request at a time, also of one model."""

    def __init__(self, model: Any, client: CacheClient | None, options: GeneratorOptions | None = None) -> None:
        self._model = model
        self._client = client
        self._options = options or GeneratorOptions()
        self._cache_argument = cache_argument(model)
        if self._paged and any(layer_windows(model)):
            raise ValueError("storage: paged attention sees all tokens, this model's a window; set it to copy")
        if client is not None:
            self._options.check(client.scope, block_tokens=client.layout.block_tokens)

    @torch.inference_mode()
    def generate(
        self,
        prompt: Sequence[int],
        *,
        tenant: TenantId,
        max_new_tokens: int,
        stop_tokens: frozenset[int] = frozenset(),
        extras: Extras | None = None,
        hints: Hints = NO_HINTS,
        steering: Steering | None = None,
        keep_answer: bool = False,
    ) -> Generation:
        """Greedy decoding, unless ``steering`` chooses. keep_answer: store the answer's KV too, for who goes on.

        Errors: ValueError for an empty prompt or one longer than the model's context; Abandoned.
        """
        self._check(prompt, max_new_tokens)
        if keep_answer and self._paged:
            raise ValueError("keep_answer: paged storage keeps the prompt alone; set storage to copy")
        told = Told(steering or Steering(), is_heard=steering is not None)
        if self._client is not None:
            extras = self._options.extras(extras, self._client.scope)
        ask = _Ask(prompt, tenant, extras, hints)
        started = time.perf_counter()
        capacity = len(prompt) + max_new_tokens
        with paged_attention_of(self._model) if self._paged else nullcontext():
            start = self._reuse(ask, capacity)
            try:
                answer = self._answer(prompt, start, max_new_tokens, stop_tokens, told)
            except PinsEnded:  # any doubt is a miss
                if not told.is_heard:
                    told = Told(told.steering, is_heard=False)
                start = _Start(self._empty_cache(capacity))
                answer = self._answer(prompt, start, max_new_tokens, stop_tokens, told)
        total_s = time.perf_counter() - started
        if self._client is not None:
            self._client.note_prefill(n_tokens=len(prompt) - start.n_tokens, took_s=answer.prefill_s)
        keep_answer = keep_answer and told.steering.wanted()
        kept = self._recomputed(prompt, told.tokens, start) if keep_answer else prompt
        saved = self._save(ask, kept, start.cache, len(told.tokens))
        return Generation(
            tokens=told.tokens,
            first_logits=answer.first_logits,
            logits_digest=answer.logits_digest,
            cache=None if isinstance(start.cache, PagedCache) else start.cache,
            prompt_tokens=len(prompt),
            ttft_s=told.first_at - started,
            total_s=total_s,
            hit_tokens=start.hit_tokens,
            saved=saved,
        )

    def _answer(
        self,
        prompt: Sequence[int],
        start: _Start,
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        told: Told,
    ) -> _Answer:
        """Compute the answer, from the prompt on, and tell of what was not told before.

        Errors: PinsEnded when blocks may have been overwritten while they were read in place.
        """
        began = time.perf_counter()
        tokens = told.tokens
        try:
            logits = self._prefill(prompt, start, told.steering.wanted)
            first_logits = logits
            digest = xxhash.xxh3_128(_bytes_of(logits))  # which waits for the device
            prefill_s = time.perf_counter() - began
            for index in range(max_new_tokens):
                if index:
                    logits = self._forward(tokens[index - 1 : index], start)
                    digest.update(_bytes_of(logits))
                if index == len(tokens):
                    if told.is_heard and start.pins is not None:
                        start.pins.vouch()
                    told.add(logits, start.hit_tokens)
                if index == len(tokens) - 1 and (not told.goes_on or tokens[index] in stop_tokens):
                    break
            if start.pins is not None:
                start.pins.give_back(used_tokens=start.n_tokens)
        finally:
            if start.pins is not None:
                start.pins.abandon()
        return _Answer(first_logits, digest.hexdigest(), prefill_s)

    @property
    def _paged(self) -> bool:
        return self._client is not None and self._options.storage == "paged"

    def _empty_cache(self, capacity: int) -> DynamicCache | PagedCache:
        return self._paged_cache(capacity) if self._paged else DynamicCache()

    def _paged_cache(self, capacity: int, prefix: tuple[BlockPool, Sequence[BlockId]] | None = None) -> PagedCache:
        assert self._client is not None
        device = self._model.device
        return PagedCache(self._client.layout, capacity_tokens=capacity, device=device, prefix=prefix)

    def _reuse(self, ask: _Ask, capacity: int) -> _Start:
        """A cache with what could be found, and how many tokens came from where."""
        client = self._client
        if client is None:
            return _Start(DynamicCache())
        match = client.match(ask.tokens, tenant=ask.tenant, extras=ask.extras, hints=ask.hints)
        pins = Pins(client, match, hold_s=self._options.pin_s)
        try:
            loaded = client.load(match, deadline_s=self._options.load_deadline_s) if match.n_blocks else Loaded()
            pool = client.pool  # asked for once: what follows reads the memory that the blocks were loaded into
            n_tokens = self._usable_tokens(pool, loaded, len(ask.tokens))
            hit_tokens = self._by_source(loaded, n_tokens)
            cache = self._empty_cache(capacity)
            if n_tokens and pool is not None:
                block_ids = loaded.block_ids[: -(-n_tokens // client.layout.block_tokens)]
                if self._paged:
                    return _Start(self._paged_cache(capacity, (pool, block_ids)), hit_tokens, pins)
                cache = cache_from_blocks(pool, block_ids, n_tokens=n_tokens)
            pins.give_back(used_tokens=n_tokens)
        except PinsEnded:  # while we copied: any doubt is a miss
            return _Start(self._empty_cache(capacity))
        except BaseException:
            pins.abandon()
            raise
        return _Start(cache, hit_tokens)

    def _usable_tokens(self, pool: BlockPool | None, loaded: Loaded, n_prompt: int) -> int:
        """Tokens to take from the cache: verified, on a boundary, and short of the last, which is computed."""
        if pool is None or not loaded.block_ids:
            return 0
        n_blocks = len(loaded.block_ids)
        if self._options.verify:
            n_blocks = verified_blocks(pool, loaded.block_ids, loaded.checksums)
        n_tokens = min(n_blocks * pool.layout.block_tokens, n_prompt - 1)
        return n_tokens - n_tokens % self._grain()

    def _grain(self) -> int:
        """Reused tokens are a multiple of this: the part of a block that is computed needs a block of its own."""
        if self._client is not None and self._paged:
            return self._client.layout.block_tokens
        return self._options.chunk_tokens if self._options.reuse is Reuse.EXACT else 1

    def _by_source(self, loaded: Loaded, n_tokens: int) -> dict[Source, int]:
        assert self._client is not None
        block_tokens = self._client.layout.block_tokens
        counts: dict[Source, int] = {}
        for start, source in zip(range(0, n_tokens, block_tokens), loaded.sources, strict=False):
            counts[source] = counts.get(source, 0) + min(block_tokens, n_tokens - start)
        return counts

    def _prefill(self, prompt: Sequence[int], start: _Start, wanted: Callable[[], bool]) -> torch.Tensor:
        """Compute the tokens after those reused, chunk by chunk; returns the last token's logits."""
        step = self._options.chunk_tokens
        first = start.n_tokens
        logits = None
        while first < len(prompt):
            if not wanted():
                raise Abandoned
            end = min(len(prompt), first - first % step + step)
            logits = self._forward(prompt[first:end], start)
            first = end
        assert logits is not None  # at least the last token is always computed
        return logits

    def _forward(self, tokens: Sequence[int], start: _Start) -> torch.Tensor:
        if start.pins is not None and start.pins.due and isinstance(start.cache, PagedCache):
            start.cache.own_prefix()
            start.pins.give_back(used_tokens=start.n_tokens)
        ids = torch.tensor([tokens], device=self._model.device)
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_argument: start.cache})
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    def _recomputed(self, prompt: Sequence[int], answer: Sequence[int], start: _Start) -> Sequence[int]:
        """Prompt and answer as far as their KV is, or now is made, fit to be stored.

        An answer's KV was computed token by token. Where bits count, its whole chunks are computed again, in the
        shapes in which a prompt that goes on after it would be.
        """
        computed = [*prompt, *answer[:-1]]  # nothing was computed from the last token
        step = self._options.chunk_tokens
        first, end = len(prompt) - len(prompt) % step, len(computed) - len(computed) % step
        if self._client is None or self._options.reuse is not Reuse.EXACT:
            return computed
        if end > first and isinstance(start.cache, DynamicCache):
            start.cache.crop(first - len(computed))
            for begin in range(first, end, step):
                self._forward(computed[begin : begin + step], start)
        return computed[: max(first, end)]

    def _save(self, ask: _Ask, tokens: Sequence[int], cache: DynamicCache | PagedCache, output_tokens: int) -> Saved:
        """Store the KV of these tokens, the prompt's or those and the answer's, as far as it can be reused."""
        client = self._client
        if client is None:
            return Saved()
        n_tokens = len(tokens) - len(tokens) % max(self._grain(), client.layout.block_tokens)
        hints = msgspec.structs.replace(ask.hints, output_tokens=output_tokens)

        def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            if isinstance(cache, PagedCache):
                cache.fill(pool, block_ids, first_index)
            else:
                blocks_from_cache(cache, pool, block_ids, first_index)

        try:
            return client.save(tokens[:n_tokens], tenant=ask.tenant, fill=fill, extras=ask.extras, hints=hints)
        except BlockNotResident:
            return Saved(reason="the prefix left meanwhile")

    def _check(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        limit = self._model.config.get_text_config().max_position_embeddings
        if not prompt or max_new_tokens < 1:
            raise ValueError("a prompt of at least one token, and at least one token to generate")
        if len(prompt) + max_new_tokens > limit:
            raise ValueError(f"{len(prompt)} + {max_new_tokens} tokens do not fit the model's context of {limit}")


def _bytes_of(logits: torch.Tensor) -> bytes:
    return logits.cpu().view(torch.uint8).numpy().tobytes()
