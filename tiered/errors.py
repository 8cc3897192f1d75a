"""The whole error tree, nothing else.

Expected outcomes are values: a miss is ``None``, a refused admission a result with its reason. What is raised
carries fields, so that a caller can act and a person can read one sentence.
"""

from __future__ import annotations


class TieredError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigError(TieredError):
    """Wrong input at start-up or on a command line: one sentence naming the field and the fix."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class CapacityError(TieredError):
    """Nothing may leave, so nothing can be admitted."""


class QuotaExceeded(CapacityError):
    """A tenant asked for more than its hard limit."""

    def __init__(self, *, tenant: str, asked_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"tenant {tenant!r} asked for {asked_bytes} bytes over its limit of {limit_bytes}")
        self.tenant = tenant
        self.asked_bytes = asked_bytes
        self.limit_bytes = limit_bytes


class OutOfBlocks(CapacityError):
    """A sequence cannot grow. ``holders`` says who holds what, most first, as the message does in its words."""

    def __init__(self, reason: str, *, tenant: str, asked_blocks: int, holders: tuple[str, ...]) -> None:
        held = "; ".join(holders) or "nobody holds any"
        super().__init__(f"no room for {asked_blocks} more blocks of tenant {tenant!r}: {reason}; {held}")
        self.tenant = tenant
        self.asked_blocks = asked_blocks
        self.holders = holders


class BlockNotResident(TieredError):
    """A block id or hash that holds no committed bytes here."""


class IntegrityError(TieredError):
    """Bytes whose header, scope, length or checksum is not what was asked for: drop the block.

    reason is one of a small fixed set, fit for a metric label.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class LayoutMismatch(TieredError):
    """An engine's KV layout is not the one the worker's pool was built for."""

    def __init__(self, *, engine: str, worker: str) -> None:
        super().__init__(
            f"layout: the engine's KV layout ({engine}) is not the worker's ({worker}); attach it to a worker "
            "of its own, or start both with the same model, dtype and block_tokens"
        )
        self.engine = engine
        self.worker = worker


class TierError(TieredError):
    """A tier could not answer; ``retryable`` says whether asking again may help."""

    retryable: bool = False


class TierUnavailable(TierError):
    """The other side is not reachable, or its breaker is open."""

    retryable = True


class TierTimeout(TierError):
    """The other side did not answer within its deadline."""

    retryable = True


class OwnershipError(TieredError):
    """A right that is not, or no longer, held."""


class ScopeMismatch(OwnershipError):
    """An engine named a scope that is not its own for this tenant: another model's, or of a sharing label that is not
    the tenant's, or no longer."""


class LeaseExpired(OwnershipError):
    """The lease lapsed; rejoin to get a new epoch."""


class StaleEpoch(OwnershipError):
    """A message of an earlier life (I8)."""

    def __init__(self, *, seen: int, current: int) -> None:
        super().__init__(f"epoch {seen} is stale, the current one is {current}")
        self.seen = seen
        self.current = current


class ProtocolError(TieredError):
    """A peer broke the wire contract; the connection is dropped."""


class VersionMismatch(ProtocolError):
    """The other side speaks another major version of the wire; both are in the message."""

    def __init__(self, *, seen: int, spoken: int, who: str = "the other side") -> None:
        super().__init__(
            f"{who} speaks wire version {seen}, this side {spoken}: such releases do not talk to each other"
        )
        self.seen = seen
        self.spoken = spoken


class IllegalTransition(AssertionError):
    """A bug: an event that a block's state does not allow. Outside the tree, so nothing swallows it."""
