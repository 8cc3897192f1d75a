"""sampler: the curves of a node's tenants, within bounds of memory, of the last hours.

Owns whom a sample is kept of, how large it may be, and how what was seen fades. It takes lookups and the time and
publishes plain numbers; how places are found is ``stack.py``'s, how they are counted ``histogram.py``'s.

What a request says is noted and no more; the notes are folded into the samples when there is time for it, or when
curves are asked for. So a request waits for a fraction of a microsecond, whatever its length.

A lookup counts, a save only touches: what an engine computed and stored is there for the next lookup, although
nobody looked it up yet. What is modelled is one LRU over all that a tenant uses through this node, with everything
admitted; what really happens differs by policy, by quota and by what engines do not store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import exp
from typing import Final, NamedTuple, TypeAlias

from tiered.curve.histogram import Histogram
from tiered.curve.stack import SampledStack
from tiered.types import BlockHash, TenantCurve, TenantId

SAMPLE_MAX: Final = 4_096
"""Blocks of one tenant, at some 160 bytes each."""

SAMPLES_MAX: Final = 65_536
"""Of all tenants together: 10 MiB."""

TENANTS_MAX: Final = 256
"""Further ones have no curve until one of these has been idle for FORGOTTEN_S."""

PUBLISHED_MAX: Final = 64
"""Curves with most lookups; each is some 600 bytes of every heartbeat."""

FADES_S: Final = 3_600.0
"""What was seen so long ago weighs 1/e."""

FORGOTTEN_S: Final = 4 * FADES_S
"""A block not used for so long is out of the order: its next use is like the first."""

STEP_S: Final = 60.0
"""Fading and forgetting go in steps."""

FRESH_S: Final = 10.0
"""How old a published curve may be: making one costs a third of a millisecond."""

NOTED_MAX: Final = 65_536
"""Blocks that notes name, and notes: some 5 MB. Beyond that, who notes more folds the oldest."""

SKETCH_HASHES: Final = 32
_SKETCH_BYTES: Final = 6

_NUMBER_MAX: Final = float(1 << 53)


@dataclass(slots=True)
class _Sample:
    began: float
    stack: SampledStack = field(default_factory=SampledStack)
    histogram: Histogram = field(default_factory=Histogram)
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    """How far the order had come at each step."""

    def touch(self, hashes: Sequence[BlockHash], *, is_counted: bool, n_blocks_max: int) -> None:
        stack = self.stack
        threshold = stack.threshold
        chosen = [block_hash for block_hash in hashes if block_hash < threshold]
        if not chosen:
            return
        runs = stack.touch(chosen)
        if is_counted:
            self.histogram.add(runs, n_sampled=len(chosen), per=stack.per)
        if len(stack) > n_blocks_max:
            stack.narrow(n_blocks_max)

    def step(self, now: float, factor: float) -> None:
        self.histogram.fade(factor)
        marks, old = self.marks, None
        marks.append((now, self.stack.stamp))
        while marks and marks[0][0] <= now - FORGOTTEN_S:
            old = marks.popleft()
        if old is not None:
            self.stack.forget(old[1])


@dataclass(slots=True)
class _Tenant:
    sample: _Sample
    used_at: float
    successor: _Sample | None = None
    """A sample at the first rate again, which takes over once it has seen as much as the old one remembers."""
    prompt_tokens: float = 0
    counted_tokens: float = 0
    own_tokens: float = 0
    hit_tokens: float = 0
    hot_tokens: float = 0
    published: TenantCurve | None = None
    published_at: float = 0

    def samples(self) -> tuple[_Sample, ...]:
        return (self.sample,) if self.successor is None else (self.sample, self.successor)

    def step(self, now: float, factor: float, n_blocks_max: int) -> None:
        self.sample.step(now, factor)
        self.prompt_tokens *= factor
        self.counted_tokens *= factor
        self.own_tokens *= factor
        self.hit_tokens *= factor
        self.hot_tokens *= factor
        stack = self.sample.stack
        if self.successor is not None:
            self.successor.step(now, factor)
            if self.successor.began <= now - FORGOTTEN_S:
                self.sample, self.successor = self.successor, None
        elif stack.is_narrowed and len(stack) < n_blocks_max // 4:
            self.successor = _Sample(began=now)


class _Looked(NamedTuple):
    tenant: TenantId
    hashes: Sequence[BlockHash]
    prompt_tokens: int
    now: float


class _Saved(NamedTuple):
    tenant: TenantId
    hashes: Sequence[BlockHash]


class _Counted(NamedTuple):
    tenant: TenantId
    asked: int
    own: int
    hit: int
    hot: int


_Note: TypeAlias = _Looked | _Saved | _Counted


@dataclass(slots=True)
class Sampler:
    """Of one node. block_tokens: of its pool. Not thread-safe; ``now`` may not fall, and hashes that were given may
    not change any more."""

    block_tokens: int
    sample_max: int = SAMPLE_MAX
    _noted: deque[_Note] = field(default_factory=deque)
    _n_noted: int = 0
    _tenants: dict[TenantId, _Tenant] = field(default_factory=dict)
    _stepped_at: float | None = None
    _sample_max: int = 0

    def __post_init__(self) -> None:
        self._share()

    def looked_up(self, tenant: TenantId, hashes: Sequence[BlockHash], *, prompt_tokens: int, now: float) -> None:
        """A request wants these blocks, found or not."""
        self._note(_Looked(tenant, hashes, prompt_tokens, now), len(hashes))

    def saved(self, tenant: TenantId, hashes: Sequence[BlockHash]) -> None:
        """These blocks are about to be stored; of a tenant that never looked anything up this says nothing."""
        self._note(_Saved(tenant, hashes), len(hashes))

    def counted(self, tenant: TenantId, *, asked: int, own: int, hit: int, hot: int) -> None:
        """What became of a lookup, in tokens: the engine had ``own`` of them itself, of the ``asked`` others it used
        ``hit`` cached ones, and of those ``hot`` came from this node's pool."""
        self._note(_Counted(tenant, asked, own, hit, hot), 0)

    def fold(self, n_max: int | None = None) -> bool:
        """Take the oldest notes into the samples until so many blocks were named; whether some are left. Cost: one
        comparison a block, and some microseconds a note."""
        left = self._n_noted if n_max is None else n_max
        while self._noted and left > 0:
            note = self._noted.popleft()
            match note:
                case _Looked():
                    n_blocks = len(note.hashes)
                    self._look(note)
                case _Saved():
                    n_blocks = len(note.hashes)
                    self._save(note)
                case _Counted():
                    n_blocks = 0
                    self._count(note)
            self._n_noted -= 1 + n_blocks
            left -= 1 + n_blocks
        return bool(self._noted)

    def curves(self, *, now: float) -> Mapping[TenantId, TenantCurve]:
        """What there is to publish. Cost: O(tenants), the notes, a third of a millisecond a stale curve."""
        self.fold()
        if self._stepped_at is not None and now >= self._stepped_at + STEP_S:
            self._step(now)
        seen = [name for name, known in self._tenants.items() if known.sample.histogram.looked >= 1]
        busiest = nlargest(PUBLISHED_MAX, seen, key=lambda name: self._tenants[name].sample.histogram.looked)
        return {name: self._published(self._tenants[name], now) for name in busiest}

    @property
    def n_sampled(self) -> int:
        """Blocks that are remembered, of all tenants, once all notes are folded."""
        self.fold()
        return sum(len(sample.stack) for known in self._tenants.values() for sample in known.samples())

    def _note(self, note: _Note, n_blocks: int) -> None:
        self._noted.append(note)
        self._n_noted += 1 + n_blocks
        if self._n_noted > NOTED_MAX:
            self.fold(self._n_noted - NOTED_MAX)

    def _look(self, note: _Looked) -> None:
        tenant, hashes, prompt_tokens, now = note
        if self._stepped_at is None or now >= self._stepped_at + STEP_S:
            self._step(now)
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= TENANTS_MAX:
                return
            known = self._tenants[tenant] = _Tenant(_Sample(now), now)
            self._share()
        known.used_at = now
        known.prompt_tokens += prompt_tokens
        for sample in known.samples():
            sample.histogram.looked += len(hashes)
            sample.touch(hashes, is_counted=True, n_blocks_max=self._sample_max)

    def _save(self, note: _Saved) -> None:
        known = self._tenants.get(note.tenant)
        if known is not None:
            for sample in known.samples():
                sample.touch(note.hashes, is_counted=False, n_blocks_max=self._sample_max)

    def _count(self, note: _Counted) -> None:
        known = self._tenants.get(note.tenant)
        if known is not None:
            known.counted_tokens += note.asked
            known.own_tokens += note.own
            known.hit_tokens += note.hit
            known.hot_tokens += note.hot

    def _share(self) -> None:
        self._sample_max = min(self.sample_max, SAMPLES_MAX // max(1, len(self._tenants)))

    def _step(self, now: float) -> None:
        factor = 1.0 if self._stepped_at is None else exp(-(now - self._stepped_at) / FADES_S)
        self._stepped_at = now
        self._tenants = {name: kept for name, kept in self._tenants.items() if kept.used_at > now - FORGOTTEN_S}
        self._share()
        for known in self._tenants.values():
            known.step(now, factor, self._sample_max)
            for sample in known.samples():
                sample.stack.narrow(self._sample_max)

    def _published(self, known: _Tenant, now: float) -> TenantCurve:
        if known.published is None or now >= known.published_at + FRESH_S:
            known.published, known.published_at = self._curve_of(known, now), now
        return known.published

    def _curve_of(self, known: _Tenant, now: float) -> TenantCurve:
        sample, tokens = known.sample, self.block_tokens
        age_s = max(0.0, now - sample.began)
        return TenantCurve(
            age_s=round(age_s, 1),
            weight_s=round(FADES_S * (1 - exp(-age_s / FADES_S)), 3),
            looked_tokens=_whole(sample.histogram.looked * tokens),
            prompt_tokens=_whole(known.prompt_tokens),
            counted_tokens=_whole(known.counted_tokens),
            own_tokens=_whole(known.own_tokens),
            hit_tokens=_whole(known.hit_tokens),
            hot_tokens=_whole(known.hot_tokens),
            sampled_blocks=len(sample.stack),
            seen_blocks=_whole(len(sample.stack) * sample.stack.per),
            lowest=tuple(_numbered(name) for name in sample.stack.lowest(SKETCH_HASHES)),
            points=tuple(
                (_whole(size), _whole(hits * tokens))
                for size, hits in sample.histogram.points(n_sampled=len(sample.stack))
            ),
        )


def _whole(number: float) -> int:
    """No larger than what every reader of MessagePack takes, or a tenant's claims could cost its node the lease."""
    return round(min(number, _NUMBER_MAX))


def _numbered(name: BlockHash) -> int:
    """The hash's first bits: 48, which a script's numbers hold."""
    return int.from_bytes(name[:_SKETCH_BYTES].ljust(_SKETCH_BYTES, b"\0"), "big")
