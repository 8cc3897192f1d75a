"""The state that the hazard-index policy's verbs share, and the few ways in which a segment changes in all of it.

Memory says who owns a block, ages how long that has lain idle, learning what it is worth, filing where it is found: a
segment comes, grows older, is used and goes here, so that the four never disagree.
"""

from __future__ import annotations

from tiered.eviction.hazard.ages import Ages
from tiered.eviction.hazard.filing import Filing
from tiered.eviction.hazard.learning import Learning
from tiered.eviction.hazard.memory import Memory
from tiered.eviction.hazard.parameters import Parameters
from tiered.eviction.hazard.safety import Safety, ShadowLru
from tiered.eviction.hazard.segment import Block, Segment
from tiered.eviction.leaves import Tree
from tiered.types import BlockHash


class Book:
    def __init__(self, n_blocks: int, parameters: Parameters) -> None:
        self.parameters = parameters
        self.learning = Learning(parameters)
        self.ages = Ages(parameters, self.learning)
        self.memory = Memory()
        self.filing = Filing(self.learning.rates.indices)
        self.tree = Tree()
        self.shadow = ShadowLru()
        self.safety = Safety(parameters)
        self.sessions: dict[str, Segment] = {}
        """The newest request of each session that the caller named."""
        self.current: Segment | None = None
        """The request told of last, while it runs: blocks leave on its behalf, so its own leave last."""
        self.now = 0.0
        self._has_clock = False
        """The caller's clock may have begun long before it is told of here."""
        self.n_requests = 0
        self._n_uses = 0
        self._n_blocks = n_blocks
        self._has_evicted = False
        self.n_policies = 1
        """Those that share the memory meant for one pool's ghosts."""

    def capacity(self) -> int:
        """What this tenant can hold: the pool, until something had to leave; what it holds, from then on."""
        return max(1, len(self.memory.cached)) if self._has_evicted else self._n_blocks

    def ghosts_max(self) -> int:
        parameters = self.parameters
        alone = min(max(parameters.ghosts_min, parameters.ghosts_each * self.capacity()), parameters.ghosts_max)
        return max(min(alone, parameters.ghosts_least), alone // self.n_policies)

    def note_eviction(self) -> None:
        self._has_evicted = True

    def count_use(self) -> int:
        """A number that grows with every use; a segment is named by that of its first."""
        self._n_uses += 1
        return self._n_uses

    def advance(self, now: float) -> None:
        """Time goes on, never back. What is known before the first request has been idle since then."""
        if not self._has_clock:
            self._has_clock, self.now = True, now
            for block in self.memory.blocks.values():
                block.owner.since = now
                self.ages.lie_idle(block.owner, now)
        self.now = max(self.now, now)
        for segment in self.ages.advance(self.now):
            self.file(segment)

    def refresh(self) -> None:
        """Rates and indices from what was counted since the last time."""
        self.learning.rates.decay()
        self.learning.rates.refresh()
        self.filing.rank_anew(self.learning.rates.indices)

    def make_current(self, segment: Segment | None) -> None:
        before, self.current = self.current, segment
        if before is not None and before is not segment and before.is_alive:
            self.file(before)
        if segment is not None:
            self.filing.take_out(segment)

    def file(self, segment: Segment) -> None:
        """Where it belongs now, or nowhere if its deepest cached block may not leave."""
        tail = segment.tail()
        if tail is None or segment is self.current or tail.block_id in self.tree.inner:
            self.filing.take_out(segment)
        else:
            self.filing.file(segment, segment.tail_class())

    def bring(self, key: BlockHash) -> Block:
        """A block that no request has named becomes known."""
        block = self.memory.blocks[key] = Block(key)
        self.set_apart(block)
        return block

    def set_apart(self, block: Block) -> None:
        """The block becomes a segment of its own, of which no request is known."""
        number = self.count_use()
        segment = Segment(number=number, used_at=number, began_at=self.now, unnamed=True, is_settled=True)
        segment.blocks.append(block)
        segment.length = 1
        segment.since = self.now
        block.owner, block.index = segment, 0
        self.memory.begin(segment)
        self.ages.lie_idle(segment, self.now)
        if block.block_id is not None:
            segment.cached_end = 1
            self.file(segment)

    def use(self, segment: Segment, *, up_to: int) -> None:
        """Its first blocks were used by a request that this tenant's policy is not told of: its waiting begins anew.

        Such a use comes block by block, at one time and from the deepest up, and counts once.
        """
        if segment.ended_at < self.now:
            self.learning.note_waiting(segment, self.now)
            self.learning.note_return(segment, up_to)
        self.filing.take_out(segment)
        segment.used_at = self.count_use()
        self.ages.lie_idle(segment, self.now)
        self.file(segment)

    def bury(self, segment: Segment) -> None:
        """It owns nothing any more."""
        self.filing.take_out(segment)
        self.ages.leave(segment)
        self.memory.end(segment)
        if self.sessions.get(segment.session) is segment:
            del self.sessions[segment.session]
        if self.current is segment:
            self.current = None

    def forget_ghosts(self) -> None:
        """Of the requests that are oldest, until no more is known than may be; never of the newest.

        What is known besides what can be held are ghosts as soon as the newest request is stored.
        """
        held = self.capacity() if self.n_policies == 1 else len(self.memory.cached)
        limit = held + self.ghosts_max()
        memory = self.memory
        for _ in range(memory.n_segments):
            if len(memory.blocks) <= limit:
                return
            segment = memory.pass_oldest()
            if segment is self.current:
                continue
            self.learning.note_waiting(segment, self.now)
            n_forgotten, left_over = memory.forget_ghosts(segment)
            self.shadow.leave(segment.number, n_forgotten + len(left_over))
            if segment.is_alive:
                self.file(segment)
            else:
                self.bury(segment)
            for block in left_over:
                self.set_apart(block)
