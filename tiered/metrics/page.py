"""docs/metrics.md, written from the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tiered.metrics.coordinator import COORDINATOR
from tiered.metrics.series import Catalogue, Series
from tiered.metrics.serving import SERVING
from tiered.metrics.tenant_labels import TENANT_LABELS_MAX
from tiered.metrics.timing import BUCKETS_S
from tiered.metrics.worker import WORKER

CATALOGUES: Final = (WORKER, COORDINATOR, SERVING)

_WHERE: Final = {
    WORKER.service: ("Worker", "`http://HOST:<node.metrics_port>/metrics`"),
    COORDINATOR.service: ("Coordinator", "`/metrics`, for callers who may see the whole cluster"),
    SERVING.service: ("`tiered serve`", "`/metrics`"),
}

_ABOUT: Final = f"""\
# Metrics

Written by `python -m tiered.metrics` from `tiered/metrics/`; a test holds real processes to it, in both directions.

- Counters start at zero with each process and never go back, but for the coordinator's tokens when Redis has lost
  what ended lives had counted. Labels but `tenant`, `node` and those of requests show all their values from zero on.
- The first {TENANT_LABELS_MAX} tenants that a process sees have a label of their own for its life, of several that
  it sees at once those that asked for most; all others are summed as `other`. So sums over `tenant` are always whole.
  The place of a tenant that was deleted is not given on. A tenant that is called `other` counts there.
- Tokens found in a tier and tokens missed are, for each tenant, what was asked for.
- Nothing grows while nobody asks for anything, but for the counters marked *idle*.
- Histograms of worker and coordinator have buckets up to {", ".join(f"{bound:g}" for bound in BUCKETS_S)} s.
- A series whose meaning begins with *Conservation* is a difference of two numbers that must agree.
"""


def page() -> str:
    return "\n".join([_ABOUT, *(line for catalogue in CATALOGUES for line in _section(catalogue))])


def _section(catalogue: Catalogue) -> Iterator[str]:
    title, where = _WHERE[catalogue.service]
    yield f"## {title}\n\n{where}\n"
    yield from _table(catalogue)


def _table(series: Iterable[Series]) -> Iterator[str]:
    yield "| series | type | labels | meaning |"
    yield "|---|---|---|---|"
    for each in series:
        kind = f"{each.kind}, *idle*" if each.moves_idle else each.kind
        yield f"| `{each.name}` | {kind} | {', '.join(each.labels)} | {each.meaning} |"
    yield ""
