"""One sequence over several pools is one sequence over one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.attention.reference import TOLERANCE, Case, Shape, make_case
from tiered.attention import Run, run_attention

LAYER = 2


def split(case: Case, n_first_blocks: int) -> list[Run]:
    """The case's one sequence with its first blocks in one pool and the others in a second."""
    n_tokens, block_tokens = case.shape.lengths[0][0], case.shape.block_tokens
    ids = case.batch.block_table[0, : -(-n_tokens // block_tokens)]
    first = Run(case.pool, ids[:n_first_blocks], n_first_blocks * block_tokens)
    other = case.pool.index_select(0, ids[n_first_blocks:])
    rest = Run(other, torch.arange(len(other)), n_tokens - first.n_tokens)
    return [first, rest]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), n_tokens=st.integers(1, 50), latent_dim=st.sampled_from([None, 5]))
def test_runs_in_several_pools_equal_contiguous_attention(
    data: st.DataObject, n_tokens: int, latent_dim: int | None
) -> None:
    n_queries = data.draw(st.integers(1, n_tokens))
    n_first_blocks = data.draw(st.integers(0, (n_tokens - 1) // 4))
    case = make_case(Shape([(n_tokens, n_queries)], latent_dim=latent_dim))
    runs = split(case, n_first_blocks)
    got = run_attention(case.queries, runs[not n_first_blocks :], LAYER, scale=case.scale, latent_dim=latent_dim)
    tolerance = TOLERANCE[case.shape.dtype]
    torch.testing.assert_close(got.double(), case.expected(LAYER), atol=tolerance, rtol=tolerance)


def test_runs_that_do_not_fit_together_are_refused() -> None:
    case = make_case(Shape([(10, 1)]))
    first, rest = split(case, 2)
    with pytest.raises(ValueError, match="needs at least one"):
        run_attention(case.queries, [], LAYER)
    with pytest.raises(ValueError, match="only the last may end within a block"):
        run_attention(case.queries, [rest, first], LAYER)
    with pytest.raises(ValueError, match="13 tokens do not fit"):
        run_attention(case.queries, [first, Run(rest.pool, rest.block_ids, 5)], LAYER)
