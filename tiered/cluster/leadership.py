"""Who leads among the coordinators: one lease in Redis, and a token for each reign that fences late writes.

Owns the leader's key and the last token given out. When to ask, and when to stop believing in an old answer, is the
replica's own decision: the lease is the server's time to live, and no clock is compared with another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from tiered.cluster.calls import Call, load, run
from tiered.cluster.connection import Client
from tiered.cluster.keys import Keys

_LEAD: Final = load("lead")


@dataclass(frozen=True, slots=True)
class Leader:
    """One reign. replica: the name of one life of one coordinator. lease_left_s: when it was asked."""

    token: int
    replica: str
    url: str
    lease_left_s: float


class Leadership:
    """The shared record of who leads. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def ask(self, replica: str, url: str, *, lease_s: float) -> Leader:
        """Take the lease if nobody has it, lengthen it if it is ours; who leads now, us or another."""
        leader = self._call("ask", replica, url, max(1, round(lease_s * 1000)))
        assert leader is not None  # whoever asks while nobody leads does
        return leader

    def look(self) -> Leader | None:
        """Who leads; changes nothing."""
        return self._call("look")

    def resign(self, replica: str) -> None:
        """End our lease, so that nobody waits for it to lapse; another's is left alone."""
        self._call("resign", replica)

    def _call(self, what: str, replica: str = "", url: str = "", lease_ms: int = 0) -> Leader | None:
        call = Call([self._keys.leader(), self._keys.leader_tokens()], [what, replica, url, lease_ms])
        token, *rest = cast(list[int | bytes], run(self._client, _LEAD, [call])[0])
        if not token:
            return None
        name, address, left_ms = cast(tuple[bytes, bytes, int], tuple(rest))
        return Leader(int(token), name.decode(), address.decode(), left_ms / 1000)
