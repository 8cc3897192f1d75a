"""The calls of a HiCache storage backend, as SGLang makes them, over a :class:`PageStore`.

Owns SGLang's conventions: what is counted from the front, what is False, which argument may be missing. No SGLang is
imported; ``storage`` makes this the class that SGLang loads. A page is True only if its bytes are the right ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import torch

from tiered.connectors.sglang.clients import Attach, Clients, attach_to_worker
from tiered.connectors.sglang.engine import ExtraInfo, HostPool, StorageConfig
from tiered.connectors.sglang.identity import Naming, scope_of
from tiered.connectors.sglang.lineage import Lineage
from tiered.connectors.sglang.pages import Page, PageMemory
from tiered.connectors.sglang.settings import read_settings
from tiered.connectors.sglang.store import PageStore
from tiered.connectors.sglang.tally import Moved, Tally
from tiered.errors import ConfigError
from tiered.log import get_logger
from tiered.types import TenantId

OWN_POOL: Final = "kv"

_log = get_logger("tiered.sglang")


@dataclass(slots=True)
class _Rank:
    """What there is once there is memory to copy from and to."""

    memory: PageMemory
    store: PageStore
    clients: Clients
    load_timeout_s: float
    reads: Tally
    writes: Tally

    def read(self, keys: Sequence[str], pages: Sequence[Page], before: str | None) -> int:
        """keys: as many as pages."""
        began = time.monotonic()
        n_read = self.store.read(self.clients.read, keys, pages, before=before, deadline_s=self.load_timeout_s)
        self.reads.add(n_read, time.monotonic() - began)
        return n_read

    def write(self, keys: Sequence[str], pages: Sequence[Page], before: str | None) -> int:
        """keys: as many as pages."""
        began = time.monotonic()
        n_written = self.store.write(self.clients.write, keys, pages, before=before)
        self.writes.add(n_written, time.monotonic() - began)
        return n_written

    def flat_pages(self, keys: Sequence[str], tensors: Sequence[torch.Tensor | None]) -> list[Page]:
        """Of each key its tensor's; those before the first that is no page. None at all unless each key has one."""
        found = [self.memory.flat_page(tensor) for tensor in tensors] if len(tensors) == len(keys) else []
        return [page for page in takewhile(lambda page: page is not None, found) if page is not None]


class Backend:
    """One rank's. Built before there is memory to copy from: until :meth:`register` nothing is found or kept.

    Errors: ConfigError for settings that cannot be.
    """

    def __init__(self, config: StorageConfig, *, attach: Attach = attach_to_worker) -> None:
        if getattr(config, "dcp_size", 1) > 1:
            raise ConfigError(
                "sglang: decode context parallelism is not supported; run without it or without storage"
            )
        self.settings = read_settings(config.extra_config or {})
        self._config = config
        self._attach = attach
        self._lineage = Lineage()
        self._rank: _Rank | None = None

    def register(self, pool: HostPool) -> None:
        """Attach to the worker. Errors: ConfigError for a pool that cannot be kept; LayoutMismatch."""
        self.close()
        config = self._config
        scope = scope_of(config, pool, self.settings)
        memory = PageMemory(pool, scope.layout)
        store = PageStore(
            TenantId(self.settings.tenant),
            page_tokens=pool.page_size,
            naming=Naming(config.attn_cp_rank, config.attn_cp_size),
            is_counted=config.tp_rank == config.pp_rank == config.attn_cp_rank == 0,
        )
        page_bytes = scope.layout.block_bytes
        self._rank = _Rank(
            memory,
            store,
            self._attach(self.settings.socket, scope),
            load_timeout_s=self.settings.load_timeout_s,
            reads=Tally(page_bytes),
            writes=Tally(page_bytes),
        )
        _log.info("serving pages", socket=self.settings.socket, model=scope.model, layout=scope.layout.describe())

    def require_one_pool(self, pools: Sequence[str]) -> None:
        """Errors: ConfigError where the model keeps more than its KV in pages."""
        others = sorted(set(pools) - {OWN_POOL})
        if others:
            raise ConfigError(
                f"sglang: this model keeps {', '.join(others)} beside its KV, which cannot be stored; run it without "
                "--hicache-storage-backend"
            )

    # Questions.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: ExtraInfo | None = None) -> int:
        """How many of the first keys are there."""
        self._lineage.note(keys, _prefix_of(extra_info))
        rank = self._rank
        return rank.store.present(rank.clients.query, keys) if rank and keys else 0

    # Pages in the host pool.

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: ExtraInfo | None = None
    ) -> list[bool]:
        before = self._lineage.note(keys, _prefix_of(extra_info))
        rank = self._rank
        pages = rank.memory.pages(host_indices, len(keys)) if rank else []
        return _first(rank.read(keys, pages, before) if rank and pages else 0, len(keys))

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: ExtraInfo | None = None
    ) -> list[bool]:
        before = self._lineage.note(keys, _prefix_of(extra_info))
        rank = self._rank
        pages = rank.memory.pages(host_indices, len(keys)) if rank else []
        return _first(rank.write(keys, pages, before) if rank and pages else 0, len(keys))

    # Pages that are tensors of their own.

    def get(self, key: str, target: torch.Tensor | None = None) -> torch.Tensor | None:
        """target: what to fill; a new page when left out."""
        if target is None and self._rank is not None:
            target = self._rank.memory.pool.get_dummy_flat_data_page()
        return self.batch_get([key], [target])[0]

    def batch_get(
        self, keys: Sequence[str], targets: Sequence[torch.Tensor | None] | None
    ) -> list[torch.Tensor | None]:
        """The filled targets; None from the first page that is not there."""
        before = self._lineage.note(keys)
        rank, targets = self._rank, targets or ()
        pages = rank.flat_pages(keys, targets) if rank else []
        n_read = rank.read(keys[: len(pages)], pages, before) if rank and pages else 0
        return [*targets[:n_read], *[None] * (len(keys) - n_read)]

    def set(self, key: str, value: torch.Tensor | None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(self, keys: Sequence[str], values: Sequence[torch.Tensor | None] | None) -> bool:
        """Whether all of them are stored."""
        before = self._lineage.note(keys)
        rank = self._rank
        whole = [
            None if value is None else value.contiguous() for value in values or ()
        ]  # held until they are copied
        pages = rank.flat_pages(keys, whole) if rank else []
        return rank is not None and len(pages) == len(keys) == rank.write(keys, pages, before)

    # The rest of its life.

    def clear(self) -> None:
        """From now on this rank finds nothing of what was stored before; it leaves as others' blocks need room."""
        if self._rank is not None:
            self._rank.store.forget()
            _log.info("cleared", tenant=self.settings.tenant)

    def moved(self) -> tuple[Moved, Moved]:
        """Pages read and pages written, since the last call."""
        if self._rank is None:
            return Moved([], []), Moved([], [])
        return self._rank.reads.take(), self._rank.writes.take()

    def close(self) -> None:
        """Calls that are under way end in their time; later ones find nothing."""
        rank, self._rank = self._rank, None
        if rank is not None:
            rank.store.close()
            rank.clients.close()


def _prefix_of(extra_info: ExtraInfo | None) -> Sequence[str] | None:
    return None if extra_info is None else extra_info.prefix_keys


def _first(n_true: int, n: int) -> list[bool]:
    return [True] * n_true + [False] * (n - n_true)
