"""New tokens land in their slots and nowhere else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiered.attention import write_kv
from tiered.attention.write import redirect_padding

BLOCKS, LAYERS, TOKENS, HEADS, DIM = 5, 3, 4, 2, 8
LAYER = 1


def make_pool(n_planes: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape = (BLOCKS, LAYERS, n_planes, TOKENS, HEADS, DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def new_tokens(n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, HEADS, DIM).to(dtype), torch.randn(n, HEADS, DIM).to(dtype)


def written_one_by_one(pool: torch.Tensor, slots: list[int], *planes: torch.Tensor) -> torch.Tensor:
    pool = pool.clone()
    for token, slot in enumerate(slots):
        for index, plane in enumerate(planes):
            if slot >= 0:
                pool[slot // TOKENS, LAYER, index, slot % TOKENS] = plane[token]
    return pool


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@given(
    slots=st.lists(st.integers(0, BLOCKS * TOKENS - 1), unique=True), padding=st.integers(0, 3), at=st.integers(0, 9)
)
def test_tokens_land_in_their_slots_and_padding_nowhere(slots: list[int], padding: int, at: int) -> None:
    slots[at:at] = [-1] * padding
    pool, (keys, values) = make_pool(), new_tokens(len(slots))
    expected = written_one_by_one(pool, slots, keys, values)
    write_kv(pool, LAYER, torch.tensor(slots, dtype=torch.int64), keys, values)
    assert torch.equal(pool, expected)


@given(slots=st.lists(st.integers(-1, BLOCKS * TOKENS - 1), min_size=1, unique_by=lambda slot: slot))
def test_redirected_padding_changes_nothing_more(slots: list[int]) -> None:
    """What CUDA does with padding, which it cannot leave out without asking the device how much there is."""
    slots = [*slots, -1]
    pool, (keys, values) = make_pool(), new_tokens(len(slots))
    expected = written_one_by_one(pool, slots, keys, values)
    rows, sources = redirect_padding(pool, LAYER, torch.tensor(slots), [keys, values])
    for plane, source in enumerate(sources):
        pool.view(-1, HEADS, DIM).index_copy_(0, rows + plane * TOKENS, source)
    assert torch.equal(pool, expected)


def test_no_value_is_read_back_to_the_host_on_a_device() -> None:
    keys, values = (t.to("meta") for t in new_tokens(3))
    write_kv(make_pool().to("meta"), LAYER, torch.zeros(3, dtype=torch.int64, device="meta"), keys, values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_every_dtype_a_pool_has_is_copied_bit_for_bit(dtype: torch.dtype) -> None:
    pool, (keys, values) = make_pool(dtype=dtype), new_tokens(3, dtype)
    write_kv(pool, LAYER, torch.tensor([7, 0, 19]), keys, values)
    for token, slot in enumerate((7, 0, 19)):
        block, offset = divmod(slot, TOKENS)
        assert torch.equal(bits(pool[block, LAYER, 0, offset]), bits(keys[token]))
        assert torch.equal(bits(pool[block, LAYER, 1, offset]), bits(values[token]))


def test_a_latent_is_written_as_keys_alone() -> None:
    pool, (latent, _) = make_pool(1), new_tokens(2)
    expected = written_one_by_one(pool, [9, 3], latent)
    write_kv(pool, LAYER, torch.tensor([9, 3]), latent, None)
    assert torch.equal(pool, expected)


def test_what_does_not_fit_is_refused_and_the_pool_unchanged() -> None:
    pool, (keys, values) = make_pool(), new_tokens(2)
    before, slots = pool.clone(), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="values: 1 planes for a pool of 2"):
        write_kv(pool, LAYER, slots, keys, None)
    with pytest.raises(ValueError, match=r"values: torch\.float32 of shape"):
        write_kv(pool, LAYER, slots, keys, values[:1])
    with pytest.raises(ValueError, match=r"keys: torch\.bfloat16"):
        write_kv(pool, LAYER, slots, keys.bfloat16(), values.bfloat16())
    with pytest.raises(IndexError, match="slot_mapping: 20 is beyond the pool's 20 slots"):
        write_kv(pool, LAYER, torch.tensor([0, BLOCKS * TOKENS]), keys, values)
    assert torch.equal(pool, before)
