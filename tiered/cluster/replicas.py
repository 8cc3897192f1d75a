"""Replicas behind the servers: how many follow, and whether one of them has what was written.

Owns the asking of both. WAIT speaks of what its own connection wrote last, and a server's writes reach its replicas
in one order; so a small write of our own goes ahead of it on the same connection, and once a replica has that, it has
all that was written before, on whichever connection.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, Final

from tiered.clock import Clock
from tiered.cluster.connection import Client, pipelined
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Command
from tiered.errors import TierError
from tiered.types import BlockHash

FOLLOWING_S: Final = 5.0
"""For how long it holds how many replicas there are."""

WAIT_MS: Final = 100
"""For a replica to have it, in all: what is written next waits meanwhile, and no request does."""

LAGGING_S: Final = 1.0
"""After a wait in vain, for as long nobody waits: it is only looked whether the replica has caught up."""

_MARK_TTL_MS: Final = 60_000


class Replicas:
    """For any number of threads. timeout_s: the client's own, which a wait takes half of at most."""

    def __init__(self, client: Client, keys: Keys, clock: Clock, *, timeout_s: float) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._wait_ms = min(WAIT_MS, round(timeout_s * 500))
        self._lock = threading.Lock()
        self._fewest = 0
        self._read_again_at = float("-inf")
        self._lagging_until = float("-inf")

    def fewest(self) -> int:
        """Replicas in step behind the server that has fewest; 0 too while a server does not say.

        Errors: TierError when the only server does not answer.
        """
        now = self._clock.now()
        with self._lock:
            if now < self._read_again_at:
                return self._fewest
            self._read_again_at = now + FOLLOWING_S  # one thread asks, the others go by what was known
        keys = [part.replicated() for part in self._keys.every()]
        replies = pipelined(self._client, [Command(("INFO", "replication"), key) for key in keys])
        self._fewest = min(_in_step(reply) for reply in replies)
        return self._fewest

    def have(self, hashes: Collection[BlockHash]) -> bool:
        """Whether a replica of each server concerned has what was written of these blocks up to now, waiting for it
        WAIT_MS at most. Raises nothing: no answer is a no."""
        parts = list({self._keys.of(block_hash) for block_hash in hashes})
        is_lagging = self._clock.now() < self._lagging_until
        # One after the other, where they are on one server.
        wait_ms = 1 if is_lagging else max(1, self._wait_ms // max(1, len(parts)))
        marks = [Command(("SET", key, 1, "PX", _MARK_TTL_MS), key) for part in parts if (key := part.replicated())]
        waits = [Command(("WAIT", 1, wait_ms), mark.key) for mark in marks]
        try:
            replies = pipelined(self._client, [*marks, *waits])
        except TierError:
            return False
        marked, counts = replies[: len(marks)], replies[len(marks) :]
        # Without a write of its own a connection is told of replicas that have nothing of this.
        was_marked = not any(isinstance(reply, Exception) for reply in marked)
        have = was_marked and all(isinstance(count, int) and count >= 1 for count in counts)
        if not have and not is_lagging:
            self._lagging_until = self._clock.now() + LAGGING_S
        return have


def _in_step(reply: Any) -> int:
    """Of an INFO reply, as redis-py parses it: replicas that are connected and have caught up once."""
    if not isinstance(reply, dict):
        return 0
    followers = (value for name, value in reply.items() if name.startswith("slave") and name[5:].isdigit())
    return sum(isinstance(follower, dict) and follower.get("state") == "online" for follower in followers)
