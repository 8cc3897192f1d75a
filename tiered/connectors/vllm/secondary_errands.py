"""What has to be said to and heard from Redis beside the chunks: tenants' policies, what was used, what is asked for.

Two threads, each with its own client and deadline, so that no errand keeps a lookup waiting. Redis failing is logged
and tried again: the last policies stay in force.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tiered.cluster.agreement import require_agreement
from tiered.cluster.connection import connect, require_reachable
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.errors import ConfigError, TierError
from tiered.log import get_logger
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockHash, TenantId, Whereabouts

INTERVAL_S: Final = 0.5
"""As in workers: well within the two seconds in which a change of policy is promised to take effect."""

QUESTIONS_PER_CALL: Final = 1024
"""Hashes looked up in one round trip; of a pass with more, the first are answered first."""

PASSES_MAX: Final = 64
"""Scheduling passes whose questions wait; more of them get no answer."""

USES_MAX: Final = 256

UNNAMED_MAX: Final = 4096
"""Requests may name any tenant, so what is derived for each is bounded."""

_log = get_logger("tiered.vllm")


@dataclass(frozen=True, slots=True)
class Used:
    """A run of chunks of one prompt that a request used again. first_depth: of the first of them."""

    tenant: TenantId
    hashes: Sequence[BlockHash]
    first_depth: int


class Policies:
    """The tenants' policies in force; set by one thread, read by another."""

    def __init__(self) -> None:
        self._in_force: tuple[Mapping[TenantId, TenantPolicy], dict[TenantId, TenantPolicy]] = {}, {}

    def set(self, policies: Mapping[TenantId, TenantPolicy]) -> None:
        self._in_force = policies, {}  # in one step: what is derived belongs to what it is derived from

    def of(self, tenant: TenantId) -> TenantPolicy:
        """The tenant's own policy, else the default one under the tenant's name."""
        policies, unnamed = self._in_force
        found = policies.get(tenant) or unnamed.get(tenant)
        if found is None:
            found = (policies.get(DEFAULT_TENANT) or TenantPolicy(tenant=DEFAULT_TENANT)).of_unnamed(tenant)
            if len(unnamed) >= UNNAMED_MAX:
                unnamed.clear()
            unnamed[tenant] = found
        return found


class Errands:
    """Keeps the policies up to date, tells the ledger what was used, and sees when Redis is back."""

    def __init__(
        self,
        settings: RedisSettings,
        policies: Policies,
        *,
        is_down: Callable[[], bool],
        probe: Callable[[], None],
    ) -> None:
        """probe: called every so often while Redis is down, since nobody else may ask it anything then.

        Errors: ConfigError when Redis does not answer, or its namespace is dealt otherwise.
        """
        self._policies = policies
        self._is_down = is_down
        self._probe = probe
        self._client = connect(settings, timeout_s=settings.control_timeout_s)
        self._used: queue.Queue[Used] = queue.Queue(USES_MAX)
        self._revision = -1
        self._ended = threading.Event()
        try:
            require_reachable(self._client, settings)
            keys = require_agreement(self._client, settings)
        except ConfigError:
            self._client.close()
            raise
        self._tenants = Tenants(self._client, keys)
        self._ledger = RedisLedger(self._client, keys)
        self._look()
        self._thread = threading.Thread(target=self._run, name="tiered-errands", daemon=True)
        self._thread.start()

    def used(self, used: Used) -> bool:
        """Never blocks; False when there is more to say than is being said, and this is not."""
        try:
            self._used.put_nowait(used)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """At most the calls that are under way are waited for."""
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                if self._is_down():
                    self._probe()
                else:
                    self._look()
                    self._tell()
            except Exception:
                _log.exception("an errand failed")

    def _look(self) -> None:
        """Read the policies if they changed; a table that forgot them says nothing of what was promised."""
        try:
            revision = self._tenants.revision()
            if revision == self._revision:
                return
            if revision > self._revision:
                policies, unreadable = self._tenants.readable()
                self._policies.set(policies)
                for tenant, reason in unreadable.items():
                    _log.warning("a policy cannot be read; the default one is in force", tenant=tenant, reason=reason)
            self._revision = revision
        except TierError as error:
            _log.debug("policies not read; the last ones stay", error=str(error))

    def _tell(self) -> None:
        while not self._ended.is_set():
            try:
                used = self._used.get_nowait()
            except queue.Empty:
                return
            try:
                self._ledger.touch(used.hashes, used.tenant, first_depth=used.first_depth)
            except TierError as error:
                _log.debug("a use was not noted", error=str(error))


class LookupTier(Protocol):
    """What a lookup needs of :class:`~tiered.tiers.redis.tier.RedisTier`."""

    def lookup(self, hashes: Sequence[BlockHash]) -> list[Whereabouts]: ...


class Asker:
    """Asks the questions of a scheduling pass in one round trip, on a thread of its own."""

    def __init__(self, tier: LookupTier, *, on_end: Callable[[], None]) -> None:
        """on_end: called by the thread after each call."""
        self._tier = tier
        self._on_end = on_end
        self._questions: queue.Queue[Sequence[BlockHash] | None] = queue.Queue(PASSES_MAX)
        self._answers: queue.SimpleQueue[Mapping[BlockHash, bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tiered-lookup", daemon=True)
        self._thread.start()

    def ask(self, hashes: Sequence[BlockHash]) -> bool:
        """Never blocks; False when too many wait."""
        try:
            self._questions.put_nowait(hashes)
        except queue.Full:
            return False
        return True

    def answers(self) -> list[Mapping[BlockHash, bool]]:
        """All that came since the last call. What nobody could say is not there."""
        answers = []
        while True:
            try:
                answers.append(self._answers.get_nowait())
            except queue.Empty:
                return answers

    def close(self) -> None:
        """The call under way is waited for; the questions that wait are given up."""
        while True:
            try:
                self._questions.put_nowait(None)
                break
            except queue.Full:
                with suppress(queue.Empty):  # the thread was faster
                    self._questions.get_nowait()
        self._thread.join()

    def _run(self) -> None:
        while (hashes := self._questions.get()) is not None:
            for start in range(0, len(hashes), QUESTIONS_PER_CALL):
                few = hashes[start : start + QUESTIONS_PER_CALL]
                there = dict.fromkeys(few, False)
                try:
                    there = {h: found.in_redis for h, found in zip(few, self._tier.lookup(few), strict=True)}
                except TierError as error:
                    _log.debug("a lookup had no answer", error=str(error))
                except Exception:
                    _log.exception("a lookup failed", n_chunks=len(few))
                self._on_end()
                self._answers.put(there)
