"""Whether engines should attach here, which is what ``/readyz`` answers.

Ready: the socket is served, no drain was asked for, and this node is a member of the cluster, or would be if Redis
answered. Redis itself is left out: without it a worker is fenced once its lease has lapsed and shares nothing, but
serves the engines beside it as before, and no other worker is better off.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered.types import NO_EPOCH, Epoch


@dataclass(frozen=True, slots=True)
class Readiness:
    """epoch: NO_EPOCH before this node has joined, and while its lease has lapsed."""

    serves_engines: bool
    drains: bool
    epoch: Epoch
    redis_connected: bool

    def refusal(self) -> tuple[str, str] | None:
        """What is missing, and a sentence; None when engines should attach."""
        if not self.serves_engines:
            return "socket", "the worker stops, and has let its engines go"
        if self.drains:
            return "drain", "the node was asked to drain and keeps nothing new; tiered drain --cancel calls it off"
        if self.epoch == NO_EPOCH and self.redis_connected:
            return "lease", (
                "the node is no member of the cluster: it has not joined yet, its lease lapsed and it joins again, "
                "or another worker took its name; the log says which"
            )
        return None
