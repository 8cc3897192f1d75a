"""Small traces: one request from its blocks, and random trees of prefixes."""

from __future__ import annotations

import random

from tiered.simulate.trace import Request


def request(*blocks: int, at: float = 0.0, **fields: object) -> Request:
    return Request(arrival_s=at, blocks=blocks, block_tokens=1, output_tokens=0, fields=dict(fields))


def random_tree(seed: int, n_requests: int, *, branches: int = 3, depth: int = 5, tenants: int = 1) -> list[Request]:
    """Requests that are paths from the root of one random tree of block ids; the field ``who`` names a tenant."""
    rng = random.Random(seed)
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    for at in range(n_requests):
        path = tuple(rng.randrange(branches) for _ in range(rng.randint(1, depth)))
        blocks = (ids.setdefault(path[: i + 1], len(ids)) for i in range(len(path)))
        requests.append(request(*blocks, at=float(at), who=f"t{rng.randrange(tenants)}"))
    return requests
