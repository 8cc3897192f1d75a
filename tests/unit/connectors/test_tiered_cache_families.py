"""``generate`` over a TieredCache equals the model alone, cold and warm, for every family and every way to decode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch

from tests.unit.connectors.families import (
    FAMILIES,
    Apart,
    batch,
    generate,
    hits,
    make_client,
    make_model,
    one,
    tokens,
)
from tiered.client.local import LocalClient
from tiered.connectors.transformers import tiered_cache
from tiered.connectors.transformers.kv import cache_argument

PROMPT = tokens(1, 61)
PROMPTS = [PROMPT, tokens(2, 41), PROMPT[:31]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are so small that sharing their work between threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture(params=["paged", "model"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(model: Any, attention: str) -> Iterator[LocalClient]:
    """Rows lie in its pool with one kind of attention, and in memory of their own with the other."""
    with closing(make_client(model)) as made:
        yield made if attention == "paged" else Apart(made)  # type: ignore[misc]


def cold_then_warm(
    model: Any, client: LocalClient, inputs: dict[str, torch.Tensor], attention: str, **how: Any
) -> list[list[int]]:
    """Generate twice; the answers equal the model's own. Returns what was hit each time."""
    expected = generate(model, inputs, **how)
    hit = []
    for _ in range(2):
        with tiered_cache(client, model, inputs, attention=attention) as cache:  # type: ignore[arg-type]
            assert torch.equal(generate(model, inputs, cache, **how), expected)
        hit.append(hits(cache))
    return hit


def test_greedy(model: Any, client: LocalClient, attention: str) -> None:
    assert cold_then_warm(model, client, one(PROMPT), attention) == [[0], [56]]


def test_sampling_with_a_seed(model: Any, client: LocalClient, attention: str) -> None:
    hit = cold_then_warm(model, client, one(PROMPT), attention, do_sample=True, num_return_sequences=3)
    assert hit == [[0] * 3, [56] * 3]


def test_beams_fork_and_reorder(model: Any, client: LocalClient, attention: str) -> None:
    hit = cold_then_warm(model, client, one(PROMPT), attention, num_beams=4, num_return_sequences=2)
    assert hit == [[0] * 4, [56] * 4]


def test_a_batch_of_unequal_prompts_reuses_the_columns_that_every_row_has(
    model: Any, client: LocalClient, attention: str
) -> None:
    hit = cold_then_warm(model, client, batch(PROMPTS), attention)
    # Row 2 has 30 columns of padding and 3 blocks of tokens: its reach of 54 columns is the shortest.
    assert hit == [[0, 0, 0], [54, 34, 24]]


def test_beams_over_a_batch(model: Any, client: LocalClient, attention: str) -> None:
    hit = cold_then_warm(model, client, batch(PROMPTS), attention, num_beams=3)
    assert hit[1] == [54] * 3 + [34] * 3 + [24] * 3


def test_prompt_lookup_crops_what_was_guessed_wrong(model: Any, client: LocalClient, attention: str) -> None:
    repeating = one((PROMPT[:20] * 3)[:50])
    hit = cold_then_warm(model, client, repeating, attention, prompt_lookup_num_tokens=4, max_new_tokens=24)
    assert hit == [[0], [48]]


def test_prefill_in_chunks(model: Any, client: LocalClient, attention: str) -> None:
    assert cold_then_warm(model, client, batch(PROMPTS), attention, prefill_chunk_size=7)[1] == [54, 34, 24]


def test_the_first_logits_after_a_hit_are_those_of_a_whole_prefill(
    model: Any, client: LocalClient, attention: str
) -> None:
    inputs = one(PROMPT)
    with tiered_cache(client, model, inputs, attention=attention) as cache, torch.no_grad():  # type: ignore[arg-type]
        alone = model(**inputs).logits[:, -1]
        cold = model(**inputs, **{cache_argument(model): cache}).logits[:, -1]
    with tiered_cache(client, model, inputs, attention=attention) as cache, torch.no_grad():  # type: ignore[arg-type]
        warm = model(inputs["input_ids"][:, 56:], **{cache_argument(model): cache}).logits[:, -1]
    torch.testing.assert_close(cold, alone, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(warm, alone, atol=1e-4, rtol=1e-5)
