"""planning: which part of a lookup's blocks to fetch, from where, and how long the request may wait for them.

Owns the way from blocks and origins to the decision of ``estimate.plan`` and back. While no engine has reported how
fast it computes there is nothing to compare with, and all is fetched from the nearest place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiered.core.core import CacheCore
from tiered.core.fetch_plan import FetchDecision, FetchPlan
from tiered.core.lease import Lease
from tiered.core.load_op import LoadOp
from tiered.core.match import note_origins
from tiered.core.probe import start_probe
from tiered.core.promote import FETCH_BLOCKS_MAX, detach, key_of
from tiered.estimate.plan import Piece, Plan, plan
from tiered.estimate.sources import REDIS, SourceKey
from tiered.jobs import Origin
from tiered.types import Happening, SourceRate

ALLOWANCE: Final = 0.03
"""A load that is expected to be shorter than this part of the prompt's whole prefill may take this long: a source
that has become a crawl since it was measured costs the first request no more. A cache may cost 5% in all; the rest is
for its lookup, and for a prefill that is estimated too long."""

MARGIN: Final = 1.5
"""A load that is expected to be longer may take at most so many times as long."""

PROBE_AFTER_S: Final = 3.0
"""A source that was passed over as slow is tried again, by nobody's request, when what is known of it is older."""

_SLOW: Final = 4.0
"""Passed over as slow, and not for another that happens to be a little quicker: so many times slower than it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring blocks with equal choices. first: index of the first in the run of origins. is_coming: another
    load is fetching them already, so there is no choice."""

    first: int
    n_blocks: int
    keys: tuple[SourceKey, ...]
    is_coming: bool


def plan_fetch(
    core: CacheCore, lease: Lease, origins: Sequence[tuple[Origin, ...]], *, now: float
) -> tuple[int, int]:
    """Offer the lease what is worth fetching: see :func:`tiered.core.match.note_origins`, and the lease's ``plan``.

    May start probes, so a turn of the seam follows where the core has jobs. Cost: about a microsecond a block.
    """
    core.now = max(core.now, now)
    lease.plan = None
    runs = _runs(core, lease, origins) if core.prefill.tokens_per_s else []
    if not runs:
        return note_origins(lease, origins)
    n_tokens = _tokens_left(core, lease, runs)
    rates = _rates(core, runs)
    found = plan(
        [Piece(run.n_blocks, run.keys) for run in runs],
        n_tokens=n_tokens,
        block_tokens=core.options.block_tokens,
        block_bytes=core.options.block_bytes,
        rates=rates,
        busy_s=_busy_s(core, runs),
        prefill_tokens_per_s=core.prefill.tokens_per_s,
    )
    lease.plan = _decided(core, lease, found, runs, n_tokens)
    _note(core, lease, lease.plan, runs)
    _probe(core, lease, origins, runs, found, rates)
    return note_origins(lease, _offered(origins, runs, found))


def time_for(lease: Lease, *, asked_s: float) -> float:
    """How long a load may take: what was asked for, and no longer than its plan allows."""
    return asked_s if lease.plan is None else min(asked_s, lease.plan.patience_s)


def end_load(core: CacheCore, lease: Lease, op: LoadOp, *, asked_s: float, took_s: float) -> None:
    """Nobody waits for the load any longer: it is done, or out of the time it had."""
    if lease.plan is not None:
        core.plans.expected_s += lease.plan.fetch_s
        core.plans.measured_s += took_s
        if not op.done and lease.plan.patience_s <= asked_s:
            core.plans.out_of_patience += 1
            _doubt(core, lease, op)
    if not op.done:
        detach(core, op)


def _doubt(core: CacheCore, lease: Lease, op: LoadOp) -> None:
    """The sources of what the load still waits for have let it down, whoever asked them."""
    for block_hash in lease.hashes[op.next_index :]:
        origin = core.fetching.get(block_hash)
        if origin is None:
            return
        core.sources.doubt(key_of(origin))


def _runs(core: CacheCore, lease: Lease, origins: Sequence[tuple[Origin, ...]]) -> list[_Run]:
    runs: list[_Run] = []
    first = len(lease.pinned)
    for offset, choices in enumerate(origins):
        if not choices:
            break
        coming = core.fetching.get(lease.hashes[first + offset])
        keys = tuple(key_of(origin) for origin in choices) if coming is None else (key_of(coming),)
        is_coming = coming is not None
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.n_blocks < FETCH_BLOCKS_MAX
            and last.is_coming == is_coming
            and (last.keys == keys or set(last.keys) == set(keys))
        ):
            runs[-1] = _Run(last.first, last.n_blocks + 1, last.keys, is_coming)
        else:
            runs.append(_Run(offset, 1, keys, is_coming))
    return runs


def _tokens_left(core: CacheCore, lease: Lease, runs: Sequence[_Run]) -> int:
    """Of the prompt after its hot blocks; what an engine says of its length is no less than its blocks."""
    block_tokens = core.options.block_tokens
    n_below = runs[-1].first + runs[-1].n_blocks
    return max(lease.asked_tokens - len(lease.pinned) * block_tokens, n_below * block_tokens)


def _rates(core: CacheCore, runs: Sequence[_Run]) -> dict[SourceKey, SourceRate]:
    keys = {key for run in runs for key in run.keys}
    return {key: rate for key in keys if (rate := core.sources.rate(key, now=core.now)).bytes_per_s}


def _busy_s(core: CacheCore, runs: Sequence[_Run]) -> dict[SourceKey, float]:
    """What sources have to do for others first; what is coming already is counted where the plan takes it."""
    coming: dict[SourceKey, int] = dict.fromkeys((key for run in runs for key in run.keys), 0)
    for run in runs:
        if run.is_coming:
            coming[run.keys[0]] += run.n_blocks * core.options.block_bytes
    return {key: core.sources.busy_s(key, now=core.now, but_bytes=n_bytes) for key, n_bytes in coming.items()}


def _decided(core: CacheCore, lease: Lease, found: Plan[SourceKey], runs: Sequence[_Run], n_tokens: int) -> FetchPlan:
    assert found.ttft_s is not None  # the engine's rate is known
    assert found.computed_s is not None
    left_s = max(0, n_tokens - found.n_blocks * core.options.block_tokens) / core.prefill.tokens_per_s
    fetch_s = max(0.0, found.ttft_s - left_s) if found.fetched else 0.0
    if not found.fetched:
        decision = FetchDecision.COMPUTE
    else:
        decision = FetchDecision.FETCH_ALL if len(found.fetched) == len(runs) else FetchDecision.FETCH_PART
    whole_s = max(lease.asked_tokens / core.prefill.tokens_per_s, found.computed_s)
    return FetchPlan(
        decision=decision,
        fetched=found.fetched,
        ttft_s=found.ttft_s,
        computed_s=found.computed_s,
        fetch_s=fetch_s,
        patience_s=_patience_s(fetch_s, whole_s),
    )


def _patience_s(fetch_s: float, whole_s: float) -> float:
    """The allowance, and beyond it what is expected with a margin that grows from nothing to all of MARGIN."""
    allowance_s = ALLOWANCE * whole_s
    return allowance_s + MARGIN * max(0.0, fetch_s - allowance_s)


def _offered(
    origins: Sequence[tuple[Origin, ...]], runs: Sequence[_Run], found: Plan[SourceKey]
) -> list[tuple[Origin, ...]]:
    """Of each block that is to be fetched the plan's choice first, the others after it."""
    offered: list[tuple[Origin, ...]] = []
    for run, (key, n_blocks) in zip(runs, found.fetched, strict=False):
        for choices in origins[run.first : run.first + n_blocks]:
            offered.append(tuple(sorted(choices, key=lambda origin: key_of(origin) != key)))
    return offered


def _note(core: CacheCore, lease: Lease, decided: FetchPlan, runs: Sequence[_Run]) -> None:
    core.plans.decisions[decided.decision] += 1
    if core.why is None:
        return
    per_source: Counter[str] = Counter()
    for key, n_blocks in decided.fetched:
        name = "from redis" if key == REDIS else f"from peer {key}"
        per_source[name] += n_blocks
    detail: dict[str, int | float | str] = {
        "decision": decided.decision.value,
        "hot_blocks": len(lease.pinned),
        "ttft_s": round(decided.ttft_s, 6),
        "computed_s": round(decided.computed_s, 6),
        "patience_s": round(decided.patience_s, 6),
        **per_source,
    }
    n_below = runs[-1].first + runs[-1].n_blocks
    core.why.add(Happening("planned", lease.hashes[len(lease.pinned)], lease.tenant, n_blocks=n_below, detail=detail))


def _probe(
    core: CacheCore,
    lease: Lease,
    origins: Sequence[tuple[Origin, ...]],
    runs: Sequence[_Run],
    found: Plan[SourceKey],
    rates: dict[SourceKey, SourceRate],
) -> None:
    """Try again, beside the request, what is passed over because it was slow when it was last tried."""
    seen = {key for key, _ in found.fetched}
    for index, run in enumerate(runs):
        if run.is_coming:
            continue
        chosen = found.fetched[index][0] if index < len(found.fetched) else None
        for key in run.keys:
            if key in seen or key not in rates:
                continue
            if chosen is not None and not _is_slow(core, run, rates[key], rates.get(chosen)):
                continue
            seen.add(key)
            if core.sources.is_due(key, now=core.now, after_s=PROBE_AFTER_S):
                origin = next(origin for origin in origins[run.first] if key_of(origin) == key)
                start_probe(core, lease, origin, first=len(lease.pinned) + run.first, n_blocks_max=run.n_blocks)


def _is_slow(core: CacheCore, run: _Run, rate: SourceRate, chosen: SourceRate | None) -> bool:
    if chosen is None:  # never measured
        return False
    n_bytes = run.n_blocks * core.options.block_bytes
    return rate.latency_s + n_bytes / rate.bytes_per_s > _SLOW * (chosen.latency_s + n_bytes / chosen.bytes_per_s)
