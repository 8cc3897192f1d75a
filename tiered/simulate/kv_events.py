"""vLLM's KV-event logs as requests: what can be told of the traffic from which blocks an engine stored.

One JSON document a line, each an ``EventBatch`` as vLLM publishes it: ``{"ts": s, "events": [...]}`` with events
``{"type": "BlockStored", "block_hashes": [...], "parent_block_hash": ..., "block_size": ...}``, or the arrays that
older versions send, ``[ts, [["BlockStored", hashes, parent, token_ids, block_size, ...]], rank]``.

A ``BlockStored`` names new blocks and the block they hang on, so a request's path is the ancestors of that block and
then its own. An engine stores a prompt in chunks and an answer block by block: what continues the end of a path
within CONTINUES_S is the same request, later it is the next turn of the conversation. So

- what the engine's own cache hit is seen only as ancestors of what it stored; a request that stored nothing is not
  seen at all, which makes ratios too low;
- blocks of answers cannot be told from those of prompts, and count as asked for, also too low;
- what was stored before the log began has no ancestors in it: such a path begins at the first block that any line
  names.

Removals say what that engine's cache could not keep, and nothing of what was asked for; they are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

CONTINUES_S: Final = 2.0
"""A chunk of a prompt or 16 tokens of an answer take less, a person or a tool before the next turn mostly more."""

GPU: Final = "GPU"
"""The medium of the engine's own pool; what an offloading tier below it stores is not asked for again."""

_STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
)
"""In the order of the older arrays."""
_KINDS: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")

Hash = int | str


class _Batch(msgspec.Struct):
    ts: float
    events: list[dict[str, Any] | list[Any]]
    data_parallel_rank: int | None = None


class _BatchArray(_Batch, array_like=True):
    pass


class _Stored(msgspec.Struct):
    block_hashes: list[Hash]
    block_size: int
    parent_block_hash: Hash | None = None
    medium: str | None = None
    group_idx: int | None = None
    lora_id: int | None = None
    lora_name: str | None = None


@dataclass(slots=True)
class Seen:
    """One request, as far as the log shows it. blocks: numbers given to the hashes in order of appearance."""

    arrival_s: float
    block_tokens: int
    fields: dict[str, Any]
    where: str
    tip: int
    """The last block it has stored, at ``last_s``."""
    last_s: float
    blocks: list[int] = field(default_factory=list)


def is_event_log(line: bytes) -> bool:
    """Whether a file that begins with this line is one."""
    try:
        first = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(first, list) or (isinstance(first, dict) and "events" in first)


def read_events(lines: Iterable[tuple[str, bytes]]) -> Iterator[Seen]:
    """Requests by the time of their first block. lines: each with where it stands.

    Errors: ValueError naming where, for what is no batch of events.
    """
    log = _Log()
    for where, line in lines:
        try:
            log.take(_batch(line), where)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"{where}: {error}; expected a batch of vLLM's KV events with ts and events") from None
    for seen in sorted(log.requests, key=lambda seen: seen.arrival_s):
        seen.blocks = log.path(seen)
        yield seen


def _batch(line: bytes) -> _Batch:
    document = msgspec.json.decode(line)
    return msgspec.convert(document, _BatchArray if isinstance(document, list) else _Batch)


@dataclass(slots=True)
class _Log:
    requests: list[Seen] = field(default_factory=list)
    _numbers: dict[Hash, int] = field(default_factory=dict)
    _parents: dict[int, int] = field(default_factory=dict)
    """Of each block for which any line names one; the first holds, so that a block has one path wherever it comes."""
    _open: dict[tuple[int | None, int], Seen] = field(default_factory=dict)
    """Requests by engine rank and the last block they have stored."""

    def take(self, batch: _Batch, where: str) -> None:
        for event in batch.events:
            kind, fields = _event(event)
            if kind == "BlockStored":
                self._store(batch, msgspec.convert(fields, _Stored), where)
            elif kind == "AllBlocksCleared":
                self._open.clear()

    def path(self, request: Seen) -> list[int]:
        """Its last block and all before it, from the first on. Errors: ValueError where that leads in a circle."""
        path: dict[int, None] = {}
        block: int | None = request.tip
        while block is not None:
            if block in path:
                raise ValueError(f"{request.where}: parent_block_hash leads back to the block itself")
            path[block] = None
            block = self._parents.get(block)
        return list(path)[::-1]

    def _store(self, batch: _Batch, stored: _Stored, where: str) -> None:
        if (stored.medium or GPU) != GPU or stored.group_idx:
            return  # a copy below, or another layer group's blocks of the same tokens
        if stored.block_size < 1:
            raise ValueError(f"block_size {stored.block_size} is not a number of tokens")
        if not stored.block_hashes:
            raise ValueError("BlockStored names no block_hashes")
        parent = stored.parent_block_hash
        names = [*([] if parent is None else [parent]), *stored.block_hashes]
        if len(set(names)) != len(names):
            raise ValueError("a block comes twice among block_hashes and parent_block_hash")
        blocks = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        for above, block in pairwise(blocks):
            self._parents.setdefault(block, above)
        request = None if parent is None else self._open.pop((batch.data_parallel_rank, blocks[0]), None)
        if request is None or batch.ts - request.last_s > CONTINUES_S:
            fields = _fields(batch, stored)
            request = Seen(batch.ts, stored.block_size, fields, where, blocks[-1], batch.ts)
            self.requests.append(request)
        request.tip, request.last_s = blocks[-1], batch.ts
        self._open[batch.data_parallel_rank, request.tip] = request


def _event(event: Mapping[str, Any] | Sequence[Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(event, Mapping):
        kind, fields = event.get("type"), dict(event)
    else:
        kind = event[0] if event else None
        fields = dict(zip(_STORED_FIELDS, event[1:], strict=False))
    if kind not in _KINDS:
        raise ValueError(f"an event of type {kind!r} is none of {', '.join(_KINDS)}")
    return str(kind), fields


def _fields(batch: _Batch, stored: _Stored) -> dict[str, Any]:
    values = {"rank": batch.data_parallel_rank, "lora_id": stored.lora_id, "lora_name": stored.lora_name}
    return {name: value for name, value in values.items() if value is not None}
