"""What SGLang 0.5.23 hands to a HiCache storage backend and asks of it, restated: configuration, host pools, threads.

Host pools hold real memory in the layouts that SGLang has. The right bytes of a page are known from its key alone.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

import torch

BATCH_PAGES: Final = 128
"""The most pages of one read or write."""


@dataclass
class HiCacheConfig:
    """``HiCacheStorageConfig``."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "test-model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = field(default_factory=lambda: {"weights_version": "1"})
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


@dataclass(frozen=True)
class ExtraInfo:
    """``HiCacheStorageExtraInfo``."""

    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


class HostPool:
    """Keys and values of one size. ``sizes_as_int``: some pools name one size for all buffers."""

    planes = 2

    def __init__(
        self,
        *,
        n_pages: int = 64,
        page_size: int = 4,
        layer_num: int = 2,
        head_num: int = 2,
        head_dim: int = 8,
        dtype: torch.dtype = torch.bfloat16,
        layout: str = "page_first",
        sizes_as_int: bool = False,
    ) -> None:
        self.page_size, self.layer_num, self.head_num, self.head_dim = page_size, layer_num, head_num, head_dim
        self.v_head_dim = head_dim
        self.dtype, self.layout = dtype, layout
        self.size, self.page_num = n_pages * page_size, n_pages
        self.kv_buffer = torch.zeros(self._shape(), dtype=dtype)
        self._sizes_as_int = sizes_as_int
        self._free = list(range(n_pages))
        self._lock = threading.Lock()

    def _shape(self) -> tuple[int, ...]:
        layers, heads, dim, page = self.layer_num, self.head_num, self.head_dim, self.page_size
        return {
            "layer_first": (2, layers, self.size, heads, dim),
            "page_first": (2, self.size, layers, heads, dim),
            "page_first_direct": (2, self.page_num, layers, page, heads, dim),
            "page_head": (2, self.page_num, heads, page, layers, dim),
        }[self.layout]

    @property
    def page_bytes(self) -> int:
        return self.get_dummy_flat_data_page().numel() * self.dtype.itemsize

    def _page(self, index: int) -> torch.Tensor:
        if self.layout == "layer_first":
            return self.kv_buffer[:, :, index : index + self.page_size]
        if self.layout == "page_first":
            return self.kv_buffer[:, index : index + self.page_size]
        return self.kv_buffer[:, index // self.page_size : index // self.page_size + 1]

    def get_data_page(self, index: int) -> torch.Tensor:
        return self._page(int(index)).flatten()

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        n = self.planes * self.layer_num * self.page_size * self.head_num * self.head_dim
        return torch.zeros(n, dtype=self.dtype)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        page = self._page(int(index))
        page.copy_(data_page.view(page.shape))

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int] | int]:
        row = self.head_num * self.head_dim * self.dtype.itemsize
        start, plane_bytes = self.kv_buffer.data_ptr(), self.kv_buffer.numel() * self.dtype.itemsize // self.planes
        addresses = []
        per_layer = self.layout == "layer_first"
        for index in indices.tolist()[:: self.page_size]:
            for layer in range(self.layer_num) if per_layer else (0,):
                at = (
                    start + index * row + layer * self.size * row
                    if per_layer
                    else start + index * row * self.layer_num
                )
                addresses += [at + plane * plane_bytes for plane in range(self.planes)]
        n_bytes = row * self.page_size * (1 if per_layer else self.layer_num)
        return addresses, n_bytes if self._sizes_as_int else [n_bytes] * len(addresses)

    def take(self, n_pages: int) -> torch.Tensor:
        """Token slots of so many pages, in no order."""
        with self._lock:
            pages = [self._free.pop(random.randrange(len(self._free))) for _ in range(n_pages)]
        return torch.tensor([page * self.page_size + i for page in pages for i in range(self.page_size)])

    def give(self, indices: torch.Tensor) -> None:
        with self._lock:
            self._free += [index // self.page_size for index in indices.tolist()[:: self.page_size]]


class LatentPool(HostPool):
    """One latent instead of keys and values."""

    planes = 1

    def __init__(self, *, kv_cache_dim: int = 12, layout: str = "page_first", **geometry: Any) -> None:
        self.kv_cache_dim = kv_cache_dim
        super().__init__(layout=layout, head_num=1, head_dim=kv_cache_dim, **geometry)

    def _shape(self) -> tuple[int, ...]:
        return {
            "layer_first": (1, self.layer_num, self.size, 1, self.kv_cache_dim),
            "page_first": (1, self.size, self.layer_num, 1, self.kv_cache_dim),
            "page_first_direct": (1, self.page_num, self.layer_num, self.page_size, 1, self.kv_cache_dim),
        }[self.layout]


def page_keys(name: object, n_pages: int, *, prefix: Sequence[str] = ()) -> list[str]:
    """Keys of a made-up prompt after ``prefix``, chained as SGLang's are."""
    keys, link = [], prefix[-1] if prefix else ""
    for index in range(n_pages):
        link = hashlib.sha256(f"{link}|{name}|{index}".encode()).hexdigest()
        keys.append(link)
    return keys


def right_page(pool: HostPool, key: str) -> torch.Tensor:
    """The flat page of this key; no two keys have the same."""
    content = hashlib.shake_128(key.encode()).digest(pool.page_bytes)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(pool.dtype)


def fill(pool: HostPool, indices: torch.Tensor, keys: Sequence[str]) -> None:
    for key, index in zip(keys, indices.tolist()[:: pool.page_size], strict=True):
        pool.set_from_flat_data_page(index, right_page(pool, key))


def same_bits(page: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(page.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def wrong_pages(pool: HostPool, indices: torch.Tensor, keys: Sequence[str]) -> list[int]:
    """Of the keys, those whose page does not hold every bit it should."""
    slots = indices.tolist()[:: pool.page_size]
    return [
        n
        for n, (key, slot) in enumerate(zip(keys, slots, strict=False))
        if not same_bits(pool.get_data_page(slot), right_page(pool, key))
    ]


class Storage(Protocol):
    """What the controller calls."""

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int: ...

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]: ...

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]: ...

    def batch_get(self, keys: list[str], targets: Any, /) -> list[torch.Tensor | None]: ...

    def batch_set(self, keys: list[str], values: Any, /) -> bool: ...


class FaultInjector:
    """As SGLang's: a random delay before each call, and some calls fail before they reach the backend."""

    def __init__(self, backend: Storage, *, delay_s: float, failure: float, seed: int = 0) -> None:
        self._backend = backend
        self._delay_s, self._failure = delay_s, failure
        self._random = random.Random(seed)
        self._pause = threading.Event()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._backend, name)
        failed: dict[str, Callable[[list[str]], Any]] = {
            "batch_exists": lambda keys: 0,
            "batch_get_v1": lambda keys: [False] * len(keys),
            "batch_set_v1": lambda keys: [False] * len(keys),
            "batch_get": lambda keys: [None] * len(keys),
            "batch_set": lambda keys: False,
        }

        def faulty(keys: list[str], *arguments: Any) -> Any:
            self._pause.wait(self._random.uniform(0, self._delay_s))
            return failed[name](keys) if self._random.random() < self._failure else call(keys, *arguments)

        return faulty


@dataclass
class Request:
    """A prompt: pages that SGLang has itself, then those that it asks storage for. cancelled: while it is read."""

    prefix: list[str]
    keys: list[str]
    cancelled: threading.Event = field(default_factory=threading.Event)
    hit: int = 0
    read: int = 0
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class Backup:
    prefix: list[str]
    keys: list[str]
    written: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class Controller:
    """Asks, reads and writes as the threads of one rank's cache controller do, each with a queue of its own.

    pass_prefix: as ``hicache_storage_pass_prefix_keys``; a request that begins at its first page names no prefix even
    then. Every page that is said to be right is compared bit by bit; ``wrong`` names what was not.
    """

    def __init__(self, storage: Storage, pool: HostPool, *, zero_copy: bool = True, pass_prefix: bool = True) -> None:
        self.storage, self.pool = storage, pool
        self.wrong: list[str] = []
        self._zero_copy, self._pass_prefix = zero_copy, pass_prefix
        self._queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(3)]
        self._stopped = threading.Event()
        works = (self._query, self._read, self._write)
        self._threads = [
            threading.Thread(target=self._serve, args=pair, daemon=True)
            for pair in zip(self._queues, works, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def prefetch(self, keys: list[str], *, prefix: Sequence[str] = ()) -> Request:
        request = Request(list(prefix), keys)
        self._queues[0].put(request)
        return request

    def backup(self, keys: list[str], *, prefix: Sequence[str] = ()) -> Backup:
        backup = Backup(list(prefix), keys)
        self._queues[2].put(backup)
        return backup

    def close(self) -> None:
        """Joins the threads as a detach does."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread does not end within 10 s: SGLang refuses to detach"

    def _serve(self, queue: SimpleQueue[Any], work: Callable[[Any], None]) -> None:
        while not self._stopped.is_set():
            try:
                item = queue.get(timeout=0.05)
            except Empty:
                continue
            try:
                work(item)
            except Exception as error:  # as the controller does; here it is a failure
                self.wrong.append(f"{type(error).__name__}: {error}")
                item.done.set()

    def _info(self, prefix: list[str] | None) -> ExtraInfo:
        return ExtraInfo(prefix if self._pass_prefix and prefix else None)

    def _query(self, request: Request) -> None:
        request.hit = self.storage.batch_exists(request.keys, self._info(request.prefix))
        if not 0 <= request.hit <= len(request.keys):
            self.wrong.append(f"{request.hit} of {len(request.keys)} pages are there")
        self._queues[1].put(request)

    def _read(self, request: Request) -> None:
        keys, prefix = request.keys[: request.hit], list(request.prefix) if request.prefix else None
        for start in range(0, len(keys), BATCH_PAGES):
            batch = keys[start : start + BATCH_PAGES]
            if request.cancelled.is_set():
                break
            n_read = self._read_batch(batch, prefix)
            request.read += n_read
            if n_read < len(batch):
                break
            prefix = None if prefix is None else prefix + batch
        request.done.set()

    def _read_batch(self, batch: list[str], prefix: list[str] | None) -> int:
        indices = self.pool.take(len(batch))
        try:
            if self._zero_copy:
                answers = self.storage.batch_get_v1(batch, indices, self._info(prefix))
                if len(answers) != len(batch):
                    self.wrong.append(f"{len(answers)} answers for {len(batch)} pages")
                n_read = answers.index(False) if False in answers else len(answers)
            else:
                n_read = 0
                for n, page in enumerate(
                    self.storage.batch_get(batch, [self.pool.get_dummy_flat_data_page() for _ in batch])
                ):
                    if page is None:
                        break
                    self.pool.set_from_flat_data_page(int(indices[n * self.pool.page_size]), page)
                    n_read += 1
            self.wrong += [batch[n] for n in wrong_pages(self.pool, indices, batch[:n_read])]
            return n_read
        finally:
            self.pool.give(indices)

    def _write(self, backup: Backup) -> None:
        prefix = list(backup.prefix) if self._pass_prefix else None
        for start in range(0, len(backup.keys), BATCH_PAGES):
            batch = backup.keys[start : start + BATCH_PAGES]
            indices = self.pool.take(len(batch))
            try:
                fill(self.pool, indices, batch)
                if self._zero_copy:
                    is_stored = all(self.storage.batch_set_v1(batch, indices, self._info(prefix)))
                else:
                    slots = indices.tolist()[:: self.pool.page_size]
                    is_stored = self.storage.batch_set(batch, [self.pool.get_data_page(slot) for slot in slots])
            finally:
                self.pool.give(indices)
            if not is_stored:
                break
            prefix = None if prefix is None else prefix + batch
            backup.written += len(batch)
        backup.done.set()
