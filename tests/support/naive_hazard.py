"""The hazard-index policy a second time: the rules of docs/adr/0010-hazard-policy.md, with loops and recounting.

Nothing here is indexed, queued or kept for later that can be worked out again, and nothing is taken from the real one
but the record of its numbers. Only arithmetic is in the same order, since sums of floats depend on it.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from tests.support.naive_policy import NaivePolicy
from tiered.eviction.hazard.parameters import DEFAULTS, Parameters
from tiered.types import BlockHash, BlockId, Continues, Hints

EDGES: Final = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0]
N_BINS: Final = 15
WORDS: Final = [Continues.UNKNOWN, Continues.NO, Continues.YES]
ABANDONED, CLOSED, LAST, UNNAMED, SHARED, N_CLASSES = 48, 49, 50, 51, 52, 58


@dataclass(eq=False)
class One:
    """One request, or one block that no request named. path: keys; what it owns is path[start:]."""

    number: int
    path: list[BlockHash]
    began: float
    named: bool = True
    looked_up: bool = False
    start: int = 0
    used: int = 0
    names: list[int] = field(default_factory=list)
    running_since: float = 0.0
    since: float = 0.0
    ended: float = 0.0
    age: int = 0
    classes: list[int] = field(default_factory=list)
    features: list[tuple[int, ...]] = field(default_factory=list)
    turn: int = 1
    gap: float = 0.0
    mean_gap: float = 0.0
    n_new: int = 0
    first_unshared: int = 0
    settled: bool = False
    closed: bool = False
    continues: Continues = Continues.UNKNOWN
    ttl: float | None = None
    session: str = ""
    labels: tuple[str, ...] = ()
    output: int | None = None


class NaiveHazard(NaivePolicy):
    def __init__(self, n_blocks: int, parameters: Parameters = DEFAULTS) -> None:
        super().__init__(n_blocks)
        self.p = parameters
        self.now, self.has_clock = 0.0, False
        self.n_uses = self.n_requests = 0
        self.anything_left = False
        self.current: One | None = None
        self.everyone: list[One] = []
        """Who owns something, in the order in which ghosts are looked for."""
        self.owner: dict[BlockHash, One] = {}
        self.starts: dict[BlockHash, int] = {}
        self.filed: dict[One, tuple[int, int]] = {}
        """Class and age of each, in the order in which they came there."""
        self.shadow: list[list[int]] = []
        self.returned: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.waited: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.weight: defaultdict[tuple[int, ...], float] = defaultdict(float)
        self.square: defaultdict[tuple[int, ...], float] = defaultdict(lambda: 0.01)
        self.mean_new, self.mean_service, self.mean_length = 10.0, 5.0, 10.0
        self.lru_hits = self.n_known_mean = self.lost = 0.0
        self.n_watched = 0
        self.pause, self.paused_until = parameters.pause_requests, -1.0
        self.is_paused = False
        self.refresh()

    # Who has what.

    def id_of(self, key: BlockHash) -> BlockId | None:
        return next((block_id for block_id, known in self.keys.items() if known == key), None)

    def cached_end(self, one: One) -> int:
        here = set(self.keys.values())
        return max((i + 1 for i in range(one.start, len(one.path)) if one.path[i] in here), default=0)

    def is_here(self, key: BlockHash) -> bool:
        """It is cached, or something is that the same request used behind it, as then all before that is."""
        one = self.owner[key]
        return one.path.index(key) < self.cached_end(one)

    def tail(self, one: One) -> BlockId | None:
        end = self.cached_end(one)
        return self.id_of(one.path[end - 1]) if end else None

    def use(self) -> int:
        self.n_uses += 1
        return self.n_uses

    def file(self, one: One | None) -> None:
        if one is None or one not in self.everyone:
            return
        tail = self.tail(one)
        if tail is None or one is self.current or not self.is_leaf(tail):
            self.filed.pop(one, None)
            return
        place = (one.classes[self.cached_end(one) - 1], one.age)
        if self.filed.get(one) != place:
            self.filed.pop(one, None)
            self.filed[one] = place

    def bury(self, one: One) -> None:
        self.everyone.remove(one)
        self.filed.pop(one, None)
        one.names.clear()
        if self.current is one:
            self.current = None

    def make_current(self, one: One | None) -> None:
        before, self.current = self.current, one
        if before is not one:
            self.file(before)
        if one is not None:
            self.filed.pop(one, None)

    def set_apart(self, key: BlockHash) -> None:
        number = self.use()
        one = One(number, [key], self.now, named=False, used=number, settled=True, since=self.now)
        self.owner[key] = one
        self.starts.setdefault(key, 0)
        self.everyone.append(one)
        self.lie_idle(one, self.now)
        self.file(one)

    # Blocks.

    def arrive(self, block_id: BlockId, key: BlockHash, cost: float) -> None:
        if key not in self.owner:
            self.set_apart(key)
        self.file(self.owner[key])
        above = self.keys.get(self.parents[block_id])
        if above is not None:
            self.file(self.owner[above])

    def remove(self, block_id: BlockId) -> None:
        self.anything_left = True
        key, parent = self.keys.pop(block_id), self.parents.pop(block_id)
        one = self.owner[key]
        if one.named:
            self.file(one)
        else:
            self.bury(one)
            del self.owner[key], self.starts[key]
        if parent in self.keys:
            self.file(self.owner[self.keys[parent]])

    def leave(self, block_id: BlockId) -> None:
        raise NotImplementedError

    def hit(self, block_id: BlockId) -> None:
        key = self.keys[block_id]
        one = self.owner[key]
        if one.age == 0:
            return
        if one.ended < self.now:
            self.wait(one, self.now)
            self.return_up_to(one, one.path.index(key) + 1)
        self.filed.pop(one, None)
        one.used = self.use()
        self.lie_idle(one, self.now)
        self.file(one)

    def order(self) -> list[BlockId]:
        lru = self.is_paused or self.lru_hits > self.n_known_mean * (1.0 - self.p.gate_share)
        best = list(self.filed)
        if lru:
            best.sort(key=lambda one: (one.used, one.number))
        else:
            best.sort(key=lambda one: (self.index[self.filed[one]], self.filed[one]))
        if self.current is not None:
            best.append(self.current)
        tails = [tail for one in best if (tail := self.tail(one)) is not None]
        return [*tails, *(block_id for block_id in self.keys if block_id not in tails)]

    def choose(self, refused: Set[BlockId]) -> BlockId:
        return next(block_id for block_id in self.order() if block_id not in refused)

    # Requests.

    def request(self, name: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        self.advance(now)
        if path:
            self.begin(name, list(path), hints, looked_up=True)

    def save(self, name: int, path: Sequence[BlockHash], *, now: float, hints: Hints) -> None:
        self.advance(now)
        if not path:
            return
        n_known = self.n_known(path)
        before = self.owner[path[n_known - 1]] if n_known else None
        if (
            before is not None
            and before.named
            and n_known in (len(before.path), len(path))
            and (before.looked_up or before.age == 0)
        ):
            self.go_on(before, name, list(path), hints)
        else:
            self.begin(name, list(path), hints, looked_up=False)

    def end(self, name: int, *, now: float, output_tokens: int | None) -> None:
        self.advance(now)
        one = next((one for one in self.everyone if name in one.names), None)
        if one is None:
            return
        one.output = one.output if output_tokens is None else output_tokens
        one.names.remove(name)
        if one.names:
            return
        self.mean_service += 0.01 * (self.now - one.began - self.mean_service)
        self.lie_idle(one, self.now)
        if one is self.current:
            self.current = None
        self.file(one)

    def close(self, session: str, *, now: float) -> None:
        self.advance(now)
        for one in self.everyone:
            if one.session == session and session and not one.closed:
                self.wait(one, self.now)
                self.mark_closed(one)
                self.file(one)

    def n_known(self, path: Sequence[BlockHash]) -> int:
        return next((i for i, key in enumerate(path) if key not in self.owner), len(path))

    def begin(self, name: int, path: list[BlockHash], hints: Hints, *, looked_up: bool) -> None:
        self.make_current(None)
        if self.n_requests and self.n_requests % self.p.refresh_requests == 0:
            factor = 0.5 ** (self.p.refresh_requests / self.p.half_life_requests)
            for counts in (self.returned, self.waited):
                for cell in counts:
                    counts[cell] *= factor
            self.refresh()
        self.n_requests += 1
        number = self.use()
        one = One(number, path, self.now, looked_up=looked_up, used=number, since=self.now)
        m = self.n_known(path)
        before = self.owner[path[m - 1]] if m else None
        if before is not None and not (
            before.named
            and m > 1
            and 2 * m >= len(before.path)
            and (self.starts[path[m - 1]] <= 1 or m >= len(before.path) - 1)
        ):
            before = None
        if before is not None:
            one.turn, one.gap = before.turn + 1, max(0.0, self.now - before.ended)
            one.mean_gap = 0.7 * before.mean_gap + (1.0 - 0.7) * one.gap if before.turn > 1 else one.gap
        n_here = max((i + 1 for i in range(m) if self.is_here(path[i])), default=0)
        lru_hits = self.take_over(one, before, 0)
        capacity = max(1, len(self.keys)) if self.anything_left else self.n_blocks
        self.shadow.append([number, len(path)])
        while sum(n for _, n in self.shadow) > capacity and len(self.shadow) > 1:
            self.shadow.pop(0)
        self.watch(len(path), m, n_here, lru_hits)
        for i, key in enumerate(path):
            self.starts[key] = 1 if i >= m else self.starts[key] + (before is None)
        self.everyone.append(one)
        one.n_new = len(path) - m
        one.first_unshared = next((i for i, key in enumerate(path) if self.starts[key] < 2), len(path))
        self.set_classes(one)
        self.take_hints(one, hints)
        self.mean_new = max(1.0, self.mean_new + 0.002 * (one.n_new - self.mean_new))
        self.run(one, name)
        self.classify(one)
        self.make_current(one)
        self.forget()

    def go_on(self, one: One, name: int, path: list[BlockHash], hints: Hints) -> None:
        self.wait(one, self.now)
        self.run(one, name)
        self.take_hints(one, hints)
        n_before = len(one.path)
        if len(path) > n_before:
            one.path = path
            self.take_over(one, None, n_before)
            for key in path[n_before:]:
                self.starts[key] = 1
            self.set_classes(one)
            for entry in self.shadow:
                if entry[0] == one.number:
                    entry[1] += len(path) - n_before
        self.classify(one)
        self.make_current(one)
        self.forget()

    def take_over(self, one: One, before: One | None, first: int) -> int:
        """Owner by owner along the path. Returns what LRU would have held of it."""
        lru_hits = 0
        owners = [self.owner[key] for key in one.path[first:] if key in self.owner]
        for other in dict.fromkeys(owners):
            up_to = max(i + 1 for i, key in enumerate(one.path) if i >= first and self.owner.get(key) is other)
            self.wait(other, self.now)
            self.return_up_to(other, up_to if other.named else 1)
            if other is before:
                self.learn(other, 0.0, returned=1)
                other.settled = True
                cut = [
                    i for i in range(len(other.path)) if other.classes[i] < ABANDONED and self.stop(other, i) > up_to
                ]
                other.classes = [ABANDONED if i in cut else c for i, c in enumerate(other.classes)]
            if not other.named:
                self.bury(other)
                continue
            lru_hits += self.leave_shadow(other, up_to - other.start)
            other.start = up_to
            if other.start < len(other.path):
                self.file(other)
            else:
                self.bury(other)
        for key in one.path[first:]:
            self.owner[key] = one
        return lru_hits

    def stop(self, one: One, index: int) -> int:
        """Where the run of blocks of one class ends that has this block."""
        while index < len(one.path) and one.classes[index] < ABANDONED:
            index += 1
        return index

    def leave_shadow(self, one: One, n_blocks: int) -> int:
        for entry in self.shadow:
            if entry[0] == one.number:
                entry[1] -= n_blocks
                if entry[1] == 0:
                    self.shadow.remove(entry)
                return n_blocks
        return 0

    def watch(self, n_blocks: int, n_known: int, hits: int, lru_hits: int) -> None:
        self.lru_hits += (lru_hits - self.lru_hits) / self.p.gate_requests
        self.n_known_mean += (n_known - self.n_known_mean) / self.p.gate_requests
        self.mean_length += 0.002 * (n_blocks - self.mean_length)
        if self.is_paused:
            self.is_paused = self.n_watched <= self.paused_until
        else:
            self.lost = max(0.0, self.lost + lru_hits - 1.01 * hits)
            if self.lost > self.p.guard_requests * self.mean_length:
                self.is_paused, self.lost = True, 0.0
                self.paused_until = self.n_watched + self.pause
                self.pause = min(2 * self.pause, self.p.pause_requests_max)
        self.n_watched += 1

    def forget(self) -> None:
        capacity = max(1, len(self.keys)) if self.anything_left else self.n_blocks
        limit = capacity + min(max(self.p.ghosts_min, self.p.ghosts_each * capacity), self.p.ghosts_max)
        here = set(self.keys.values())
        for one in list(self.everyone):
            if len(self.owner) <= limit:
                return
            self.everyone.remove(one)
            self.everyone.append(one)
            if one is self.current:
                continue
            self.wait(one, self.now)
            stop = max(one.start, self.cached_end(one))
            first = stop
            while first > one.start and one.path[first - 1] in here:
                first -= 1
            gone = [*one.path[one.start : first], *one.path[stop:]]
            self.leave_shadow(one, len(gone))
            one.start, one.path = first, one.path[:stop]
            for key in gone:
                del self.owner[key]
                if key not in here:
                    del self.starts[key]
            if one.start < len(one.path):
                self.file(one)
            else:
                self.bury(one)
            for key in gone:
                if key in here:
                    self.set_apart(key)

    def take_hints(self, one: One, hints: Hints) -> None:
        if hints.continues is not Continues.UNKNOWN:
            one.continues = hints.continues
        one.ttl = one.ttl if hints.ttl_s is None else hints.ttl_s
        one.labels = hints.labels or one.labels
        one.output = one.output if hints.output_tokens is None else hints.output_tokens
        if hints.session:
            for other in self.everyone:
                if other.session == hints.session:
                    other.session = ""
            one.session = hints.session

    # Time.

    def run(self, one: One, name: int) -> None:
        if not one.names:
            self.wait(one, self.now)
            one.age, one.since, one.running_since = 0, self.now, self.now
        one.names.append(name)

    def lie_idle(self, one: One, at: float) -> None:
        self.wait(one, at)
        one.ended = one.since = at
        one.age = 1
        self.classify(one)

    def due(self, one: One) -> float:
        if one.age == 0:
            return one.running_since + self.p.running_s_max
        closes = math.inf if one.closed or one.ttl is None else one.ended + one.ttl
        return min(closes, one.ended + EDGES[one.age] if one.age < N_BINS - 1 else math.inf)

    def advance(self, now: float) -> None:
        if not self.has_clock:
            self.has_clock, self.now = True, now
            for one in self.everyone:
                one.since = now
                self.lie_idle(one, now)
        self.now = max(self.now, now)
        while self.everyone:
            one = min(self.everyone, key=lambda one: (self.due(one), one.number))
            at = self.due(one)
            if at > self.now:
                return
            if one.age == 0:
                one.names.clear()
                self.lie_idle(one, at)
            else:
                self.wait(one, at)
                older_at = one.ended + EDGES[one.age] if one.age < N_BINS - 1 else math.inf
                if one.ttl is not None and not one.closed and one.ended + one.ttl <= at:
                    self.mark_closed(one)
                if older_at <= at:
                    one.age += 1
            self.file(one)

    # Learning.

    def wait(self, one: One, until: float) -> None:
        seconds = until - one.since
        if seconds <= 0.0:
            return
        self.learn(one, seconds, returned=0)
        for first, stop in self.runs(one):
            self.waited[one.classes[first], one.age] += (stop - max(first, one.start)) * seconds
        one.since = until

    def return_up_to(self, one: One, up_to: int) -> None:
        for first, stop in self.runs(one):
            n_blocks = min(stop, up_to) - max(first, one.start)
            if n_blocks > 0:
                self.returned[one.classes[first], one.age] += n_blocks

    def runs(self, one: One) -> list[tuple[int, int]]:
        """Stretches of one class that it still owns a part of."""
        runs: list[tuple[int, int]] = []
        for i in range(one.start, len(one.path)):
            if runs and one.classes[runs[-1][0]] == one.classes[i]:
                runs[-1] = (runs[-1][0], i + 1)
            else:
                runs.append((i, i + 1))
        return runs

    def learn(self, one: One, seconds: float, *, returned: int) -> None:
        if one.settled or one.age == 0:
            return
        expected = self.curve[WORDS.index(one.continues)][one.age] * seconds
        if not returned and expected < 1e-6:
            return
        error = max(-2.0, min(2.0, self.rate(one) * expected - returned))
        n_own = len(one.path) - max(one.start, one.first_unshared)
        error *= min(4.0, max(0.1, n_own / self.mean_new))
        for feature in one.features:
            self.square[feature] += error * error
            self.weight[feature] -= 0.05 * error / math.sqrt(self.square[feature] + 1.0)

    def rate(self, one: One) -> float:
        return math.exp(min(4.0, max(-8.0, sum(self.weight[feature] for feature in one.features))))

    def set_classes(self, one: One) -> None:
        """Shared is the beginning, of what it owns, through which several conversations started."""
        end = len(one.path)
        n_shared = next((i for i in range(one.start, end) if self.starts[one.path[i]] < 2), end)
        shared = [SHARED + min(6, int(math.log2(max(2, self.starts[key])))) - 1 for key in one.path[:n_shared]]
        one.classes = [*shared, *[0] * (end - n_shared - 1), *[LAST] * (n_shared < end)]

    def classify(self, one: One) -> None:
        if not one.named:
            one.classes = [UNNAMED]
            return

        def log(value: float, steps: float = 1.0) -> int:
            return min(40, math.floor(steps * math.log2(value))) if value > 0 else -1

        later = one.turn > 1
        turn = sum(one.turn > last for last in (1, 2, 3, 5, 8, 16, 64)) + 1
        length, gap = log(len(one.path), 1.5), log(one.gap + 1) if later else -9
        output = -9 if one.output is None else log(one.output + 1)
        one.features = [
            (0,),
            (1, turn),
            (2, length),
            (3, output),
            (4, gap),
            (5, log(one.mean_gap + 1) if later else -9),
            (6, log(one.n_new + 1)),
            (7, min(turn, 2), length, output),
            (8, turn, gap),
            (9, turn, output),
            *((20 + i, zlib.crc32(label.encode()) % 1024) for i, label in enumerate(one.labels)),
        ]
        if one.continues is not Continues.UNKNOWN:
            one.features.append((10, int(one.continues is Continues.YES)))
        score = max(0, min(15, math.floor(math.log2(self.rate(one)) * 3 + 8.0)))
        scored = 16 * WORDS.index(one.continues) + score
        one.classes = [scored if c < ABANDONED else c for c in one.classes]
        if one.closed:
            self.mark_closed(one)

    def mark_closed(self, one: One) -> None:
        one.closed = one.settled = True
        one.classes = [CLOSED if c < ABANDONED or c in (ABANDONED, LAST) else c for c in one.classes]

    def refresh(self) -> None:
        made_up = self.p.pseudo_requests * self.mean_new
        first_guess = [0.3 / ((5.0 if a == 0 else EDGES[a - 1]) + 30.0) for a in range(N_BINS)]
        pooled = self.curve_of(range(48), first_guess, made_up)
        said = [any(self.waited[c, a] for c in range(16 * w, 16 * w + 16) for a in range(N_BINS)) for w in range(3)]
        self.curve = [
            self.curve_of(range(16 * w, 16 * w + 16), pooled, made_up) if sum(said) > 1 else pooled for w in range(3)
        ]
        self.index: dict[tuple[int, int], float] = {}
        for c in range(N_CLASSES):
            w = c // 16
            if w in (1, 2) and not said[w]:
                for a in range(N_BINS):
                    self.index[c, a] = self.index[c % 16, a]
                continue
            for a, best in enumerate(self.best_rates(c, self.curve[w] if c < ABANDONED else pooled, made_up)):
                self.index[c, a] = best

    def curve_of(self, classes: range, prior: list[float], made_up: float) -> list[float]:
        return [
            (sum(self.returned[c, a] for c in classes) + made_up)
            / (sum(self.waited[c, a] for c in classes) + made_up / prior[a])
            for a in range(N_BINS)
        ]

    def best_rates(self, c: int, curve: list[float], made_up: float) -> list[float]:
        usual = 0.2 if c in (ABANDONED, CLOSED, LAST) else 1.0 if c == UNNAMED else 2.0
        if c < ABANDONED:
            usual = 2.0 ** ((c % 16 + 0.5 - 8.0) / 3)
        returned = sum(self.returned[c, a] for a in range(N_BINS))
        expected = sum(self.waited[c, a] * curve[a] for a in range(N_BINS))
        ratio = (returned + made_up * usual) / (expected + made_up)
        hazard = [
            max(1e-9, (self.returned[c, a] + made_up) / (self.waited[c, a] + made_up / (curve[a] * ratio)))
            for a in range(N_BINS)
        ]
        widths = [0.0, *(EDGES[a] - EDGES[a - 1] for a in range(1, N_BINS - 1)), 1e5]
        best_rates = []
        for age in range(N_BINS):
            here, gained, kept, best = 1.0, 0.0, self.mean_service if age == 0 else 0.0, 0.0
            for a in range(max(1, age), N_BINS):
                now = here * -math.expm1(-hazard[a] * widths[a])
                gained, kept, here = gained + now, kept + now / hazard[a], here - now
                best = max(best, gained / kept)
            best_rates.append(best)
        return best_rates
