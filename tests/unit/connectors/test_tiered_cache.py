"""TieredCache under hard use: odd batches, crops, forks, what must be refused, and a client that goes away."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, DynamicCache, LlamaConfig, LlamaForCausalLM, T5Config

from tests.unit.connectors.families import (
    BLOCK,
    PAD,
    SHAPE,
    Apart,
    batch,
    generate,
    hits,
    make_client,
    make_model,
    one,
    tokens,
)
from tiered.blocks.state import BlockState
from tiered.client.local import LocalClient
from tiered.client.port import Loaded, Match, Saved
from tiered.connectors.transformers import TieredCache, model_scope, tiered_cache
from tiered.connectors.transformers.dispatch import IMPLEMENTATION
from tiered.connectors.transformers.kv import cache_argument
from tiered.connectors.transformers.pooled import PooledRows
from tiered.connectors.transformers.rows import Writes
from tiered.core.invariants import check_core
from tiered.errors import ConfigError
from tiered.hashing.chain import Extras
from tiered.pool.pool import BlockPool
from tiered.tenancy.policy import TenantPolicy
from tiered.types import BlockId, Hints, TenantId

PROMPT = tokens(1, 61)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


@pytest.fixture(params=["in the pool", "apart"])
def client(request: pytest.FixtureRequest, model: Any) -> Iterator[LocalClient]:
    """Of both kinds: rows lie in a pool of this process; with a worker's, in memory of their own."""
    with closing(make_client(model)) as made:
        yield made if request.param == "in the pool" else Apart(made)  # type: ignore[misc]
        made.open_sequence(tenant=TenantId("default")).drop()  # what the garbage collector found is dropped, too
        check_core(made.core)


def store(client: LocalClient, model: Any, *prompts: list[int], **how: Any) -> None:
    """Compute each prompt and keep it."""
    for prompt in prompts:
        with tiered_cache(client, model, one(prompt), **how) as cache, torch.no_grad():
            model(**one(prompt), **{cache_argument(model): cache})


def assert_as_alone(model: Any, client: Any, inputs: dict[str, torch.Tensor], **how: Any) -> list[int]:
    expected = generate(model, inputs, **how)
    with tiered_cache(client, model, inputs) as cache:
        assert torch.equal(generate(model, inputs, cache, **how), expected)
    return hits(cache)


class Bent(Apart):
    """One whose calls a test may bend."""

    def __init__(self, inner: LocalClient) -> None:
        super().__init__(inner)
        self.gone = False
        self.before_release: Callable[[Match], None] = lambda match: None
        self.hints: list[Hints] = []

    @property
    def pool(self) -> Any:
        return None if self.gone else self.inner.pool

    def load(self, match: Match, **how: Any) -> Loaded:
        return Loaded() if self.gone else self.inner.load(match, **how)

    def release(self, match: Match, *, used_tokens: int) -> bool:
        self.before_release(match)
        return not self.gone and self.inner.release(match, used_tokens=used_tokens)

    def save(self, tokens: Any, **how: Any) -> Saved:
        self.hints.append(how["hints"])
        return Saved(reason="unavailable") if self.gone else self.inner.save(tokens, **how)


# What is reused.


@pytest.mark.parametrize("n_tokens", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1])
def test_the_last_token_of_any_prompt_is_computed(model: Any, client: LocalClient, n_tokens: int) -> None:
    for expected in (0, min(n_tokens - 1, n_tokens // BLOCK * BLOCK)):
        assert assert_as_alone(model, client, one(PROMPT[:n_tokens])) == [expected]


def test_a_row_that_is_wholly_cached_is_used_as_far_as_the_others_reach(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    # The other row begins at column 20 and has nothing: columns 0 to 19 are left out, which are tokens of the first.
    assert assert_as_alone(model, client, batch([PROMPT, tokens(9, 41)])) == [20, 0]
    # Now the short row is whole, and the long one has nothing.
    assert assert_as_alone(model, client, batch([tokens(8, 61), PROMPT[:41]])) == [0, 0]


def test_prompts_of_one_batch_that_begin_alike_share_the_blocks(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    inputs = batch([PROMPT[:48] + tokens(seed, 13) for seed in (3, 4, 5)])
    with tiered_cache(client, model, inputs) as cache:
        assert (hits(cache), cache.n_blocks) == ([48] * 3, 48 // BLOCK)
        assert torch.equal(generate(model, inputs, cache), generate(model, inputs))


def test_an_answer_is_reused_by_the_next_turn(model: Any, client: LocalClient) -> None:
    first = one(PROMPT)
    with tiered_cache(client, model, first) as cache:
        said = generate(model, first, cache, max_new_tokens=30)[0].tolist()
    following = one(said + tokens(4, 10))
    # Of 91 tokens 90 were computed, 88 of them in full blocks.
    assert assert_as_alone(model, client, following) == [88]


def test_a_conversation_goes_on_in_the_same_cache(model: Any, client: LocalClient) -> None:
    turn = one(PROMPT)
    with tiered_cache(client, model, turn) as cache:
        for seed in (4, 5, 6):
            expected = generate(model, turn)
            got = generate(model, turn, cache)
            assert torch.equal(got, expected)
            turn = one(got[0].tolist() + tokens(seed, 9))
        said = turn["input_ids"][0, :-9].tolist()
    assert assert_as_alone(model, client, one([*said, 7])) == [(len(said) - 1) // BLOCK * BLOCK]


def test_tenants_and_salts_share_nothing(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT, tenant="acme")
    others: list[dict[str, Any]] = [{"tenant": "globex"}, {"tenant": "acme", "extras": Extras(salt="s")}]
    for other in others:
        assert hits(tiered_cache(client, model, one(PROMPT), **other)) == [0]
    assert hits(tiered_cache(client, model, one(PROMPT), tenant="acme")) == [56]


def test_without_inputs_nothing_is_reused_and_all_is_stored(model: Any, client: LocalClient) -> None:
    inputs = batch([PROMPT, tokens(2, 20)])
    with tiered_cache(client, model) as cache:
        assert torch.equal(generate(model, inputs, cache), generate(model, inputs))
    assert assert_as_alone(model, client, inputs) == [56, 15]


def test_a_cache_kept_open_pins_its_blocks_where_it_reads_them_and_else_nothing(
    model: Any, client: LocalClient
) -> None:
    store(client, model, PROMPT)
    cache = tiered_cache(client, model, one(PROMPT))
    assert hits(cache) == [56]
    pinned = sum(record.pins for record in client.core.table.records)
    assert pinned == (0 if isinstance(client, Apart) else 7)
    cache.close()
    assert not any(record.pins for record in client.core.table.records)


# Where the rows lie.


def test_rows_lie_in_the_pool_of_this_process_and_nothing_is_copied(
    model: Any, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockPool, "gather", None)
    monkeypatch.setattr(BlockPool, "scatter", None)
    if isinstance(client, Apart):
        with tiered_cache(client, model) as cache:
            assert not cache.in_pool
        return
    with tiered_cache(client, model, one(PROMPT)) as cache:
        generate(model, one(PROMPT), cache)
        assert cache.in_pool
        used = client.core.blocks_in(BlockState.FILLING)
        assert used == cache.n_blocks == 9
        (saved,) = cache.save()
        assert (saved.n_stored, saved.first_index, saved.reason, saved.answer) == (9, 0, "", "granted")
    with tiered_cache(client, model, one(PROMPT)) as cache:
        assert (hits(cache), client.core.blocks_in(BlockState.FILLING)) == ([56], 0)
        assert torch.equal(generate(model, one(PROMPT), cache), generate(model, one(PROMPT)))
        assert [saved.n_stored for saved in cache.save()] == [0], "all of it was there"


def test_no_row_writes_into_a_block_that_others_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``generate`` computes what the first row has anew, since the second has less."""
    written: list[BlockState] = []
    reserve = PooledRows.reserve

    def noting(rows: PooledRows, *args: Any, **how: Any) -> Writes:
        writes = reserve(rows, *args, **how)
        written.extend(client.core.table[BlockId(slot // BLOCK)].state for slot in writes.slots)
        return writes

    with closing(make_client(model)) as client:
        store(client, model, PROMPT)
        monkeypatch.setattr(PooledRows, "reserve", noting)
        assert assert_as_alone(model, client, batch([PROMPT, tokens(9, 41)])) == [20, 0]
    assert set(written) == {BlockState.FILLING}


def test_what_a_cache_wrote_is_nobodys_before_it_is_saved(model: Any, client: LocalClient) -> None:
    cache = tiered_cache(client, model, one(PROMPT))
    generate(model, one(PROMPT), cache)
    assert hits(tiered_cache(client, model, one(PROMPT))) == [0]
    cache.save()
    assert hits(tiered_cache(client, model, one(PROMPT))) == [56]
    cache.close()


def test_a_cache_that_nobody_has_any_more_holds_nothing(model: Any, client: LocalClient) -> None:
    cache = tiered_cache(client, model, one(PROMPT))
    generate(model, one(PROMPT), cache)
    del cache
    gc.collect()
    tiered_cache(client, model, one(tokens(2, 20))).close()
    assert client.core.blocks_in(BlockState.FREE) == client.core.n_blocks


def test_a_generation_that_the_pool_has_no_room_for_goes_on_in_memory_of_its_own(model: Any) -> None:
    """Its prompt fits, its answer does not; of that as much is stored as there is room for."""
    inputs = batch([PROMPT, PROMPT[:50] + tokens(3, 5)])
    expected = generate(model, inputs, max_new_tokens=40)
    with closing(make_client(model, n_blocks=10)) as small:
        store(small, model, PROMPT[:48])
        with tiered_cache(small, model, inputs) as cache:
            assert (hits(cache), cache.in_pool) == ([48, 42], True)
            assert torch.equal(generate(model, inputs, cache, max_new_tokens=40), expected)
            assert not cache.in_pool
            check_core(small.core)
            assert [saved.reason for saved in cache.save()] == ["full", "full"]
        check_core(small.core)


def test_beams_that_find_no_room_go_on_in_memory_of_their_own(model: Any) -> None:
    expected = generate(model, one(PROMPT), num_beams=4, max_new_tokens=30)
    with closing(make_client(model, n_blocks=12)) as small, tiered_cache(small, model, one(PROMPT)) as cache:
        assert torch.equal(generate(model, one(PROMPT), cache, num_beams=4, max_new_tokens=30), expected)
        assert not cache.in_pool


def test_a_tenant_at_its_limit_is_served_in_memory_of_its_own(model: Any) -> None:
    with closing(make_client(model)) as client:
        limit = 4 * client.layout.block_bytes
        client.set_policies({TenantId("default"): TenantPolicy(tenant="default", hot_limit_bytes=limit)})
        with tiered_cache(client, model, one(PROMPT)) as cache:
            assert torch.equal(generate(model, one(PROMPT), cache), generate(model, one(PROMPT)))
            assert not cache.in_pool
        assert assert_as_alone(model, client, one(PROMPT)) == [32]


# Rows.


def test_beams_that_fork_within_the_open_block_copy_that_block_alone(model: Any, client: LocalClient) -> None:
    inputs = one(PROMPT[:59])
    with tiered_cache(client, model, inputs) as cache, torch.no_grad():
        argument = {cache_argument(model): cache}
        model(**inputs, **argument)
        assert cache.n_blocks == 8
        cache.batch_repeat_interleave(3)
        assert cache.n_blocks == 8
        model(torch.tensor([[5], [6], [7]]), **argument)
        assert cache.n_blocks == 8 + 2
        cache.reorder_cache(torch.tensor([2, 2, 0]))
        assert cache.n_blocks == 8 + 1
        again = model(torch.tensor([[8], [9], [10]]), **argument).logits[:, -1]
    tails = [[7, 8], [7, 9], [5, 10]]
    alone = [model(torch.tensor([PROMPT[:59] + tail])).logits[0, -1] for tail in tails]
    torch.testing.assert_close(again, torch.stack(alone), atol=1e-4, rtol=1e-5)


def test_the_copies_of_a_prompt_that_generate_makes_share_its_blocks(model: Any, client: LocalClient) -> None:
    inputs = one(PROMPT)
    with tiered_cache(client, model, inputs) as cache:
        generate(model, inputs, cache, num_beams=8, max_new_tokens=1)
        assert cache.n_blocks == 8


def test_rows_may_be_dropped_and_doubled(model: Any, client: LocalClient) -> None:
    prompts = [PROMPT, tokens(2, 41), tokens(3, 50)]
    inputs = batch(prompts)
    with tiered_cache(client, model, inputs) as cache, torch.no_grad():
        argument = {cache_argument(model): cache}
        generate(model, inputs, cache, max_new_tokens=1)
        cache.batch_select_indices(torch.tensor([2, 0]))
        mask = inputs["attention_mask"][[2, 0]]
        mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], dim=1)
        got = model(
            torch.tensor([[5], [6]]), attention_mask=mask, position_ids=torch.tensor([[50], [61]]), **argument
        ).logits[:, -1]
    alone = [model(torch.tensor([prompt])).logits[0, -1] for prompt in ([*prompts[2], 5], [*prompts[0], 6])]
    torch.testing.assert_close(got, torch.stack(alone), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("keep", [60, 57, 56, 55, 17, 8, 1, 0])
def test_a_crop_to_anywhere_goes_on_and_stores_what_is_left(model: Any, client: LocalClient, keep: int) -> None:
    """Below the reused prefix, too: 56 of the 61 tokens are read from the cache."""
    store(client, model, PROMPT)
    tail = tokens(7, 20)
    with tiered_cache(client, model, one(PROMPT)) as cache, torch.no_grad():
        argument = {cache_argument(model): cache}
        model(torch.tensor([PROMPT[56:]]), **argument)
        cache.crop(keep - 61)
        assert cache.get_seq_length() == keep
        got = model(torch.tensor([tail]), **argument).logits[0, -1]
    torch.testing.assert_close(got, model(torch.tensor([PROMPT[:keep] + tail])).logits[0, -1], atol=1e-4, rtol=1e-5)
    assert assert_as_alone(model, client, one(PROMPT[:keep] + tail)) == [min(keep + 19, (keep + 20) // BLOCK * BLOCK)]
    assert assert_as_alone(model, client, one(PROMPT)) == [56]


def test_a_crop_into_the_padding_leaves_a_row_empty(model: Any, client: LocalClient) -> None:
    inputs = batch([PROMPT, PROMPT[:5]])
    with tiered_cache(client, model, inputs) as cache:
        expected = generate(model, inputs, cache)
        cache.crop(40 - cache.get_seq_length())
        assert cache.n_blocks == 40 // BLOCK
        assert torch.equal(generate(model, inputs, cache), expected)


def test_a_positive_crop_says_how_many_to_keep(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    cache = tiered_cache(client, model, one(PROMPT))
    cache.crop(70)
    assert cache.get_seq_length() == 56
    cache.crop(9)
    assert (cache.get_seq_length(), cache.n_blocks) == (9, 2)


def test_a_cache_that_was_reset_serves_another_batch(model: Any, client: LocalClient) -> None:
    with tiered_cache(client, model, one(PROMPT)) as cache:
        generate(model, one(PROMPT), cache)
        cache.reset()
        assert (cache.get_seq_length(), cache.n_blocks) == (0, 0)
        inputs = batch([tokens(2, 30), tokens(3, 44)])
        assert torch.equal(generate(model, inputs, cache), generate(model, inputs))
    assert assert_as_alone(model, client, one(PROMPT)) == [0]  # what was reset before it was saved is not stored
    assert assert_as_alone(model, client, one(tokens(3, 44))) == [40]


# What is stored.


def test_what_fills_up_an_answer_that_ended_early_is_not_stored(model: Any, client: LocalClient) -> None:
    inputs = batch([PROMPT, tokens(2, 50)])
    alone = generate(model, inputs, max_new_tokens=30)
    end = int(alone[0, 61 + 3])  # the first row ends with its fourth token, unless the second says it before
    bent = Bent(client)
    with tiered_cache(bent, model, inputs) as cache:  # type: ignore[arg-type]
        got = generate(model, inputs, cache, max_new_tokens=30, eos_token_id=end)
    answers = [row[61:].tolist() for row in got]
    lengths = [answer.index(end) + 1 if end in answer else len(answer) - 1 for answer in answers]
    assert [hints.output_tokens for hints in bent.hints] == lengths
    assert lengths[0] <= 4 < lengths[1]


def test_a_forward_that_failed_in_the_middle_leaves_no_trace(model: Any, client: LocalClient) -> None:
    inputs = one(PROMPT)
    cache = tiered_cache(client, model, inputs)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.model.layers[1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(KeyboardInterrupt):
            generate(model, inputs, cache)
    finally:
        hook.remove()
    assert cache.get_seq_length() == 0
    assert [saved.n_stored for saved in cache.save()] == [0]
    assert torch.equal(generate(model, inputs, cache), generate(model, inputs))
    assert [saved.n_stored for saved in cache.save()] == [(61 + 11) // BLOCK]
    cache.close()


def test_a_cache_may_be_used_within_inference_mode_and_with_gradients_on(model: Any, client: LocalClient) -> None:
    turn = one(PROMPT)
    with tiered_cache(client, model, turn) as cache:
        with torch.inference_mode():
            said = generate(model, turn, cache)[0].tolist()
        argument = {cache_argument(model): cache}
        got = model(torch.tensor([[said[-1], *tokens(5, 30)]]), **argument).logits[0, -1]
    torch.testing.assert_close(got, model(torch.tensor([said + tokens(5, 30)])).logits[0, -1], atol=1e-4, rtol=1e-5)
    assert not client.pool.tensor.requires_grad
    assert assert_as_alone(model, client, one(said + tokens(5, 30))) == [96]


def test_an_error_in_the_with_stores_nothing(model: Any, client: LocalClient) -> None:
    def fail() -> None:
        with tiered_cache(client, model, one(PROMPT)) as cache:
            generate(model, one(PROMPT), cache)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert assert_as_alone(model, client, one(PROMPT)) == [0]


def test_embeddings_are_served_and_not_stored(model: Any, client: LocalClient) -> None:
    embeddings = model.get_input_embeddings()(torch.tensor([PROMPT])).detach()
    cache = tiered_cache(client, model)
    got = generate(model, {"inputs_embeds": embeddings}, cache)
    assert torch.equal(got, generate(model, one(PROMPT))[:, 61:])
    (saved,) = cache.save()
    assert (saved.n_stored, saved.reason) == (0, "the model was given embeddings, whose tokens are not known")


def test_a_full_pool_stores_the_beginning(model: Any) -> None:
    with closing(make_client(model, n_blocks=5)) as small:
        with tiered_cache(small, model, one(PROMPT)) as cache:
            generate(model, one(PROMPT), cache)
            (saved,) = cache.save()
        assert (saved.n_stored, saved.reason) == (5, "full")
        assert assert_as_alone(model, small, one(PROMPT)) == [40]


# A client that goes away, bytes that are wrong.


@pytest.mark.parametrize("when", ["before the load", "before the release", "while it generates"])
def test_a_client_that_goes_away_costs_the_reuse_and_nothing_else(model: Any, client: LocalClient, when: str) -> None:
    store(client, model, PROMPT)
    bent = Bent(client)
    bent.gone = when == "before the load"
    if when == "before the release":
        bent.before_release = lambda match: setattr(bent, "gone", True)
    expected = generate(model, one(PROMPT))
    with tiered_cache(bent, model, one(PROMPT)) as cache:  # type: ignore[arg-type]
        bent.gone = True
        client.pool.tensor.fill_(float("nan"))
        assert torch.equal(generate(model, one(PROMPT), cache), expected)
        assert [saved.reason for saved in cache.save()] == ["unavailable"]
    assert hits(cache) == [56 if when == "while it generates" else 0]


def test_blocks_overwritten_after_their_pins_ended_are_not_used(model: Any) -> None:
    with closing(make_client(model, n_blocks=7)) as client:
        store(client, model, PROMPT)
        bent = Bent(client)

        def lose_the_pins(match: Match) -> None:
            bent.before_release = lambda match: None
            assert client.release(match, used_tokens=0)
            store(client, model, tokens(5, 61))

        bent.before_release = lose_the_pins
        assert assert_as_alone(model, bent, one(PROMPT)) == [0]


def test_one_row_whose_pins_ended_costs_the_whole_batch_its_reuse(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    bent = Bent(client)

    def lose_the_pins(match: Match) -> None:
        bent.before_release = lambda match: None
        assert client.release(match, used_tokens=0)

    bent.before_release = lose_the_pins
    assert assert_as_alone(model, bent, batch([PROMPT, PROMPT])) == [0, 0]


def test_a_corrupted_byte_ends_the_reuse_there(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    match = client.match(PROMPT, tenant=TenantId("default"))
    client.pool.host_view(match.block_ids[3])[17] ^= 1
    client.release(match, used_tokens=0)
    assert assert_as_alone(model, client, one(PROMPT)) == [3 * BLOCK]


# Other dtypes, attention and callers.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_half_precision_models_answer_within_rounding(family: str, dtype: torch.dtype) -> None:
    half = make_model(family, dtype=dtype)
    inputs = batch([PROMPT, tokens(2, 41)])
    how = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True}
    expected = generate(half, inputs, **how).logits[0]
    with closing(make_client(half)) as client:
        for hit in ([0, 0], [56, 36]):
            with tiered_cache(client, half, inputs) as cache:
                got = generate(half, inputs, cache, **how).logits[0]
            assert hits(cache) == hit
            torch.testing.assert_close(got.float(), expected.float(), atol=0.05, rtol=0.05)


def test_eager_attention_is_left_alone_and_can_show_its_weights(client: LocalClient) -> None:
    eager = make_model("llama")
    eager.set_attn_implementation("eager")
    store(client, eager, PROMPT)
    with tiered_cache(client, eager, one(PROMPT)) as cache, torch.no_grad():
        got = eager(torch.tensor([PROMPT[56:]]), output_attentions=True, **{cache_argument(eager): cache})
    assert eager.config._attn_implementation == "eager"
    alone = eager(torch.tensor([PROMPT]), output_attentions=True).attentions[-1][:, :, 56:]
    torch.testing.assert_close(got.attentions[-1], alone, atol=1e-5, rtol=1e-4)


def test_the_model_serves_other_caches_as_before(model: Any, client: LocalClient) -> None:
    fresh = make_model("llama")
    expected = generate(fresh, batch([PROMPT, tokens(2, 41)]), output_logits=True, return_dict_in_generate=True)
    tiered_cache(client, fresh)
    assert fresh.config._attn_implementation == IMPLEMENTATION
    got = generate(
        fresh,
        batch([PROMPT, tokens(2, 41)]),
        DynamicCache(config=fresh.config),
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert torch.equal(torch.stack(got.logits), torch.stack(expected.logits))


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
def test_the_name_past_key_values_works(model: Any, client: LocalClient) -> None:
    inputs = one(PROMPT)
    expected = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    for _ in range(2):
        with tiered_cache(client, model, inputs) as cache:
            got = model.generate(**inputs, max_new_tokens=5, do_sample=False, past_key_values=cache)
            assert torch.equal(got, expected)
    assert hits(cache) == [56]


def test_an_assistant_model_drafts(model: Any, client: LocalClient) -> None:
    inputs = one(PROMPT)
    expected = generate(model, inputs)
    for hit in ([0], [56]):
        with tiered_cache(client, model, inputs) as cache:
            assert torch.equal(generate(model, inputs, cache, assistant_model=make_model("llama", seed=1)), expected)
        assert hits(cache) == hit


# What is refused, each in one sentence.


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([[1] * 59 + [0] * 2], "padding may only stand on the left"),
        ([[0, 1, 0] + [1] * 58], "padding may only stand on the left"),
        ([[0] * 61], "row 0 has no token"),
        ([[1] * 60], r"its shape is \(1, 60\), that of the input_ids \(1, 61\)"),
    ],
    ids=["right", "hole", "nothing", "short"],
)
def test_masks_that_are_no_left_padding_are_refused(
    model: Any, client: LocalClient, mask: list[list[int]], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        tiered_cache(client, model, torch.tensor([PROMPT]), attention_mask=torch.tensor(mask))
    assert "\n" not in str(caught.value)


def test_a_model_given_another_mask_than_the_cache_is_refused(model: Any, client: LocalClient) -> None:
    store(client, model, PROMPT)
    whole = batch([PROMPT, PROMPT])
    padded = {**whole, "attention_mask": batch([PROMPT, PROMPT[3:]])["attention_mask"]}
    for mine, models in ((padded, whole), (whole, padded)):
        cache = tiered_cache(client, model, mine)
        with pytest.raises(ValueError, match="give tiered_cache the same mask as the model"):
            generate(model, models, cache)
        assert [saved.n_stored for saved in cache.save()] == [0, 0]


def test_padding_that_may_be_the_end_of_an_answer_must_be_said(client: LocalClient) -> None:
    unclear = make_model("llama")
    unclear.generation_config.eos_token_id = PAD
    ids = batch([PROMPT, tokens(2, 41)])["input_ids"]
    with pytest.raises(ValueError, match="attention_mask: give it, since the padding token also ends answers"):
        tiered_cache(client, unclear, ids)
    assert hits(tiered_cache(client, unclear, torch.tensor([[*PROMPT[:3], PAD, *PROMPT[3:]]]))) == [0]


def test_padding_is_told_from_the_tokens_as_generate_tells_it(model: Any, client: LocalClient) -> None:
    ids = batch([PROMPT, tokens(2, 41)])["input_ids"]
    with tiered_cache(client, model, ids) as cache:
        assert torch.equal(generate(model, {"input_ids": ids}, cache), generate(model, {"input_ids": ids}))


def test_other_tokens_than_were_looked_up_are_refused(model: Any, client: LocalClient) -> None:
    """Assisted decoding gives the model the whole prompt again, which shows it; other ways show a wrong length."""
    store(client, model, PROMPT)
    other = one(tokens(6, 61))
    with pytest.raises(ValueError, match="they begin with other tokens than this cache holds"):
        generate(model, other, tiered_cache(client, model, one(PROMPT)), prompt_lookup_num_tokens=3)
    with pytest.raises(ValueError, match="input_ids: 2 rows for a cache of 3"):
        generate(model, batch([PROMPT] * 2), tiered_cache(client, model, batch([PROMPT] * 3)))


def test_positions_that_do_not_count_the_tokens_are_refused(model: Any, client: LocalClient) -> None:
    cache = tiered_cache(client, model)
    argument = {cache_argument(model): cache}
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    with pytest.raises(ValueError, match="position_ids: they must count each row's tokens from 0 on"):
        model(ids, attention_mask=mask, position_ids=torch.arange(3, 64)[None], **argument)
    padded = batch([PROMPT, tokens(2, 41)])
    with pytest.raises(ValueError, match="position_ids: with padding on the left the model needs them"):
        model(**padded, **argument)


def test_the_inner_model_alone_is_refused(model: Any, client: LocalClient) -> None:
    with pytest.raises(ValueError, match="serves the model that it was made for, called as a whole"):
        model.model(torch.tensor([PROMPT]), **{cache_argument(model): tiered_cache(client, model)})


def test_a_client_of_another_model_is_refused(client: LocalClient) -> None:
    with pytest.raises(ConfigError, match=r"client: its blocks are gqa 3x2x16 float32.*; make the client with"):
        tiered_cache(client, make_model("gemma"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            LlamaConfig(**SHAPE, layer_types=["linear_attention", "full_attention", "full_attention"]),
            "linear_attention",
        ),
        (T5Config(), "use a decoder-only model"),
        (DeepseekV3Config(), "latent attention"),
        (LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
    ],
    ids=["linear", "encoder", "mla", "rope"],
)
def test_models_whose_kv_is_no_plain_prefix_are_refused(config: Any, said: str) -> None:
    class Model:
        dtype = torch.float32

    unfit = Model()
    unfit.config = config  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=said) as caught:
        model_scope(unfit)
    assert "\n" not in str(caught.value)
    assert "; use a" in str(caught.value) or "use a decoder-only" in str(caught.value)


def test_attention_is_one_of_two(model: Any, client: LocalClient) -> None:
    with pytest.raises(ValueError, match="attention: 'flash' is neither paged nor model"):
        tiered_cache(client, model, attention="flash")  # type: ignore[arg-type]


def test_a_cache_of_any_prompt_is_a_transformers_cache(model: Any, client: LocalClient) -> None:
    cache = tiered_cache(client, model)
    assert isinstance(cache, TieredCache)
    assert (len(cache), cache.is_croppable, cache.is_compileable, cache.get_max_length()) == (3, True, False, -1)
    assert isinstance(model, LlamaForCausalLM)
