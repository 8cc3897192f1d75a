"""What is to be cleared out of every pool and out of Redis: the requests, until they are done.

A request stands for a while: every worker sees it and takes out of its pool what was there when it first did, and
Redis is cleared a second time at the end, for what was on its way down. How a pool is cleared is the worker's
business, how Redis is :mod:`tiered.cluster.clearing`'s.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tiered.cluster.clearing import clear_prefix, clear_scope
from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.types import BlockHash, TenantId

STANDING_MAX: Final = 1_000
"""Requests at once; more are refused, since every worker reads them all."""

What = Literal["tenant", "prefix", "scope"]


class ClearRequest(msgspec.Struct, frozen=True):
    """name: the tenant, or the hash of a block or the id of a scope in hex."""

    what: What
    name: str


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(ClearRequest)


class Clears:
    """The shared record of requests. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def ask(self, request: ClearRequest) -> int | None:
        """The request's number, which grows; None while too many stand."""
        standing: int = command(self._client, "HLEN", self._keys.clears())
        if standing >= STANDING_MAX:
            return None
        number: int = command(self._client, "INCR", self._keys.clear_numbers())
        command(self._client, "HSET", self._keys.clears(), number, _ENCODER.encode(request))
        return number

    def standing(self) -> dict[int, ClearRequest]:
        """Those that are not done, by number; one that does not decode, such as a later version's, asks nothing."""
        entries: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.clears())
        found = {}
        for number, text in sorted(entries.items(), key=lambda entry: int(entry[0])):
            try:
                found[int(number)] = _DECODER.decode(text)
            except msgspec.MsgspecError:
                continue
        return found

    def done(self, number: int) -> None:
        command(self._client, "HDEL", self._keys.clears(), number)

    def clear_redis(self, request: ClearRequest) -> int:
        """How many blocks the Redis tier let go of."""
        if request.what == "tenant":
            return RedisLedger(self._client, self._keys).clear(TenantId(request.name))
        name = bytes.fromhex(request.name)
        if request.what == "prefix":
            return clear_prefix(self._client, self._keys, BlockHash(name))
        return clear_scope(self._client, self._keys, name)
