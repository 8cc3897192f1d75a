"""Requests as vLLM has them, and a cache that answers when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tiered.client.port import Voucher
from tiered.connectors.vllm.asks import Ask
from tiered.connectors.vllm.lookups import Lookup, Promise
from tiered.connectors.vllm.orders import PinnedBlocks, Shard
from tiered.connectors.vllm.requests import RequestOptions, Requests
from tiered.connectors.vllm.tally import Tally
from tiered.types import BlockId, Source, TenantId

BLOCK = 4
SHARD = Shard(0, 0)
ASK = Ask(TenantId("acme"), None)


@dataclass
class FakeRequest:
    """Its tokens are 0, 1, 2, ... unless given."""

    request_id: str
    n_prompt: int = 18
    all_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    cache_salt: str | None = None
    session_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    lora_request: Any = None
    mm_features: Sequence[Any] = ()
    prompt_embeds: Any = None
    skip_reading_prefix_cache: bool = False
    resumable: bool = False

    def __post_init__(self) -> None:
        self.all_token_ids = self.all_token_ids or list(range(self.n_prompt))
        self.num_prompt_tokens = len(self.all_token_ids)
        self.prompt_token_ids: list[int] | None = list(self.all_token_ids)


@dataclass
class Settled:
    used_tokens: int
    own_tokens: int


class FakeLookups:
    """Lookups that a test answers. ``is_there`` False: nobody to ask."""

    def __init__(self) -> None:
        self.asked: list[Lookup] = []
        self.settled: dict[int, Settled] = {}
        self.is_there = True
        self.now = 0.0

    def submit(self, ask: Ask, tokens: Sequence[int], *, is_counted: bool) -> Lookup | None:
        if not self.is_there:
            return None
        self.asked.append(Lookup(ask, tokens, is_counted, self.now))
        return self.asked[-1]

    def settle(self, lookup: Lookup, *, used_tokens: int, own_tokens: int) -> None:
        assert id(lookup) not in self.settled, "a lookup's pins are given back once"
        self.settled[id(lookup)] = Settled(used_tokens, own_tokens)

    def answer(self, n_blocks: int, *, which: int = -1, source: Source = Source.HOT, first_slot: int = 100) -> None:
        lookup = self.asked[which]
        slots = tuple(BlockId(first_slot + i) for i in range(n_blocks))
        pinned = PinnedBlocks(Voucher(b"pool", 1, len(self.asked)), slots, (None,) * n_blocks)
        lookup.promise = Promise((source,) * n_blocks, {SHARD: pinned}, made_at=self.now)
        lookup.answered.set()

    def settled_as(self, which: int = -1) -> Settled | None:
        return self.settled.get(id(self.asked[which]))

    @property
    def n_open(self) -> int:
        """Lookups whose pins nobody has given back."""
        return len(self.asked) - len(self.settled)


@dataclass
class Desk:
    """A scheduler's side with a cache that answers at once when ``n_cached`` is set."""

    lookups: FakeLookups
    requests: Requests
    tally: Tally

    @classmethod
    def open(cls, *, on_store: Callable[[Any, Any], None] = lambda order, request: None, **options: Any) -> Desk:
        lookups, tally = FakeLookups(), Tally()
        made = Requests(lookups, RequestOptions(block_tokens=BLOCK, **options), tally, on_store=on_store)
        return cls(lookups, made, tally)

    def arrive(self, request: FakeRequest, *, n_cached: int | None = None, now: float = 0.0) -> FakeRequest:
        self.lookups.now = now
        self.requests.arrived(request, ASK, now=now)
        if n_cached is not None:
            self.lookups.answer(n_cached)
        return request


def lora(name: str, path: str, *, number: int = 1, load_inplace: bool = False) -> Any:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path, load_inplace=load_inplace)


def image(identifier: str, offset: int, length: int) -> Any:
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))
