"""Paged attention where it is meant to run: equal to contiguous attention, and without one host sync."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.unit.attention.reference import TOLERANCE, Case, Shape, make_case
from tiered.attention import PagedBatch, Run, paged_attention, run_attention, write_kv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LAYER = 1
MIXED = [(90, 1), (90, 90), (40, 1), (700, 300), (1, 1), (80, 1), (12, 0)]
DECODES = [(n, 1) for n in (1, 15, 16, 17, 300, 1000)]


@pytest.fixture
def no_sync() -> Iterator[None]:
    """An operation that waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_device(case: Case, *, query_len_max: int | None) -> tuple[torch.Tensor, torch.Tensor, PagedBatch]:
    batch = case.batch
    tensors = (batch.block_table.cuda(), batch.seq_lens.cuda(), batch.query_lens.cuda())
    return case.queries.cuda(), case.pool.cuda(), PagedBatch(*tensors, query_len_max=query_len_max)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n_heads", "n_kv_heads", "latent_dim"), [(9, 3, None), (4, 4, None), (8, 1, 48)])
@pytest.mark.parametrize(("lengths", "query_len_max"), [(MIXED, 300), (MIXED, None), (DECODES, 1)])
def test_paged_equals_contiguous_attention_without_a_host_sync(
    lengths: list[tuple[int, int]],
    query_len_max: int | None,
    n_heads: int,
    n_kv_heads: int,
    latent_dim: int | None,
    dtype: torch.dtype,
) -> None:
    case = make_case(Shape(lengths, 16, n_heads, n_kv_heads, 64, dtype, latent_dim))
    queries, pool, batch = on_device(case, query_len_max=query_len_max)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = paged_attention(queries, pool, LAYER, batch, scale=case.scale, latent_dim=latent_dim)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    tolerance = TOLERANCE[dtype] * 2
    torch.testing.assert_close(got.double().cpu(), case.expected(LAYER), atol=tolerance, rtol=tolerance)


def test_tokens_land_in_their_slots_and_padding_nowhere(no_sync: None) -> None:
    pool = torch.zeros(5, 3, 2, 4, 2, 8, device="cuda")
    keys, values = (torch.randn(4, 2, 8, device="cuda") for _ in range(2))
    slots = torch.arange(4, device="cuda") * 5 - 5  # -5, 0, 5, 10: the first is padding
    write_kv(pool, LAYER, slots, keys, values)
    torch.cuda.set_sync_debug_mode("default")
    expected = torch.zeros_like(pool)
    for token, slot in ((1, 0), (2, 5), (3, 10)):
        expected[slot // 4, LAYER, 0, slot % 4] = keys[token]
        expected[slot // 4, LAYER, 1, slot % 4] = values[token]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("n_queries", [1, 70])
def test_runs_in_several_pools_equal_contiguous_attention(n_queries: int) -> None:
    case = make_case(Shape([(200, n_queries)], block_tokens=16, dtype=torch.bfloat16, head_dim=64))
    queries, pool, batch = on_device(case, query_len_max=n_queries)
    ids = batch.block_table[0, :13]
    other = pool.index_select(0, ids[8:])
    runs = [Run(pool, ids[:8], 128), Run(other, torch.arange(5, device="cuda"), 72)]
    got = run_attention(queries, runs, LAYER, scale=case.scale)
    torch.testing.assert_close(got.double().cpu(), case.expected(LAYER), atol=4e-2, rtol=4e-2)
