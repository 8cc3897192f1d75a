"""Paged attention is contiguous attention, whatever the lengths, and never reads a slot that no sequence owns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.attention.reference import TOLERANCE, Case, Shape, make_case
from tiered.attention import PagedBatch, paged_attention
from tiered.attention.padded import attend_padded

LAYER = 1
MIXED = [(9, 1), (9, 9), (4, 1), (17, 5), (1, 1), (8, 1), (12, 0)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The shapes are so small that sharing their work between threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def on_host(case: Case) -> torch.Tensor:
    return paged_attention(
        case.queries, case.pool, LAYER, case.batch, scale=case.scale, latent_dim=case.shape.latent_dim
    )


def padded(case: Case) -> torch.Tensor:
    """The path that CUDA takes, on the CPU."""
    return attend_padded(
        case.queries, case.pool, LAYER, case.batch, scale=case.scale, latent_dim=case.shape.latent_dim
    )


PATHS = pytest.mark.parametrize("path", [on_host, padded])


def assert_equal(got: torch.Tensor, case: Case) -> None:
    tolerance = TOLERANCE[case.shape.dtype]
    assert got.dtype is case.shape.dtype
    torch.testing.assert_close(got.double(), case.expected(LAYER), atol=tolerance, rtol=tolerance)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    def queries_of(n_tokens: int) -> st.SearchStrategy[tuple[int, int]]:
        n_queries = st.one_of(st.just(1), st.just(n_tokens), st.integers(0, n_tokens))
        return n_queries.map(lambda n: (n_tokens, n))

    lengths = draw(st.lists(st.integers(1, 70).flatmap(queries_of), min_size=1, max_size=6))
    n_kv_heads = draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([8, 12, 16]))
    return Shape(
        lengths=lengths,
        block_tokens=draw(st.sampled_from([1, 3, 8, 16])),
        n_heads=n_kv_heads * draw(st.sampled_from([1, 2, 4])),
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        latent_dim=draw(st.one_of(st.none(), st.integers(1, head_dim))),
        seed=draw(st.integers(0, 2**16)),
    )


@PATHS
@settings(deadline=None, max_examples=80)
@given(shape=shapes())
def test_paged_equals_contiguous_attention(path: Callable[[Case], torch.Tensor], shape: Shape) -> None:
    case = make_case(shape)
    assert_equal(path(case), case)


@PATHS
def test_prefill_chunks_and_decodes_of_many_lengths_share_a_batch(path: Callable[[Case], torch.Tensor]) -> None:
    case = make_case(Shape(MIXED))
    assert_equal(path(case), case)


@PATHS
def test_a_chunk_longer_than_one_masked_call_is_cut_and_joined(path: Callable[[Case], torch.Tensor]) -> None:
    case = make_case(Shape([(700, 600), (30, 1)], block_tokens=16))
    assert_equal(path(case), case)


@PATHS
def test_sequences_that_do_not_fit_one_round_are_computed_in_several(
    path: Callable[[Case], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.attention.plan.GROUP_BYTES", 2_000)
    monkeypatch.setattr("tiered.attention.padded.GROUP_BYTES", 2_000)
    case = make_case(Shape([(n, 1) for n in (5, 6, 7, 30, 31, 32, 5, 6)]))
    assert_equal(path(case), case)


def test_decodes_of_similar_length_are_grouped_and_a_long_one_stays_alone() -> None:
    case = make_case(Shape([(40, 1), (41, 1), (400, 1), (42, 1)]))
    plan = case.batch.host_plan(block_tokens=4, token_bytes=128)
    assert [group.query_rows.tolist() for group in plan.decodes] == [[0, 1, 3], [2]]
    assert plan.long_decodes == ()


@pytest.mark.parametrize("latent_dim", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decode_too_long_to_be_gathered_at_once_is_merged_from_parts(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, latent_dim: int | None
) -> None:
    monkeypatch.setattr("tiered.attention.plan.GROUP_BYTES", 2_000)
    case = make_case(Shape([(401, 1), (7, 1), (333, 1)], dtype=dtype, latent_dim=latent_dim))
    assert_equal(on_host(case), case)
    assert case.batch._plan is not None
    assert [len(decode.parts) > 1 for decode in case.batch._plan[1].long_decodes] == [True, True]


def test_the_plan_is_made_once_for_all_layers() -> None:
    case = make_case(Shape(MIXED))
    first = case.batch.host_plan(block_tokens=4, token_bytes=128)
    assert case.batch.host_plan(block_tokens=4, token_bytes=128) is first
    assert case.batch.host_plan(block_tokens=8, token_bytes=128) is not first


@PATHS
def test_padding_of_the_batch_is_skipped(path: Callable[[Case], torch.Tensor]) -> None:
    case = make_case(Shape([(0, 0), (9, 1), (0, 0)]))
    assert_equal(path(case), case)


@PATHS
def test_a_batch_without_queries_gives_nothing(path: Callable[[Case], torch.Tensor]) -> None:
    assert path(make_case(Shape([(5, 0), (0, 0)]))).shape == (0, 4, 8)


def test_the_scale_follows_from_the_head_when_none_is_given() -> None:
    case = make_case(Shape(MIXED))
    got = paged_attention(case.queries, case.pool, LAYER, case.batch)
    assert_equal(got, replace(case, scale=1 / math.sqrt(8)))


@pytest.mark.parametrize("lengths", [MIXED, [(9, 1), (30, 1)]])
@pytest.mark.parametrize("latent_dim", [None, 6])
def test_the_path_for_cuda_never_reads_a_value_back_to_the_host(
    lengths: Sequence[tuple[int, int]], latent_dim: int | None
) -> None:
    """Tensors of the meta device have no values: an operation that needs one on the host raises."""
    case = make_case(Shape(lengths, latent_dim=latent_dim))
    batch = PagedBatch(*(t.to("meta") for t in (case.batch.block_table, case.batch.seq_lens, case.batch.query_lens)))
    got = paged_attention(
        case.queries.to("meta"), case.pool.to("meta"), LAYER, batch, scale=0.3, latent_dim=latent_dim
    )
    assert got.shape == (sum(n for _, n in lengths), 4, latent_dim or 8)
    with pytest.raises(RuntimeError, match="meta"):
        batch.seq_lens.tolist()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([(4, 5)], "5 queries at the end of 4 tokens"), ([(40, 1)], "in blocks for 12"), ([(4, -1)], "-1 queries")],
)
def test_lengths_that_do_not_fit_are_refused(lengths: Sequence[tuple[int, int]], message: str) -> None:
    table = torch.zeros((1, 3), dtype=torch.int64)
    case = make_case(Shape([(9, 1)]))
    batch = PagedBatch(table, *(torch.tensor([n]) for n in lengths[0]))
    with pytest.raises(ValueError, match=message):
        paged_attention(case.queries, case.pool, LAYER, batch)


def test_arguments_that_do_not_fit_are_refused_in_one_sentence() -> None:
    case = make_case(Shape([(9, 1)]))
    latent = make_case(Shape([(9, 1)], latent_dim=6))
    queries, pool, batch = case.queries, case.pool, case.batch
    refused: list[tuple[str, Callable[[], object]]] = [
        ("queries: there are 2", lambda: paged_attention(queries.repeat(2, 1, 1), pool, 0, batch)),
        ("multiple of 2", lambda: paged_attention(queries[:, :3], pool, 0, batch)),
        ("same float type", lambda: paged_attention(queries.bfloat16(), pool, 0, batch)),
        ("layer: 3 is not one of the pool's 3", lambda: paged_attention(queries, pool, 3, batch)),
        ("not a contiguous", lambda: paged_attention(queries, pool[:, :, :, ::2], 0, batch)),
        ("latent_dim: 6 for a pool of 2", lambda: paged_attention(queries, pool, 0, batch, latent_dim=6)),
        ("latent_dim: None for a pool of 1", lambda: paged_attention(latent.queries, latent.pool, 0, batch)),
        ("name the scale", lambda: paged_attention(latent.queries, latent.pool, 0, batch, latent_dim=6)),
        ("between 1 and", lambda: paged_attention(latent.queries, latent.pool, 0, batch, scale=1.0, latent_dim=9)),
        ("block_table: ", lambda: PagedBatch(torch.zeros(3), torch.ones(3), torch.ones(3))),
        ("query_lens: ", lambda: PagedBatch(torch.zeros(3, 1), torch.ones(3), torch.ones(2))),
        ("query_len_max: 0", lambda: make_case(Shape([(9, 1)]), query_len_max=0)),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
