"""PagedBatch: the sequences of one step, where their tokens lie and which queries are whose.

Owns the shapes and, for the CPU, the plan that all layers of a step share. Refuses to know what attention is.
"""

from __future__ import annotations

import torch

from tiered.attention.plan import HostPlan, make_plan


class PagedBatch:
    """One step of a batch; the same for every layer, so build it once and pass it to each.

    The queries of the batch are packed: those of sequence 0 first, then those of sequence 1. They are the last tokens
    of their sequence: one in a decode step, as many as there are new tokens in a prefill chunk, and both may share a
    batch. A sequence without queries is skipped, which is also how a batch is padded.

    Shapes: block_table is (batch, max_blocks), int32 or int64; what stands after a sequence's last block is not read.
            seq_lens and query_lens are (batch,), int32 or int64; seq_lens includes the queries, whose keys and values
            have been written.
    query_len_max: no query_lens is larger. On CUDA it shapes the work, because a length is never read back to the
            host: pass it, 1 for decode. Without it the number of packed queries is taken, which is always enough.
    The tensors lie on the pool's device, and must not change while the batch is in use.
    """

    def __init__(
        self,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        query_lens: torch.Tensor,
        *,
        query_len_max: int | None = None,
    ) -> None:
        if block_table.dim() != 2 or block_table.shape[1] < 1:
            raise ValueError(f"block_table: its shape is {tuple(block_table.shape)}, not (batch, max_blocks)")
        for name, lengths in (("seq_lens", seq_lens), ("query_lens", query_lens)):
            if lengths.shape != block_table.shape[:1]:
                raise ValueError(f"{name}: its shape is {tuple(lengths.shape)}, not ({block_table.shape[0]},)")
        if query_len_max is not None and query_len_max < 1:
            raise ValueError(f"query_len_max: {query_len_max} is not at least 1")
        self.block_table = block_table.long()
        self.seq_lens = seq_lens.long()
        self.query_lens = query_lens.long()
        self.query_len_max = query_len_max
        self._plan: tuple[tuple[int, int], HostPlan] | None = None

    def __len__(self) -> int:
        return self.block_table.shape[0]

    def host_plan(self, *, block_tokens: int, token_bytes: int) -> HostPlan:
        """The CPU's plan of the step, made at the first layer. token_bytes: of one token in one layer.

        Errors: ValueError for lengths that do not fit each other or the table.
        """
        geometry = (block_tokens, token_bytes)
        if self._plan is None or self._plan[0] != geometry:
            plan = make_plan(
                self.block_table,
                self.seq_lens.tolist(),
                self.query_lens.tolist(),
                block_tokens=block_tokens,
                token_bytes=token_bytes,
            )
            self._plan = (geometry, plan)
        return self._plan[1]
