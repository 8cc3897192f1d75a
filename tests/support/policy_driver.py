"""Scripts of events for an eviction policy and its naive model: both must evict the same, whatever happens."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.naive_policy import NaivePolicy
from tiered.blocks.record import NO_PARENT
from tiered.eviction.policy import EvictionPolicy
from tiered.types import BlockHash, BlockId, Continues, Hints

N_IDS, N_KEYS = 12, 30
VERBS = ["insert"] * 5 + ["hit"] * 6 + ["evict"] * 4 + ["touch", "remove", "look"]
REQUEST_VERBS = [*VERBS, *["request"] * 5, *["save"] * 2, *["end"] * 5, "close", *["wait"] * 3]
Steps = list[tuple[str, int, int]]
"""Verb, block, and what else the verb asks for: a key and a parent, what is refused."""


def steps_of(verbs: Sequence[str], *, n_max: int) -> st.SearchStrategy[Steps]:
    """Four bytes a step: hypothesis makes long scripts of bytes quickly, and shrinks them well enough."""

    def read(script: bytes) -> Steps:
        return [
            (verbs[verb % len(verbs)], number % N_IDS, high << 8 | low)
            for verb, number, high, low in zip(*[iter(script)] * 4, strict=False)
        ]

    return st.binary(min_size=4 * 30, max_size=4 * n_max).map(read)


STEPS = steps_of(VERBS, n_max=150)
REQUEST_STEPS = steps_of(REQUEST_VERBS, n_max=250)


def key_of(name: int) -> BlockHash:
    return BlockHash(hashlib.sha256(str(name).encode()).digest())


def path_to(name: int) -> list[BlockHash]:
    """Contents form a tree, in which each has two that go on from it."""
    above = path_to((name - 1) // 2) if name else []
    return [*above, key_of(name)]


def hints_of(more: int) -> Hints:
    """Mostly nothing, now and then each of them."""
    unknown = [Continues.UNKNOWN] * 2
    return Hints(
        continues=[*unknown, Continues.YES, Continues.NO][more & 3],
        ttl_s=[None, None, 0.0, 40.0][more >> 2 & 3],
        session=["", "a", "b", "c"][more >> 4 & 3],
        labels=[(), ("x",), ("y", "x"), ()][more >> 6 & 3],
        output_tokens=[None, 0, 300, 9_000][more >> 8 & 3],
    )


class Driver:
    """Applies the steps that make sense to a policy and to its model; both must evict the same."""

    def __init__(self, policy: EvictionPolicy, model: NaivePolicy, n_blocks: int, *, looks: bool = True) -> None:
        self.policy = policy
        self.model = model
        self.n_blocks = n_blocks
        self.looks = looks
        self.now = 0.0
        self.n_requests = 0
        self.running: list[int] = []
        self.seen: list[BlockId] = []
        """Since the last change: proposals of the newest look, if it was broken off."""

    @property
    def known(self) -> dict[BlockId, BlockHash]:
        return self.model.keys

    def run(self, steps: Steps) -> Driver:
        for verb, number, more in steps:
            block_id = BlockId(number % self.n_blocks)
            if verb == "evict":
                self.evict(self.refused_by(more))
            elif verb == "look":
                if self.looks:
                    self.look(number)
            elif verb == "insert":
                self.insert(block_id, more)
            elif verb in ("request", "save"):
                self.begin(verb, path_to(number * 5 % N_KEYS), more)
            elif verb == "end":
                self.end(number, more)
            elif verb == "close":
                self.tell("close", "abcd"[more & 3], now=self.now)
            elif verb == "wait":
                self.now += [0.5, 2.0, 30.0, 3_000.0][more & 3]
            elif block_id in self.known:
                self.report(verb, block_id)
        return self

    def insert(self, block_id: BlockId, more: int) -> None:
        key = key_of(more % N_KEYS)
        if block_id in self.known or key in self.known.values():
            return
        parents = [NO_PARENT, *self.known]
        parent, cost = parents[more % len(parents)], 1.0 + more % 3
        self.policy.on_insert(block_id, key=key, parent=parent, recompute_cost=cost)
        self.model.insert(block_id, key, parent, cost)
        self.seen = []

    def report(self, verb: str, block_id: BlockId) -> None:
        if verb == "remove" and self.seen and self.seen[-1] == block_id:
            list(self.policy.victims())  # a look to the end stops nowhere, so this is no eviction
        getattr(self.policy, f"on_{verb}")(block_id)
        getattr(self.model, verb)(block_id)
        self.seen = []

    def begin(self, verb: str, path: list[BlockHash], more: int) -> None:
        self.n_requests += 1
        self.running.append(self.n_requests)
        self.tell(verb, self.n_requests, path[: 1 + (more >> 10) % 6], now=self.now, hints=hints_of(more))

    def end(self, number: int, more: int) -> None:
        if self.running:
            request = self.running.pop(number % len(self.running))
            self.tell("end", request, now=self.now, output_tokens=[None, 0, 40, 5_000][more & 3])

    def tell(self, verb: str, *what: Any, **more: Any) -> None:
        getattr(self.policy, f"on_{verb}")(*what, **more)
        getattr(self.model, verb)(*what, **more)
        self.seen = []

    def refused_by(self, more: int) -> set[BlockId]:
        """Nothing, few, many or nearly all."""
        masks = [0, more & more >> 3 & more >> 5, more, more | more >> 3]
        return {b for b in self.known if masks[more >> 12 & 3] >> b & 1}

    def evict(self, refused: set[BlockId]) -> None:
        victim = next((b for b in self.policy.victims() if b not in refused), None)
        assert victim == self.model.evict(refused)
        if victim is not None:
            self.policy.on_remove(victim)
        self.seen = []

    def look(self, n_proposals: int) -> None:
        self.seen = list(itertools.islice(self.policy.victims(), n_proposals))
