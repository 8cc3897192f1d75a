"""Audits the Redis tier a little in every round, and keeps what the last whole walk found for the metrics.

What is audited and settled is :mod:`tiered.cluster.audit`'s business; here is only how often, and who hears of it.
"""

from __future__ import annotations

from typing import Final

from tiered.clock import Clock, SystemClock
from tiered.cluster.audit import Auditor, Findings
from tiered.cluster.tenants import Tenants
from tiered.log import get_logger

log = get_logger(__name__)

_STEPS_PER_ROUND: Final = 10
"""About ten thousand keys: some tens of milliseconds of the server's time, in pieces of one."""

QUIET_KEPT_S: Final = 900.0


class AuditTask:
    def __init__(self, auditor: Auditor, tenants: Tenants, clock: Clock | None = None) -> None:
        self._auditor = auditor
        self._tenants = tenants
        self._clock = clock or SystemClock()
        self.last: Findings | None = None
        """Of the last walk that was through."""
        self._quiet: Findings | None = None
        self._quiet_at = 0.0

    @property
    def last_quiet(self) -> Findings | None:
        """Of the last walk during which nobody wrote, so that its sums can be compared; None when that is so long ago
        that what it found may have been put right since, while somebody writes all the time."""
        return self._quiet if self._clock.now() - self._quiet_at < QUIET_KEPT_S else None

    def round(self) -> None:
        """One bounded round, blocking. Errors: UNREADABLE; what was done so far stays done."""
        policies, _ = self._tenants.readable()  # one that is not costs only its own tenant's idle time
        idle_s = {tenant: policy.redis_ttl_s for tenant, policy in policies.items() if policy.redis_ttl_s is not None}
        for _ in range(_STEPS_PER_ROUND):
            findings = self._auditor.step(idle_s)
            if findings is not None:
                self.last = findings
                if findings.is_quiet:  # sums that were put right are told as they were: the next walk is to tell them
                    self._quiet, self._quiet_at = None if findings.recounted else findings, self._clock.now()
                _report(findings)
                return


def _report(findings: Findings) -> None:
    settled = {
        name: n
        for name in ("expired", "lost", "stray", "relisted", "orphans", "idle", "stamps", "recounted")
        if (n := getattr(findings, name))
    }
    if settled:
        log.info("redis tier settled", **settled)
    if findings.conserved is False:
        log.error(
            "redis tier is not conserved",
            stored_bytes=findings.stored_bytes,
            charged_bytes=sum(findings.charged.values()),
            ledger_bytes=findings.ledger_sum_bytes,
        )
