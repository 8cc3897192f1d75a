"""Writes new tokens' keys and values into their slots.

A slot is ``block_id * block_tokens + offset``. Owns the scatter; which slots may be written is the caller's business.
"""

from __future__ import annotations

import torch

from tiered.attention.paged import check_pool


def write_kv(
    pool: torch.Tensor,
    layer: int,
    slot_mapping: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor | None,
) -> None:
    """Put token i's keys and values of one layer into slot ``slot_mapping[i]``; a negative slot is padding.

    Shapes: slot_mapping is (n_tokens,), int32 or int64, no slot twice. keys and values are (n_tokens, n_kv_heads,
            head_dim), pool dtype; values is None for a pool of one plane, whose latent is given as keys.
    Errors: ValueError for shapes or dtypes that do not fit; IndexError on the CPU for a slot beyond the pool. The
            pool is then unchanged.
    Cost:   no host sync on CUDA.
    """
    check_pool(pool, layer)
    n_planes, block_tokens, *token = pool.shape[2:]
    planes = [keys] if values is None else [keys, values]
    if len(planes) != n_planes:
        raise ValueError(f"values: {len(planes)} planes for a pool of {n_planes}; leave them out only for one plane")
    for name, plane in zip(("keys", "values"), planes, strict=False):
        if plane.shape != (len(slot_mapping), *token) or plane.dtype is not pool.dtype:
            raise ValueError(
                f"{name}: {plane.dtype} of shape {tuple(plane.shape)}, not {pool.dtype} of "
                f"{(len(slot_mapping), *token)}"
            )
    if not len(slot_mapping):
        return
    slots = slot_mapping.long()
    if pool.device.type == "cpu":
        real = slots >= 0
        if not bool(real.all()):
            slots, planes = slots[real], [plane[real] for plane in planes]
        n_slots = len(pool) * block_tokens
        if len(slots) and int(slots.max()) >= n_slots:
            raise IndexError(f"slot_mapping: {int(slots.max())} is beyond the pool's {n_slots} slots")
        rows = _rows(pool, layer, slots)
    else:
        rows, planes = redirect_padding(pool, layer, slots, planes)
    tokens = _copyable(pool.view(-1, *token))
    for index, source in enumerate(planes):
        tokens.index_copy_(0, rows + index * block_tokens, _copyable(source))


def redirect_padding(
    pool: torch.Tensor, layer: int, slots: torch.Tensor, planes: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Rows and sources where padding writes some real token a second time: dropping it would need the host to count.

    When all is padding, every row writes slot 0's own content back.
    """
    real = slots >= 0
    any_real = real.any()
    stand_in = real.long().argmax()
    picked = torch.where(real, torch.arange(len(slots), device=slots.device), stand_in)
    rows = _rows(pool, layer, slots.index_select(0, picked).clamp(min=0))
    block_tokens = pool.shape[3]
    tokens = pool.view(-1, *pool.shape[4:])
    sources = []
    for index, plane in enumerate(planes):
        own = tokens.index_select(0, rows[:1] + index * block_tokens)
        sources.append(torch.where(any_real, plane.index_select(0, picked), own))
    return rows, sources


def _rows(pool: torch.Tensor, layer: int, slots: torch.Tensor) -> torch.Tensor:
    """Where the first plane of each slot stands in the pool seen as a run of tokens."""
    _, n_layers, n_planes, block_tokens, *_ = pool.shape
    return ((slots // block_tokens * n_layers + layer) * n_planes) * block_tokens + slots % block_tokens


def _copyable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory under a dtype that torch can copy by index; on the CPU it cannot for float8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
