"""A caller that takes part in an answer: it chooses, it is told, it ends it; and what is kept of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.pins import overwrite_pinned
from tiered.client.local import LocalClient
from tiered.config import PoolSettings
from tiered.connectors.transformers import (
    Abandoned,
    CachedGenerator,
    Generation,
    GeneratorOptions,
    Reuse,
    Steering,
    model_scope,
)
from tiered.connectors.transformers.steering import greedy
from tiered.types import Source, TenantId

TENANT = TenantId("acme")
CHUNK, BLOCK = 32, 8
EXACT = GeneratorOptions(chunk_tokens=CHUNK)
BY_BLOCK = GeneratorOptions(chunk_tokens=CHUNK, reuse=Reuse.BLOCK)
PAGED = replace(BY_BLOCK, storage="paged")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def client(model: LlamaForCausalLM) -> Iterator[LocalClient]:
    scope = model_scope(model, block_tokens=BLOCK)
    settings = PoolSettings(bytes=64 * scope.layout.block_bytes, free_target=0.0)
    with closing(LocalClient(scope, settings)) as made:
        yield made


def prompt_of(n_tokens: int, seed: int = 1) -> list[int]:
    return torch.randint(0, 256, (n_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def ask(
    model: LlamaForCausalLM,
    client: LocalClient | None,
    prompt: list[int],
    *,
    n: int = 6,
    options: GeneratorOptions = EXACT,
    steering: Steering | None = None,
    keep_answer: bool = False,
) -> Generation:
    generator = CachedGenerator(model, client, options)
    return generator.generate(prompt, tenant=TENANT, max_new_tokens=n, steering=steering, keep_answer=keep_answer)


def test_the_caller_chooses_and_is_told_of_each_token_and_of_what_was_reused(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    told: list[tuple[int, Mapping[Source, int]]] = []
    chosen = iter(range(10, 20))

    def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
        told.append((token, hit_tokens))
        return len(told) < 4

    prompt = prompt_of(CHUNK + 1)
    ask(model, client, prompt)
    got = ask(model, client, prompt, steering=Steering(choose=lambda logits: next(chosen), on_token=on_token))
    assert got.tokens == [10, 11, 12, 13]
    assert told == [(token, {Source.HOT: CHUNK}) for token in got.tokens]


def test_an_answer_that_is_not_wanted_any_more_is_given_up_before_the_next_chunk(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    asked = iter([True, True, False])
    prompt = prompt_of(4 * CHUNK)
    with pytest.raises(Abandoned):
        ask(model, client, prompt, steering=Steering(wanted=lambda: next(asked)))
    assert ask(model, client, prompt).hit_tokens == {}


@pytest.mark.parametrize("n_prompt", [2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 3])
@pytest.mark.parametrize("n", [1, 2, CHUNK, 2 * CHUNK + 3])
def test_a_kept_answer_is_reused_bit_for_bit(
    model: LlamaForCausalLM, client: LocalClient, n_prompt: int, n: int
) -> None:
    prompt = prompt_of(n_prompt)
    first = ask(model, client, prompt, n=n, keep_answer=True)
    assert first.tokens == ask(model, None, prompt, n=n).tokens
    history = [*prompt, *first.tokens]
    later = [*history, *prompt_of(5, seed=2)]
    got, expected = ask(model, client, later), ask(model, None, later)
    assert (got.tokens, got.logits_digest) == (expected.tokens, expected.logits_digest)
    assert torch.equal(got.first_logits, expected.first_logits)
    whole = (len(history) - 1) // CHUNK * CHUNK  # nothing was computed from the answer's last token
    assert got.hit_tokens == ({Source.HOT: whole} if whole else {})


def test_every_full_block_of_an_answer_is_kept_where_bits_do_not_count(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    prompt = prompt_of(21)
    first = ask(model, client, prompt, n=20, options=BY_BLOCK, keep_answer=True)
    got = ask(model, client, [*prompt, *first.tokens, 1, 2, 3], options=BY_BLOCK)
    assert got.hit_tokens == {Source.HOT: 40}


def test_an_answer_is_not_kept_unless_that_is_asked_for(model: LlamaForCausalLM, client: LocalClient) -> None:
    prompt = prompt_of(CHUNK)
    first = ask(model, client, prompt, n=CHUNK + 1)
    assert ask(model, client, [*prompt, *first.tokens, 1]).hit_tokens == {Source.HOT: CHUNK}


@pytest.mark.parametrize("pin_s", [20.0, 0.0], ids=["read in place", "copied before"])
@pytest.mark.parametrize("n_told", [None, *range(7)], ids=lambda n: "pins last" if n is None else f"after {n}")
def test_each_token_is_told_once_when_pins_end_in_the_middle_of_an_answer(
    model: LlamaForCausalLM, client: LocalClient, n_told: int | None, pin_s: float
) -> None:
    """Nothing that was computed from overwritten blocks is told, and what was told is not chosen again."""
    prompt = prompt_of(2 * CHUNK + 3)
    expected = ask(model, None, prompt, options=BY_BLOCK)
    ask(model, client, prompt, options=PAGED)
    told: list[int] = []
    chosen: list[int] = []
    hits: list[Mapping[Source, int]] = []

    def choose(logits: torch.Tensor) -> int:
        chosen.append(greedy(logits))
        return chosen[-1]

    def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
        told.append(token)
        hits.append(hit_tokens)
        if len(told) == n_told:
            overwrite_pinned(client)
        return True

    def wanted() -> bool:
        if n_told == 0 and not told:
            overwrite_pinned(client)
        return True

    steering = Steering(choose=choose, on_token=on_token, wanted=wanted)
    options = replace(PAGED, pin_s=pin_s)
    got = ask(model, client, prompt, options=options, steering=steering)
    assert told == chosen == got.tokens == expected.tokens
    survives = n_told is None or (pin_s == 0 and n_told > 0)  # what was copied in time is its own
    reused = {Source.HOT: 2 * CHUNK}
    assert got.hit_tokens == (reused if survives else {})
    assert hits == [reused if survives or index < (n_told or 0) else {} for index in range(6)]
    torch.testing.assert_close(got.first_logits, expected.first_logits, atol=1e-5, rtol=1e-5)


def test_what_was_told_is_taken_as_it_is_when_no_seed_would_give_it_again(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    """The answer goes on as if its caller had asked with the told tokens at the prompt's end."""
    prompt = prompt_of(2 * CHUNK + 3)
    ask(model, client, prompt, options=PAGED)
    told: list[int] = []
    never_again = iter([200, 7, 91])

    def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
        told.append(token)
        if len(told) == 3:
            overwrite_pinned(client)
        return len(told) < 6

    steering = Steering(choose=lambda logits: next(never_again, None) or greedy(logits), on_token=on_token)
    got = ask(model, client, prompt, n=20, options=PAGED, steering=steering)
    assert told[:3] == [200, 7, 91]
    assert told == got.tokens == [*told[:3], *ask(model, None, prompt + told[:3], n=3, options=BY_BLOCK).tokens]


def test_a_caller_that_had_enough_is_told_no_more_when_its_pins_turn_out_to_have_ended(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    prompt = prompt_of(2 * CHUNK + 3)
    ask(model, client, prompt, options=PAGED)
    told: list[int] = []

    def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
        told.append(token)
        if len(told) == 3:
            overwrite_pinned(client)
        return len(told) < 3

    got = ask(model, client, prompt, options=PAGED, steering=Steering(on_token=on_token))
    assert told == got.tokens == ask(model, None, prompt, n=3, options=BY_BLOCK).tokens


def test_an_answer_read_in_place_is_not_kept(model: LlamaForCausalLM, client: LocalClient) -> None:
    with pytest.raises(ValueError, match="set storage to copy"):
        ask(model, client, prompt_of(5), options=PAGED, keep_answer=True)


def test_an_answer_that_nobody_wants_any_more_is_not_computed_again_to_be_kept(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    wanted = True

    def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
        nonlocal wanted
        wanted = False
        return True

    prompt = prompt_of(CHUNK)
    leaving = Steering(on_token=on_token, wanted=lambda: wanted)
    first = ask(model, client, prompt, n=CHUNK + 1, steering=leaving, keep_answer=True)
    assert ask(model, client, [*prompt, *first.tokens, 1]).hit_tokens == {Source.HOT: CHUNK}
