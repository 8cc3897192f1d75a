"""A load on the Redis tier while something is done to its servers: nothing may raise, no byte may be wrong."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from tests.support.content import SCOPE, right_bytes
from tests.support.redis_server import block_hash
from tiered.codec.frame import checksum_of
from tiered.config import RedisSettings
from tiered.errors import TierError
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.types import BlockHash, TenantId

RED = TenantId("red")
SCOPE_ID = b"s" * 32
BYTES = SCOPE.layout.block_bytes


def put(tier: RedisTier, hashes: list[BlockHash], tenant: TenantId = RED) -> list[PutAnswer]:
    blocks = [
        ToStore(h, tenant, depth, memoryview(right_bytes(h, BYTES)), None, parent=hashes[depth - 1] if depth else b"")
        for depth, h in enumerate(hashes)
    ]
    return tier.put(blocks, scope_id=SCOPE_ID, layout=SCOPE.layout)


def get(tier: RedisTier, hashes: list[BlockHash], tenant: TenantId = RED) -> list[bool]:
    """Which were hits; a hit with wrong bytes fails the test."""
    wanted = [Wanted(h, memoryview(bytearray(BYTES))) for h in hashes]
    checksums = tier.get(wanted, scope_id=SCOPE_ID, tenant=tenant, layout=SCOPE.layout)
    for item, checksum in zip(wanted, checksums, strict=True):
        if checksum is not None:
            assert item.out == right_bytes(item.block_hash, BYTES)
            assert checksum == checksum_of(item.out)
    return [checksum is not None for checksum in checksums]


def named(*names: object) -> list[BlockHash]:
    return [block_hash(name) for name in names]


class Load:
    """Threads that put, look up and get until told to stop; nothing of that may raise or give wrong bytes."""

    def __init__(self, settings: RedisSettings, n_threads: int = 3) -> None:
        self.stored = 0
        self.hits = 0
        self._settings = settings
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(n_threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, seed: int) -> None:
        choose, mine = random.Random(seed), named((seed, "first"))
        try:
            with closing(RedisTier(self._settings)) as tier:
                while not self._stop.is_set():
                    fresh = named(*((seed, len(mine) + i) for i in range(4)))
                    answers = put(tier, fresh)
                    mine += fresh
                    self.stored += sum(answer is PutAnswer.STORED for answer in answers)
                    some = choose.sample(mine, min(8, len(mine)))
                    with suppress(TierError):  # its one way to say that nobody knows
                        tier.lookup(some)
                    self.hits += sum(get(tier, some))
        except BaseException as error:
            self._errors.append(error)


def works_again(settings: RedisSettings) -> Callable[[], bool]:
    """Whether blocks of every partition are stored and come back."""
    names = iter(range(10_000))

    def works() -> bool:
        hashes = named(*((settings.namespace, next(names)) for _ in range(4 * settings.partitions)))
        with closing(RedisTier(settings)) as tier:
            return put(tier, hashes) == [PutAnswer.STORED] * len(hashes) and all(get(tier, hashes))

    return works


def quick(settings: RedisSettings) -> RedisSettings:
    """With the deadlines that are the defaults, or shorter."""
    return settings.model_copy(
        update={"lookup_timeout_s": 0.2, "control_timeout_s": 1.0, "value_timeout_s": 1.0, "breaker_open_s": 0.2}
    )
