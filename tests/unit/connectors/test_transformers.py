"""The transformers connector on a tiny model: whatever the cache does, the answer is the one without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tiered.client.local import LocalClient
from tiered.client.port import Fill, Loaded, Match, Saved
from tiered.config import PoolSettings
from tiered.connectors.transformers import CachedGenerator, Generation, GeneratorOptions, Reuse, model_scope
from tiered.hashing.chain import Extras
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import NO_HINTS, Hints, Source, TenantId

TENANT = TenantId("acme")
CHUNK, BLOCK = 32, 8
OPTIONS = GeneratorOptions(chunk_tokens=CHUNK)
SHAPE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def make_model(dtype: torch.dtype, *, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).to(dtype).eval()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The model is so small that sharing its work between threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    return make_model(request.param)


@pytest.fixture
def client(model: LlamaForCausalLM) -> Iterator[LocalClient]:
    with closing(make_client(model)) as made:
        yield made


def make_client(model: LlamaForCausalLM, *, n_blocks: int = 64, **settings: object) -> LocalClient:
    scope = model_scope(model, block_tokens=BLOCK)
    pool = {"bytes": n_blocks * scope.layout.block_bytes, "free_target": 0.0}
    return LocalClient(scope, PoolSettings.model_validate(pool | settings))


def tokens(seed: int, n: int) -> list[int]:
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def answer(
    model: LlamaForCausalLM, client: object, prompt: Sequence[int], options: GeneratorOptions = OPTIONS
) -> Generation:
    generator = CachedGenerator(model, client, options)  # type: ignore[arg-type]
    return generator.generate(prompt, tenant=TENANT, max_new_tokens=6)


def assert_same(got: Generation, expected: Generation) -> None:
    assert torch.equal(got.first_logits, expected.first_logits)
    assert (got.tokens, got.logits_digest) == (expected.tokens, expected.logits_digest)


def test_a_prompt_seen_before_is_answered_from_the_cache_bit_for_bit(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    prompt = tokens(1, 3 * CHUNK + 5)
    expected = answer(model, None, prompt)
    first = answer(model, client, prompt)
    again = answer(model, client, prompt)
    assert_same(first, expected)
    assert_same(again, expected)
    assert first.hit_tokens == {}
    assert first.saved.n_stored == 3 * CHUNK // BLOCK
    assert again.hit_tokens == {Source.HOT: 3 * CHUNK}
    assert again.missed_tokens == 5


@pytest.mark.parametrize("n_tokens", [CHUNK, 2 * CHUNK, 2 * CHUNK + 1])
def test_the_last_token_is_always_computed(model: LlamaForCausalLM, client: LocalClient, n_tokens: int) -> None:
    prompt = tokens(2, n_tokens)
    expected = answer(model, None, prompt)
    answer(model, client, prompt)
    again = answer(model, client, prompt)
    assert_same(again, expected)
    assert sum(again.hit_tokens.values()) == (n_tokens - 1) // CHUNK * CHUNK


@pytest.mark.parametrize("n_tokens", [1, BLOCK, CHUNK - 1])
def test_a_prompt_shorter_than_a_chunk_is_computed_and_not_kept(
    model: LlamaForCausalLM, client: LocalClient, n_tokens: int
) -> None:
    prompt = tokens(3, n_tokens)
    for _ in range(2):
        got = answer(model, client, prompt)
        assert_same(got, answer(model, None, prompt))
        assert (got.hit_tokens, got.saved.n_stored) == ({}, 0)


def test_prompts_that_share_a_beginning_reuse_it_and_answer_as_without_a_cache(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    stem = tokens(4, 2 * CHUNK)
    answer(model, client, stem + tokens(5, CHUNK + 3))
    for seed in (6, 7):
        prompt = stem + tokens(seed, CHUNK + 9)
        expected = answer(model, None, prompt)
        got = answer(model, client, prompt)
        assert_same(got, expected)
        assert got.hit_tokens == {Source.HOT: 2 * CHUNK}
        assert got.saved.first_index == 2 * CHUNK // BLOCK
    # A fork in the middle of a chunk shares only the chunks before it.
    prompt = stem[: CHUNK + 10] + tokens(8, CHUNK)
    expected = answer(model, None, prompt)
    got = answer(model, client, prompt)
    assert_same(got, expected)
    assert got.hit_tokens == {Source.HOT: CHUNK}


def test_every_full_block_is_reused_where_bits_do_not_count(model: LlamaForCausalLM, client: LocalClient) -> None:
    options = GeneratorOptions(chunk_tokens=CHUNK, reuse=Reuse.BLOCK)
    prompt = tokens(9, CHUNK + 2 * BLOCK + 3)
    expected = answer(model, None, prompt)
    answer(model, client, prompt, options)
    got = answer(model, client, prompt, options)
    assert got.hit_tokens == {Source.HOT: CHUNK + 2 * BLOCK}
    tolerance = 1e-4 if model.dtype is torch.float32 else 5e-2
    assert torch.allclose(got.first_logits.float(), expected.first_logits.float(), atol=tolerance, rtol=tolerance)


def test_chunks_of_another_size_are_not_taken_where_bits_count(model: LlamaForCausalLM, client: LocalClient) -> None:
    """Their KV was computed in other shapes, so its last bits may differ."""
    prompt = tokens(10, 4 * CHUNK + 1)
    answer(model, client, prompt, GeneratorOptions(chunk_tokens=CHUNK // 2))
    answer(model, client, prompt, GeneratorOptions(chunk_tokens=CHUNK, reuse=Reuse.BLOCK))
    expected = answer(model, None, prompt)
    got = answer(model, client, prompt)
    assert got.hit_tokens == {}
    assert_same(got, expected)
    assert answer(model, client, prompt).hit_tokens == {Source.HOT: 4 * CHUNK}


def test_a_scope_of_the_options_names_the_blocks_by_their_tokens_alone(model: LlamaForCausalLM) -> None:
    prompt = tokens(10, 2 * CHUNK + 1)
    scope = OPTIONS.scope(model_scope(model, block_tokens=BLOCK))
    with closing(LocalClient(scope, PoolSettings(bytes=64 * scope.layout.block_bytes))) as client:
        answer(model, client, prompt)
        assert client.match(prompt, tenant=TENANT).n_blocks == 2 * CHUNK // BLOCK
        assert answer(model, client, prompt).hit_tokens == {Source.HOT: 2 * CHUNK}
        for other in (GeneratorOptions(chunk_tokens=2 * CHUNK), GeneratorOptions(CHUNK, Reuse.BLOCK)):
            with pytest.raises(ValueError, match=f"reuse: .*exactly chunks of {CHUNK}; attach another"):
                CachedGenerator(model, client, other)
    plain = model_scope(model, block_tokens=BLOCK)
    assert GeneratorOptions(CHUNK, Reuse.BLOCK).scope(plain) == plain


def test_a_corrupted_byte_is_noticed_and_computed_anew(model: LlamaForCausalLM, client: LocalClient) -> None:
    prompt = tokens(11, 3 * CHUNK + 1)
    expected = answer(model, None, prompt)
    answer(model, client, prompt)
    fifth = CHUNK // BLOCK  # the first block of the second chunk
    client.pool.host_view(client.match(prompt, tenant=TENANT, extras=_salted()).block_ids[fifth])[17] ^= 1
    got = answer(model, client, prompt)
    assert_same(got, expected)
    assert got.hit_tokens == {Source.HOT: CHUNK}


def _salted() -> Extras:
    """As the generator identifies its blocks."""
    return Extras(salt=f"\0chunks of {CHUNK}")


class Unreliable:
    """A client whose calls a test may bend."""

    def __init__(self, client: LocalClient) -> None:
        self.inner = client
        self.before_load: Callable[[Match], None] = lambda match: None
        self.before_release: Callable[[Match], None] = lambda match: None
        self.gone = False
        self.reports: list[tuple[int, float]] = []

    @property
    def scope(self) -> ModelScope:
        return self.inner.scope

    @property
    def layout(self) -> KvLayout:
        return self.inner.layout

    @property
    def pool(self) -> BlockPool | None:
        return None if self.gone else self.inner.pool

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        return self.inner.match(tokens, tenant=tenant, extras=extras, hints=hints)

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        self.before_load(match)
        return Loaded() if self.gone else self.inner.load(match, deadline_s=deadline_s)

    def release(self, match: Match, *, used_tokens: int) -> bool:
        self.before_release(match)
        return not self.gone and self.inner.release(match, used_tokens=used_tokens)

    def save(
        self,
        tokens: Sequence[int],
        *,
        tenant: TenantId,
        fill: Fill,
        extras: Extras | None = None,
        wait_s: float = 0.25,
        hints: Hints = NO_HINTS,
    ) -> Saved:
        if self.gone:
            return Saved(reason="unavailable")
        return self.inner.save(tokens, tenant=tenant, fill=fill, extras=extras, wait_s=wait_s, hints=hints)

    def note_prefill(self, *, n_tokens: int, took_s: float) -> None:
        self.reports.append((n_tokens, took_s))
        self.inner.note_prefill(n_tokens=n_tokens, took_s=took_s)

    def close_session(self, session: str, *, tenant: TenantId) -> None:
        self.inner.close_session(session, tenant=tenant)

    def close(self) -> None: ...


def test_it_reports_how_long_it_computed_and_of_a_prompt_that_was_cached_only_the_rest(
    model: LlamaForCausalLM,
) -> None:
    prompt = tokens(14, 3 * CHUNK + 1)
    with closing(make_client(model, n_blocks=64)) as client:
        watched = Unreliable(client)
        first, second = answer(model, watched, prompt), answer(model, watched, prompt)
    assert [n_tokens for n_tokens, _ in watched.reports] == [3 * CHUNK + 1, 1]
    for generation, (_, took_s) in zip((first, second), watched.reports, strict=True):
        assert 0 < took_s < generation.ttft_s


def test_blocks_overwritten_after_their_pins_ended_are_not_used(model: LlamaForCausalLM) -> None:
    prompt, other = tokens(12, 3 * CHUNK + 1), tokens(13, 3 * CHUNK + 1)
    n_blocks = 3 * CHUNK // BLOCK
    expected = answer(model, None, prompt)
    with closing(make_client(model, n_blocks=n_blocks)) as client:
        answer(model, client, prompt)
        unreliable = Unreliable(client)

        def lose_the_pins(match: Match) -> None:
            unreliable.before_release = lambda match: None
            assert client.release(match, used_tokens=0)
            assert answer(model, client, other).saved.n_stored == n_blocks

        unreliable.before_release = lose_the_pins
        got = answer(model, unreliable, prompt)
        assert_same(got, expected)
        assert got.hit_tokens == {}


@pytest.mark.parametrize("when", ["before_load", "before_release"])
def test_a_worker_lost_on_the_way_costs_the_reuse_and_nothing_else(
    model: LlamaForCausalLM, client: LocalClient, when: str
) -> None:
    prompt = tokens(14, 3 * CHUNK + 1)
    expected = answer(model, None, prompt)
    answer(model, client, prompt)
    unreliable = Unreliable(client)
    setattr(unreliable, when, lambda match: setattr(unreliable, "gone", True))
    got = answer(model, unreliable, prompt)
    assert_same(got, expected)
    assert (got.hit_tokens, got.saved.reason) == ({}, "unavailable")


def test_a_pool_too_small_for_the_prompt_keeps_its_beginning(model: LlamaForCausalLM) -> None:
    prompt = tokens(15, 3 * CHUNK + 1)
    expected = answer(model, None, prompt)
    with closing(make_client(model, n_blocks=CHUNK // BLOCK + 2)) as client:
        assert answer(model, client, prompt).saved.reason == "full"
        got = answer(model, client, prompt)
    assert_same(got, expected)
    assert got.hit_tokens == {Source.HOT: CHUNK}


def test_another_tenant_and_other_weights_reuse_nothing(model: LlamaForCausalLM, client: LocalClient) -> None:
    prompt = tokens(16, 2 * CHUNK + 1)
    answer(model, client, prompt)
    generator = CachedGenerator(model, client, OPTIONS)
    assert generator.generate(prompt, tenant=TenantId("globex"), max_new_tokens=1).hit_tokens == {}
    assert generator.generate(prompt, tenant=TENANT, max_new_tokens=1).hit_tokens == {Source.HOT: 2 * CHUNK}
    tuned = make_model(model.dtype, seed=1)
    assert model_scope(tuned, name="m").weights_version != model_scope(model, name="m").weights_version


@pytest.mark.parametrize(
    "make",
    [
        lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=40)),
        lambda: Qwen2ForCausalLM(
            Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=40, max_window_layers=1)
        ),
    ],
    ids=["mistral", "qwen2"],
)
def test_a_model_with_a_sliding_window_answers_the_same_from_a_cache_that_keeps_all_tokens(
    make: Callable[[], Any],
) -> None:
    torch.manual_seed(0)
    windowed = make().eval()
    prompt = tokens(23, 3 * CHUNK + 3)
    with closing(make_client(windowed)) as own:
        answer(windowed, own, prompt)
        got = answer(windowed, own, prompt)
        with pytest.raises(ValueError, match="paged attention sees all tokens"):
            CachedGenerator(windowed, own, GeneratorOptions(reuse=Reuse.BLOCK, storage="paged"))
    alone = windowed.generate(
        torch.tensor([prompt]), max_new_tokens=len(got.tokens), do_sample=False, eos_token_id=None
    )
    assert_same(got, answer(windowed, None, prompt))
    assert got.tokens == alone[0, len(prompt) :].tolist()
    assert got.hit_tokens == {Source.HOT: 3 * CHUNK}


def test_a_window_as_long_as_the_context_is_full_attention() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=512)).eval()
    prompt = tokens(17, 2 * CHUNK + 3)
    with closing(make_client(model)) as own:  # type: ignore[arg-type]
        answer(model, own, prompt)  # type: ignore[arg-type]
        got = answer(model, own, prompt)  # type: ignore[arg-type]
    assert_same(got, answer(model, None, prompt))  # type: ignore[arg-type]
    assert got.hit_tokens == {Source.HOT: 2 * CHUNK}


def test_what_cannot_be_answered_is_refused_before_the_cache_is_asked(model: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        answer(model, None, [])
    with pytest.raises(ValueError, match="do not fit the model's context of 512"):
        answer(model, None, tokens(18, 510))
    with closing(make_client(model)) as client, pytest.raises(ValueError, match="chunk_tokens: 20 is no multiple"):
        CachedGenerator(model, client, GeneratorOptions(chunk_tokens=20))
