"""Attention from a worker: a client without a pool sends tokens with their keys and values, and gets outputs back.

The worker keeps what it is sent, in blocks that equal prefixes share, and computes over them. Here keys, values,
queries and outputs cross the worker's socket, which costs a copy each; an engine on the same machine that can map the
pool uses ``tiered.client.remote`` instead. One request runs at a time; use one client for each thread.

Use::

    with AttentionClient.attach(socket_path, scope) as client:
        sequence = client.open(tenant)
        n_cached = sequence.reuse(prompt)                       # these need not be computed
        sequence.append(prompt[n_cached:], keys_values)         # of those tokens, all layers
        outputs = sequence.attend(layer, queries)               # queries of the last tokens
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Final, TypeVar

import numpy as np
import torch

from tiered.client.link import introduce
from tiered.errors import (
    CapacityError,
    ConfigError,
    OwnershipError,
    ProtocolError,
    ScopeMismatch,
    TieredError,
    TierUnavailable,
)
from tiered.hashing.chain import token_array
from tiered.hashing.scope import ModelScope, scope_id
from tiered.layout import KvLayout
from tiered.pool.pool import torch_dtype
from tiered.types import TenantId
from tiered.wire.connection import Connection, connect_unix
from tiered.wire.framing import ENGINE_REPLIES
from tiered.wire.messages import (
    FRAME_BYTES_MAX,
    Append,
    Appended,
    Attend,
    Attention,
    DropSequence,
    EngineReply,
    EngineRequest,
    Failure,
    Fork,
    OpenSequence,
    Reuse,
    SequenceChanged,
    SequenceOpened,
    Shared,
    Sharing,
    Truncate,
)

PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - (64 << 10)
"""Of tensors and tokens in one request: a frame less what stands around them."""

R = TypeVar("R")


class AttentionClient:
    """Attached to one worker. Whatever is refused is an error; the sequences are then as they were.

    Errors of every method: OwnershipError for a sequence that was dropped; CapacityError, which says who holds what;
    ValueError naming what does not fit; TierUnavailable or TierTimeout when the worker is gone, and with it the
    sequences.
    """

    def __init__(self, connection: Connection[EngineReply], scope: ModelScope, *, timeout_s: float) -> None:
        self.scope = scope
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    @classmethod
    def attach(
        cls, socket_path: str, scope: ModelScope, *, engine: str = "attention", timeout_s: float = 30.0
    ) -> AttentionClient:
        """Attach now. timeout_s: of one request, its computation included.

        Errors: LayoutMismatch; TierUnavailable or TierTimeout when no worker answers there.
        """
        sock = connect_unix(socket_path, timeout_s=timeout_s)
        connection: Connection[EngineReply] = Connection(sock, ENGINE_REPLIES, name=socket_path)
        client = cls(connection, scope, timeout_s=timeout_s)
        try:
            _, descriptor = introduce(connection, scope, engine=engine, timeout_s=timeout_s)
            if descriptor is not None:
                os.close(descriptor)  # the pool's memory, which this client does not map
        except BaseException:
            connection.close()
            raise
        return client

    @property
    def layout(self) -> KvLayout:
        return self.scope.layout

    def open(self, tenant: TenantId) -> AttentionSequence:
        """An empty sequence in the tenant's scope; it ends with drop, or with this client."""
        label = self.call(Sharing(tenant=tenant), Shared).label
        opened = self.call(OpenSequence(tenant=tenant, scope_id=scope_id(self.scope, label=label)), SequenceOpened)
        return AttentionSequence(self, opened.sequence, 0)

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        batch: Sequence[tuple[AttentionSequence, int]],
        *,
        scale: float | None = None,
        latent_dim: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of the last n tokens of each sequence, for a batch of (sequence, n).

        Shapes: queries is (total_queries, n_heads, head_dim), packed in the order of the batch, the layout's dtype.
                Returns (total_queries, n_heads, head_dim), or (total_queries, n_heads, latent_dim) for MLA, on the
                CPU.
        scale, latent_dim: as in :func:`tiered.attention.paged_attention`.
        """
        if queries.dim() != 3 or queries.dtype is not torch_dtype(self.layout):
            raise ValueError(
                f"queries: {queries.dtype} of shape {tuple(queries.shape)}, not {torch_dtype(self.layout)} of shape "
                f"(total_queries, n_heads, {self.layout.head_dim})"
            )
        _check_size("queries", queries.nbytes)
        request = Attend(
            sequences=tuple(sequence.sequence_id for sequence, _ in batch),
            query_lens=tuple(n_queries for _, n_queries in batch),
            layer=layer,
            n_heads=queries.shape[1],
            queries=_bytes(queries),
            scale=scale,
            latent_dim=latent_dim,
        )
        outputs = bytearray(self.call(request, Attention).outputs)
        shape = (*queries.shape[:2], latent_dim or queries.shape[2])
        if not outputs:
            return queries.new_empty(shape, device="cpu")
        return torch.frombuffer(outputs, dtype=queries.dtype).view(shape)

    def close(self) -> None:
        """Detach: the worker takes all sequences back."""
        self._connection.close()

    def __enter__(self) -> AttentionClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, request: EngineRequest, expected: type[R]) -> R:
        """One request and its reply; a refusal is raised as what it is."""
        with self._lock:
            reply = self._connection.call(request, timeout_s=self._timeout_s)
        return self._expect(reply, expected)

    def _expect(self, reply: EngineReply, expected: type[R]) -> R:
        if isinstance(reply, expected):
            return reply
        if isinstance(reply, Failure):
            raise self._refusal(reply)
        self._connection.close()
        raise ProtocolError(f"{self._connection.name}: {type(reply).__name__} where {expected.__name__} was due")

    def _refusal(self, failure: Failure) -> TieredError | ValueError:
        match failure.kind:
            case "capacity":
                return CapacityError(failure.message)
            case "lease":
                return OwnershipError(failure.message)
            case "request":
                return ValueError(failure.message)
            case "scope":
                return ScopeMismatch(failure.message)
            case "config":
                return ConfigError(failure.message)
            case _:
                return TierUnavailable(f"{self._connection.name}: {failure.message}")


class AttentionSequence:
    """One sequence in the worker. ``len`` is its number of tokens."""

    def __init__(self, client: AttentionClient, sequence_id: int, n_tokens: int) -> None:
        self.sequence_id = sequence_id
        self._client = client
        self._n_tokens = n_tokens

    def __len__(self) -> int:
        return self._n_tokens

    def reuse(self, tokens: Sequence[int]) -> int:
        """Append as many whole blocks of ``tokens`` as the worker has cached; returns how many tokens that are."""
        packed = token_array(tokens)
        _check_size("tokens", len(packed) * packed.itemsize)
        appended = self._client.call(Reuse(self.sequence_id, _little_endian(packed)), Appended)
        self._n_tokens = appended.n_tokens
        return appended.n_reused

    def append(self, tokens: Sequence[int], keys_values: torch.Tensor) -> int:
        """Append tokens with their keys and values; returns how many of them were cached already.

        Shapes: keys_values is (n_layers, n_planes, n_tokens, n_kv_heads, head_dim), the layout's dtype: keys, then
                values; for MLA one plane, the latent.
        What does not fit one message goes in several, without what is cached; where one of those is refused, all are
        taken back.
        """
        layout, packed = self._client.layout, token_array(tokens)
        shape = (layout.n_layers, layout.n_planes, len(packed), layout.n_kv_heads, layout.head_dim)
        if keys_values.shape != shape or keys_values.dtype is not torch_dtype(layout):
            raise ValueError(
                f"keys_values: {keys_values.dtype} of shape {tuple(keys_values.shape)}, not {torch_dtype(layout)} of "
                f"shape {shape}"
            )
        _check_size("keys_values of one token", layout.token_bytes + packed.itemsize)
        step = PAYLOAD_BYTES_MAX // (layout.token_bytes + packed.itemsize)
        n_before = self._n_tokens
        n_cached = self.reuse(packed) if len(packed) > step else 0
        for first in range(n_cached, len(packed), step):
            part = slice(first, first + step)
            request = Append(self.sequence_id, _little_endian(packed[part]), _bytes(keys_values[:, :, part]))
            try:
                appended = self._client.call(request, Appended)
            except (CapacityError, ValueError):
                if self._n_tokens > n_before:
                    self.truncate(n_before)
                raise
            self._n_tokens = appended.n_tokens
            n_cached += appended.n_reused
        return n_cached

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        *,
        scale: float | None = None,
        latent_dim: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of the last ``len(queries)`` tokens. Shapes: as :meth:`AttentionClient.attend`."""
        return self._client.attend(layer, queries, [(self, len(queries))], scale=scale, latent_dim=latent_dim)

    def fork(self) -> AttentionSequence:
        """A second sequence of the same tokens; a block is copied only when one of them writes into it."""
        opened = self._client.call(Fork(self.sequence_id), SequenceOpened)
        return AttentionSequence(self._client, opened.sequence, self._n_tokens)

    def truncate(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens``."""
        self._client.call(Truncate(self.sequence_id, n_tokens), SequenceChanged)
        self._n_tokens = n_tokens

    def drop(self) -> None:
        """Give everything back; blocks that are whole stay cached."""
        self._client.call(DropSequence(self.sequence_id), SequenceChanged)


def _check_size(name: str, n_bytes: int) -> None:
    if n_bytes > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{name}: {n_bytes} bytes are more than the {PAYLOAD_BYTES_MAX} of one message")


def _little_endian(tokens: array[int]) -> bytes:
    return np.frombuffer(tokens, dtype=np.uint32).astype("<u4").tobytes()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
