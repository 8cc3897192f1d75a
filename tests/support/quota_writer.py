"""A process that stores blocks of one tenant as fast as it can: ``python -m tests.support.quota_writer SETTINGS SEED
N``, with the settings as JSON.

It begins when its standard input is closed, so that many of them begin together, and prints how many blocks it
stored.
"""

from __future__ import annotations

import random
import sys
from contextlib import closing

from tests.support.redis_server import block_hash
from tiered.cluster.agreement import keys_of
from tiered.cluster.connection import command, connect
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.config import RedisSettings
from tiered.types import TenantId

SIZE = 1_000
TENANT = TenantId("red")


def main(settings: RedisSettings, seed: int, n_batches: int) -> int:
    choose, keys, stored = random.Random(seed), keys_of(settings), 0
    with closing(connect(settings, timeout_s=10.0)) as client:
        ledger = RedisLedger(client, keys)
        sys.stdin.read()
        for _ in range(n_batches):
            hashes = [block_hash(choose.randrange(2_000)) for _ in range(4)]
            answers = ledger.reserve([ReserveRequest(h, TENANT, SIZE, 0) for h in hashes], ttl_s=60)
            mine = [(h, TENANT, SIZE) for h, answer in zip(hashes, answers, strict=True) if answer.reserved]
            for block, _, _ in mine:
                command(client, "SET", keys.of(block).block(block), b"x" * SIZE, "NX", "PX", 60_000)
            stored += sum(ledger.commit(mine))
    return stored


if __name__ == "__main__":
    print(main(RedisSettings.model_validate_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
