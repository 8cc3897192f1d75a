"""TieredCache: a transformers cache over block tables, for ``generate`` as it is.

Owns the rows of a batch, the tokens they hold, and what of them is stored when. Refuses to know where a prefix comes
from: :mod:`tiered.connectors.transformers.attach` brings it.

Where the pool is in this process, the rows lie in it; they move to memory of their own when it has no room for them.
With a worker they lie in memory of their own, so that nothing that happens to it changes an answer.

Layers keep every token, also those beyond a sliding window, because whoever continues the prompt elsewhere needs
them; a windowed layer shows attention the window only, like transformers' own caches.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from transformers.cache_utils import Cache

from tiered.client.port import CacheClient, Saved
from tiered.client.sequences import SequenceHandle
from tiered.connectors.transformers.dispatch import reads_blocks
from tiered.connectors.transformers.given import Given
from tiered.connectors.transformers.layers import TieredLayer
from tiered.connectors.transformers.own import OwnBlocks
from tiered.connectors.transformers.pooled import PooledRows, SequenceClient
from tiered.connectors.transformers.rows import Rows, Writes
from tiered.connectors.transformers.step import Step
from tiered.core.allocate import Shortfall, answer
from tiered.errors import OutOfBlocks
from tiered.hashing.chain import Extras
from tiered.types import NO_HINTS, BlockId, Hints, Source, TenantId

if TYPE_CHECKING:
    from tiered.pool.pool import BlockPool


class TieredCache(Cache):
    """KV of a batch. Made by :func:`tiered.connectors.transformers.tiered_cache`; used by one thread.

    Between forwards all layers hold the same columns. A forward that failed in the middle has written nothing.
    """

    def __init__(
        self,
        client: CacheClient,
        model: Any,
        *,
        windows: Sequence[int | None],
        tenant: TenantId,
        extras: Extras | None = None,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.hit_tokens: list[dict[Source, int]] = []
        """Of each prompt, the tokens that were not computed, by where they were found."""
        self._client = client
        self._model = model
        self._tenant, self._extras, self._hints = tenant, extras, hints
        self._rows: Rows | PooledRows = self._fresh_rows()
        self._tokens: torch.Tensor | None = None
        self._prompt_columns = 0
        self._looked_up = False
        self._unstorable = ""
        self._step: Step | None = None
        self._announced: torch.Tensor | None = None
        self._in_place = False
        self._began_at: float | None = None
        super().__init__(layers=[TieredLayer(self, layer, window) for layer, window in enumerate(windows)])

    # What the prefix brings.

    def begin(
        self,
        ids: torch.Tensor,
        paddings: Sequence[int],
        columns: int,
        pool: BlockPool | None,
        tables: Sequence[Sequence[BlockId]],
    ) -> int:
        """Rows that start with ``columns`` of a prompt, or fewer; how many.

        tables: of each row, the pool's blocks of its tokens among the first ``columns``; whole, and pinned until this
                returns.
        """
        self._rows.begin(paddings)
        if pool is not None and any(tables):
            columns = self._take_over(ids, columns, pool, tables)
        self._rows.cut(columns)
        self._tokens = ids[:, :columns].to(self._model.device)
        self._prompt_columns = ids.shape[1]
        self._looked_up = True
        return columns

    def _take_over(
        self, ids: torch.Tensor, columns: int, pool: BlockPool, tables: Sequence[Sequence[BlockId]]
    ) -> int:
        rows = self._rows
        if isinstance(rows, PooledRows):
            tokens = [of_row[padding:] for of_row, padding in zip(ids.tolist(), rows.paddings, strict=True)]
            try:
                return rows.take_over(tokens, [len(table) for table in tables], columns)
            except OutOfBlocks:  # they were gone before they could be pinned once more
                return 0
        for row, blocks in zip(rows.rows, rows.own.copy_tables(pool, tables), strict=True):
            row.blocks = blocks
        return columns

    @property
    def n_blocks(self) -> int:
        """Blocks that its rows hold; one that several share counts once."""
        return self._rows.n_blocks

    @property
    def in_pool(self) -> bool:
        """Whether its rows lie in the pool."""
        return isinstance(self._rows, PooledRows)

    def _fresh_rows(self) -> Rows | PooledRows:
        client, pool, device = self._client, self._client.pool, self._model.device
        if not isinstance(client, SequenceClient) or pool is None or torch.device(pool.device) != device:
            return Rows(OwnBlocks(client.layout, device=device))
        tenant, extras = self._tenant, self._extras  # not the cache itself: it is to be collected when nobody has it

        def open_sequence() -> SequenceHandle:
            return client.open_sequence(tenant=tenant, extras=extras, is_private=True)

        rows = PooledRows(pool, open_sequence)
        weakref.finalize(self, rows.forget).atexit = False
        return rows

    def _leave_pool(self) -> None:
        """Go on in memory of its own."""
        if isinstance(self._rows, PooledRows):
            self._rows = self._rows.moved_to(OwnBlocks(self._client.layout, device=self._model.device))

    # What the model does.

    def given(self, given: Given) -> int:
        """A forward begins: see :func:`tiered.connectors.transformers.given.listen`.

        Errors: ValueError for what cannot follow, in this cache, what it holds.
        """
        self._abandon()
        if not self._looked_up and not self._rows.columns:
            self._rows.begin(given.paddings())
            self._tokens = None
            self._prompt_columns = given.n_columns
        copies, rest = divmod(given.n_rows, len(self._rows))
        if rest:
            raise ValueError(f"input_ids: {given.n_rows} rows for a cache of {len(self._rows)}; reset it first")
        left_out = self._known_already(given, copies)
        fresh = given.without_first(left_out) if left_out else given
        self._rows.pad(given.paddings()[::copies])
        paddings = [padding for padding in self._rows.paddings for _ in range(copies)]
        fresh.check(first_column=self._rows.columns, paddings=paddings)
        self._announce(fresh, copies)
        return left_out

    def _known_already(self, given: Given, copies: int) -> int:
        """Columns that are given again, as assisted decoding does with the whole prompt at first."""
        columns = self._rows.columns
        start = given.starts_at(columns)
        n_again = columns - start
        if start < 0 or not 0 <= n_again < given.n_columns:
            raise ValueError(
                f"input_ids: columns {start} to {start + given.n_columns} do not continue a cache of {columns}"
            )
        if n_again and not self._same(given.ids, start, n_again, copies):
            raise ValueError("input_ids: they begin with other tokens than this cache holds; make a new one")
        return n_again

    def _same(self, ids: torch.Tensor | None, start: int, n_columns: int, copies: int) -> bool:
        if ids is None or self._tokens is None:
            return False
        held = self._tokens[:, start : start + n_columns].repeat_interleave(copies, 0).to(ids.device)
        shown = torch.arange(start, start + n_columns, device=ids.device) >= torch.tensor(
            [padding for padding in self._rows.paddings for _ in range(copies)], device=ids.device
        ).unsqueeze(1)
        return not bool(((ids[:, :n_columns] != held) & shown).any())

    def _announce(self, given: Given, copies: int) -> None:
        if given.ids is None:
            self._unstorable = "the model was given embeddings, whose tokens are not known"
        elif given.others and not (self._extras and self._extras.items):
            self._unstorable = f"the model was given {given.others[0]}, which tokens alone do not tell of"
        ids = given.ids
        if ids is None:
            ids = torch.zeros((given.n_rows, given.n_columns), dtype=torch.int64)
        ids = ids.to(self._model.device)
        grouped = ids.view(len(self._rows), copies, -1)
        if copies > 1 and (given.ids is None or not bool((grouped == grouped[:, :1]).all())):
            self._repeat(copies)  # not copies of one prompt after all: each row writes its own
            copies = 1
        writes = self._reserve(ids, copies)
        if copies > 1 and self._tokens is not None:
            self._tokens = self._tokens.repeat_interleave(copies, 0)
        self.hit_tokens = [hit for hit in self.hit_tokens for _ in range(copies)]
        self._step = Step(self._rows, writes, given.n_columns)
        self._announced = ids
        self._in_place = reads_blocks(self._model)
        self._began_at = time.perf_counter()

    def _reserve(self, ids: torch.Tensor, copies: int) -> Writes:
        if self._unstorable:  # tokens are what a sequence in the pool is known by
            self._leave_pool()
        if isinstance(self._rows, PooledRows):
            try:
                return self._rows.reserve(ids.shape[1], ids, copies=copies)
            except OutOfBlocks:
                self._leave_pool()
        assert isinstance(self._rows, Rows)
        return self._rows.reserve(ids.shape[1], copies=copies)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Step:
        step = self._step
        if step is None or layer in step.written or keys.shape[::2] != (step.n_rows, step.n_columns):
            raise ValueError(
                "past_key_values: a tiered cache serves the model that it was made for, called as a whole"
            )
        step.write(layer, keys, values)
        if len(step.written) == len(self.layers):
            self._finish(step)
        return step

    def _finish(self, step: Step) -> None:
        assert self._announced is not None
        assert self._began_at is not None
        took_s = time.perf_counter() - self._began_at
        tokens = [self._announced] if self._tokens is None else [self._tokens, self._announced]
        self._tokens = torch.cat(tokens, dim=1)
        self._rows.finish(step.after)
        self._step = None
        if step.n_columns > 1 and self._tokens.device.type == "cpu":  # elsewhere the work has only been queued
            self._client.note_prefill(n_tokens=step.n_queries, took_s=took_s)

    def _abandon(self) -> None:
        """Forget a forward that did not reach the last layer."""
        if self._step is not None:
            self._step = None
            self._rows.cut(self._rows.columns)

    # What attention reads.

    @property
    def in_place(self) -> bool:
        return self._in_place

    @property
    def columns(self) -> int:
        """Those that every layer holds: what a forward writes counts when its last layer has written."""
        return self._rows.columns

    # What generate does with rows.

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Forks: the rows share their blocks, and copy the open one when they write into it."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._abandon()
        self._repeat(repeats)

    def _repeat(self, repeats: int) -> None:
        self._rows.repeat(repeats)
        self.hit_tokens = [hit for hit in self.hit_tokens for _ in range(repeats)]
        if self._tokens is not None:
            self._tokens = self._tokens.repeat_interleave(repeats, 0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._abandon()
        picked = indices.nonzero().flatten() if indices.dtype is torch.bool else indices
        chosen = picked.tolist()
        if chosen == list(range(len(self._rows))):
            return
        self._rows.select(chosen)
        self.hit_tokens = [self.hit_tokens[row] for row in chosen] if self.hit_tokens else []
        if self._tokens is not None:
            self._tokens = self._tokens.index_select(0, picked.to(self._tokens.device))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last columns. A positive number is how many to keep, as it was before transformers 5."""
        self._abandon()
        columns = self._rows.columns
        keep = columns + tokens_to_remove if tokens_to_remove <= 0 else min(columns, tokens_to_remove)
        self._rows.cut(max(0, keep))
        if self._tokens is not None:
            self._tokens = self._tokens[:, : self._rows.columns]

    def reset(self) -> None:
        """Empty, for another batch of any shape; nothing is looked up for it."""
        self._step = self._tokens = None
        self._rows.clear()
        if not self.in_pool:
            self._rows = self._fresh_rows()
        self._unstorable, self._looked_up = "", False
        self.hit_tokens = []

    # What is stored.

    def save(self) -> list[Saved]:
        """Store the full blocks of every row's tokens, prompt and answer; what became of each row.

        Only tokens that the model was seen to be given are stored, under their hashes. The last token of an answer is
        never computed, so it is not among them; nor is what ``generate`` fills up an answer with that ended early.
        """
        self._abandon()
        if self._unstorable:
            return [Saved(reason=self._unstorable, answer=f"refused: {self._unstorable}") for _ in self._rows.rows]
        return [self._save_row(index) for index in range(len(self._rows))]

    def _save_row(self, index: int) -> Saved:
        if self._tokens is None:
            return Saved()
        row = self._rows.rows[index]
        tokens = self._tokens[index, row.padding :].tolist()
        n_prompt = max(0, self._prompt_columns - row.padding)
        n_answer = self._answer_tokens(tokens[n_prompt:])
        kept = tokens[: n_prompt + n_answer]
        own, shared = self._rows.own, Saved()
        if isinstance(self._rows, PooledRows):  # the save finds them, and tells policies of them
            shared = self._rows.share(index, len(kept))

        def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            own.copy_out(row.blocks[first_index : first_index + len(block_ids)], pool, block_ids)

        saved = self._client.save(
            kept,
            tenant=self._tenant,
            fill=fill,
            extras=self._extras,
            hints=msgspec.structs.replace(self._hints, output_tokens=n_answer),
        )
        return _joined(shared, saved, self._tenant) if shared.n_stored else saved

    def _answer_tokens(self, answer: Sequence[int]) -> int:
        pad = getattr(getattr(self._model, "generation_config", None), "pad_token_id", None)
        n_tokens = len(answer)
        while pad is not None and n_tokens and answer[n_tokens - 1] == pad:
            n_tokens -= 1
        return n_tokens

    def close(self) -> None:
        """Give the memory back without storing anything; the cache is then empty, and still says what it had hit."""
        hit_tokens = self.hit_tokens
        self.reset()
        self.hit_tokens = hit_tokens

    def __enter__(self) -> TieredCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save, unless the ``with`` failed, and close."""
        try:
            if error is None:
                self.save()
        finally:
            self.close()


def _joined(shared: Saved, saved: Saved, tenant: TenantId) -> Saved:
    """Of one row: what was shared where it lay, then what was stored after it."""
    gave = dict(Counter(shared.gave) + Counter(saved.gave))
    return replace(
        saved,
        n_stored=shared.n_stored + saved.n_stored,
        first_index=shared.first_index,
        gave=gave,
        answer=answer(tenant, Shortfall(saved.reason or Shortfall.NONE), gave),
    )
