"""The transformers connector with paged storage: a cached prefix is read where it lies, the answer stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tiered.client.local import LocalClient
from tiered.client.port import Loaded, Match, Saved
from tiered.config import PoolSettings
from tiered.connectors.transformers import CachedGenerator, Generation, GeneratorOptions, Reuse, model_scope
from tiered.connectors.transformers.paged import PagedCache, paged_attention_of
from tiered.errors import BlockNotResident
from tiered.layout import KvLayout
from tiered.types import BlockId, Source, TenantId

TENANT = TenantId("acme")
CHUNK, BLOCK = 32, 8
PAGED = GeneratorOptions(chunk_tokens=CHUNK, reuse=Reuse.BLOCK, storage="paged")
NEW = 6


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The model is so small that sharing its work between threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).to(request.param).eval()


@pytest.fixture
def client(model: LlamaForCausalLM) -> Iterator[LocalClient]:
    with closing(make_client(model)) as made:
        yield made


def make_client(model: LlamaForCausalLM, *, n_blocks: int = 64) -> LocalClient:
    scope = model_scope(model, block_tokens=BLOCK)
    settings = {"bytes": n_blocks * scope.layout.block_bytes, "free_target": 0.0}
    return LocalClient(scope, PoolSettings.model_validate(settings))


def tokens(seed: int, n: int) -> list[int]:
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def answer(
    model: LlamaForCausalLM, client: LocalClient | None, prompt: Sequence[int], options: GeneratorOptions = PAGED
) -> Generation:
    return CachedGenerator(model, client, options).generate(prompt, tenant=TENANT, max_new_tokens=NEW)


def assert_close(model: LlamaForCausalLM, got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-5 if model.dtype is torch.float32 else 3e-2
    torch.testing.assert_close(got.float(), expected.float(), atol=tolerance, rtol=tolerance)


def assert_same_answer(model: LlamaForCausalLM, got: Generation, expected: Generation) -> None:
    assert_close(model, got.first_logits, expected.first_logits)
    if model.dtype is torch.float32:
        assert got.tokens == expected.tokens


def layout_of(model: LlamaForCausalLM) -> KvLayout:
    return model_scope(model, block_tokens=BLOCK, weights_version="any").layout


def block_digests(client: LocalClient, block_ids: Sequence[BlockId]) -> list[bytes]:
    return [bytes(client.pool.host_view(block_id)) for block_id in block_ids]


def pinned_blocks(client: LocalClient) -> int:
    return sum(len(lease.pinned) for lease in client.core.leases.values())


def test_a_cached_prefix_is_read_in_place_and_the_answer_is_the_uncached_one(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    prompt = tokens(1, 3 * CHUNK + 5)
    expected = answer(model, None, prompt)
    first = answer(model, client, prompt)
    again = answer(model, client, prompt)
    assert_same_answer(model, first, expected)
    assert_same_answer(model, again, expected)
    assert (first.hit_tokens, first.saved.n_stored) == ({}, 3 * CHUNK // BLOCK)
    assert again.hit_tokens == {Source.HOT: 3 * CHUNK}
    assert (again.saved.n_stored, again.saved.first_index) == (0, 3 * CHUNK // BLOCK)


@pytest.mark.parametrize("n_tokens", [BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 3])
def test_whole_blocks_are_reused_and_the_last_token_is_computed(
    model: LlamaForCausalLM, client: LocalClient, n_tokens: int
) -> None:
    prompt = tokens(2, n_tokens)
    answer(model, client, prompt)
    got = answer(model, client, prompt)
    assert_same_answer(model, got, answer(model, None, prompt))
    assert sum(got.hit_tokens.values()) == (n_tokens - 1) // BLOCK * BLOCK


def test_prompts_that_share_a_beginning_extend_it(model: LlamaForCausalLM, client: LocalClient) -> None:
    stem = tokens(3, CHUNK + BLOCK)
    answer(model, client, stem)
    for seed in (4, 5):
        prompt = stem + tokens(seed, CHUNK + 3)
        expected = answer(model, None, prompt)
        got = answer(model, client, prompt)
        assert_same_answer(model, got, expected)
        assert got.hit_tokens == {Source.HOT: CHUNK + BLOCK}
        assert got.saved.n_stored == CHUNK // BLOCK
        assert_same_answer(model, answer(model, client, prompt), expected)


def test_blocks_stored_from_paged_storage_serve_copied_storage(model: LlamaForCausalLM, client: LocalClient) -> None:
    prompt = tokens(6, 2 * CHUNK + 3)
    answer(model, client, prompt)
    got = answer(model, client, prompt, replace(PAGED, storage="copy"))
    assert got.hit_tokens == {Source.HOT: 2 * CHUNK}
    assert isinstance(got.cache, DynamicCache)
    assert_same_answer(model, got, answer(model, None, prompt))


def test_the_prefix_is_the_pools_memory_and_is_never_written(model: LlamaForCausalLM, client: LocalClient) -> None:
    """What the table names is read: other bytes there change the result, and a forward changes none of them."""
    prompt = tokens(7, 2 * CHUNK + 3)
    answer(model, client, prompt)
    match = client.match(prompt, tenant=TENANT)
    cache = PagedCache(client.layout, capacity_tokens=len(prompt), prefix=(client.pool, match.block_ids))
    assert cache.prefix is not None
    assert cache.prefix.pool.data_ptr() == client.pool.tensor.data_ptr()
    assert cache.prefix.block_ids.tolist() == list(match.block_ids)
    assert len(cache.own) == 1  # room for the three tokens after the prefix, and for nothing else
    before = block_digests(client, match.block_ids)
    ids = torch.tensor([prompt[2 * CHUNK :]])
    with torch.inference_mode(), paged_attention_of(model):
        got = model(ids, cache=cache).logits
        assert block_digests(client, match.block_ids) == before
        client.pool.tensor[match.block_ids[3]] *= -3
        other = PagedCache(client.layout, capacity_tokens=len(prompt), prefix=(client.pool, match.block_ids))
        changed = model(ids, cache=other).logits
    assert not torch.allclose(got, changed, atol=1e-3)
    assert client.release(match, used_tokens=0)


def test_pins_last_until_the_answer_is_done(
    model: LlamaForCausalLM, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(8, 2 * CHUNK + 3)
    answer(model, client, prompt)
    seen: list[int] = []
    forward = CachedGenerator._forward

    def watched(self: CachedGenerator, *args: object) -> torch.Tensor:
        seen.append(pinned_blocks(client))
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CachedGenerator, "_forward", watched)
    answer(model, client, prompt)
    assert seen == [2 * CHUNK // BLOCK] * NEW
    assert pinned_blocks(client) == 0


def test_an_answer_that_takes_long_copies_the_blocks_and_gives_them_back(
    model: LlamaForCausalLM, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(9, 2 * CHUNK + 3)
    expected = answer(model, None, prompt)
    answer(model, client, prompt)
    seen: list[int] = []
    forward = CachedGenerator._forward

    def watched(self: CachedGenerator, *args: object) -> torch.Tensor:
        logits = forward(self, *args)  # type: ignore[arg-type]
        seen.append(pinned_blocks(client))
        return logits

    monkeypatch.setattr(CachedGenerator, "_forward", watched)
    got = answer(model, client, prompt, replace(PAGED, pin_s=0.0))
    assert_same_answer(model, got, expected)
    assert got.hit_tokens == {Source.HOT: 2 * CHUNK}
    assert seen == [0] * NEW


def test_a_failure_while_answering_gives_the_pins_back(
    model: LlamaForCausalLM, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(10, 2 * CHUNK + 3)
    answer(model, client, prompt)

    def fail(*args: object) -> torch.Tensor:
        assert pinned_blocks(client) == 2 * CHUNK // BLOCK
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(CachedGenerator, "_forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            answer(model, client, prompt)
    assert pinned_blocks(client) == 0
    assert model.config._attn_implementation == "sdpa"


class LosesPins:
    """A client whose pins end, and whose blocks are then overwritten, as soon as they have been given out."""

    def __init__(self, client: LocalClient, overwrite: Callable[[], object]) -> None:
        self.inner = client
        self.overwrite = overwrite

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        loaded = self.inner.load(match, deadline_s=deadline_s)
        assert self.inner.release(match, used_tokens=0)
        self.overwrite()
        return loaded


def test_an_answer_read_from_blocks_whose_pins_had_ended_is_computed_anew(model: LlamaForCausalLM) -> None:
    prompt, other = tokens(11, 2 * CHUNK + 1), tokens(12, 2 * CHUNK + 1)
    n_blocks = 2 * CHUNK // BLOCK
    expected = answer(model, None, prompt)
    with closing(make_client(model, n_blocks=n_blocks)) as client:
        answer(model, client, prompt)
        losing = LosesPins(client, lambda: answer(model, client, other))
        # Without the check of the bytes, which would notice earlier and see to it that nothing is read.
        got = answer(model, losing, prompt, replace(PAGED, verify=False))  # type: ignore[arg-type]
        assert got.hit_tokens == {}
        assert_same_answer(model, got, expected)
        # What was read is stored nowhere: a later request gets this prompt's bytes or none.
        assert_same_answer(model, answer(model, client, prompt), expected)


def test_a_prefix_evicted_before_the_rest_is_stored_is_not_stored_from_its_old_place(
    model: LlamaForCausalLM, client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(13, 2 * CHUNK + BLOCK + 1)
    expected = answer(model, None, prompt)
    answer(model, client, prompt[: 2 * CHUNK])

    save = client.save

    def save_late(wanted: Sequence[int], **arguments: object) -> Saved:
        monkeypatch.undo()
        for seed in range(20, 24):
            answer(model, client, tokens(seed, 4 * CHUNK))
        return save(wanted, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "save", save_late)
    got = answer(model, client, prompt)
    assert_same_answer(model, got, expected)
    assert (got.saved.n_stored, got.saved.reason) == (0, "the prefix left meanwhile")
    assert client.match(prompt, tenant=TENANT).block_ids == ()
    assert_same_answer(model, answer(model, client, prompt), expected)


def test_the_model_reads_other_caches_again_afterwards(model: LlamaForCausalLM, client: LocalClient) -> None:
    prompt = tokens(14, CHUNK + 3)
    before = answer(model, None, prompt)
    answer(model, client, prompt)
    after = answer(model, None, prompt)
    assert (before.tokens, before.logits_digest) == (after.tokens, after.logits_digest)


def test_a_cache_without_a_prefix_computes_what_transformers_own_does(model: LlamaForCausalLM) -> None:
    ids = torch.tensor([tokens(15, 50)])
    cache = PagedCache(layout_of(model), capacity_tokens=50)
    with torch.inference_mode():
        expected = model(ids).logits
        with paged_attention_of(model):
            got = torch.cat([model(part, cache=cache).logits for part in ids.split([1, 20, 1, 28], dim=1)], dim=1)
    assert_close(model, got, expected)
    assert cache.get_seq_length() == 50


def test_a_prefix_copied_into_the_cache_is_no_longer_read_from_the_pool(
    model: LlamaForCausalLM, client: LocalClient
) -> None:
    prompt = tokens(16, CHUNK + 3)
    answer(model, client, prompt)
    match = client.match(prompt, tenant=TENANT)
    caches = [
        PagedCache(client.layout, capacity_tokens=len(prompt), prefix=(client.pool, match.block_ids))
        for _ in range(2)
    ]
    caches[1].own_prefix()
    ids = torch.tensor([prompt[CHUNK:]])
    with torch.inference_mode(), paged_attention_of(model):
        in_place = model(ids, cache=caches[0]).logits
        client.pool.tensor.zero_()
        copied = model(ids, cache=caches[1]).logits
    assert torch.equal(in_place, copied)
    assert client.release(match, used_tokens=0)


def test_misuse_is_refused_in_one_sentence(model: LlamaForCausalLM) -> None:
    layout = layout_of(model)
    ids = torch.tensor([tokens(17, 5)])
    with torch.inference_mode(), paged_attention_of(model):
        with pytest.raises(ValueError, match="'tiered_paged' reads a PagedCache"):
            model(ids, cache=DynamicCache())
        with pytest.raises(ValueError, match=r"cache: 0 \+ 5 tokens exceed its 4"):
            model(ids, cache=PagedCache(layout, capacity_tokens=4))
        with pytest.raises(ValueError, match="cache: it holds one sequence, and was given 2"):
            model(ids.repeat(2, 1), cache=PagedCache(layout, capacity_tokens=8))
        with pytest.raises(NotImplementedError, match="one sequence that only grows"):
            PagedCache(layout, capacity_tokens=8).reset()
    with pytest.raises(ValueError, match="storage: 'mmap' is neither copy nor paged"):
        GeneratorOptions(storage="mmap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"set reuse to Reuse\.BLOCK"):
        GeneratorOptions(storage="paged")
    with closing(make_client(model)) as client:
        cache = PagedCache(layout, capacity_tokens=BLOCK, prefix=(client.pool, [BlockId(0)]))
        with pytest.raises(BlockNotResident, match="block 0 of the sequence is of its prefix"):
            cache.fill(client.pool, [BlockId(1)], 0)
        with pytest.raises(ValueError, match="capacity_tokens: 7 are fewer than the prefix's 8"):
            PagedCache(layout, capacity_tokens=BLOCK - 1, prefix=(client.pool, [BlockId(0)]))
