"""The mirror under any order of what may happen to it, against what the shared state truly holds."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coordinator.view.mirror import KEY_BYTES, REDIS, REDIS_BIT, Life, Mirror
from tiered.types import BlockHash, Epoch, NodeId

PARTITIONS = 2
NODES = [NodeId(name) for name in ("a", "b", "c")]
HASHES = {
    partition: [BlockHash(bytes([partition, index]) * 16) for index in range(8)] for partition in range(PARTITIONS)
}

partitions = st.integers(0, PARTITIONS - 1)
indices = st.sets(st.integers(0, 7), max_size=4)


class MirrorMachine(RuleBasedStateMachine):
    """streams and held are Redis; members is who is registered there; readings of it arrive late or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = Mirror(PARTITIONS)
        self.horizon = 0
        self.settled: dict[NodeId, Epoch] = {}
        self.forget()
        for partition in range(PARTITIONS):
            self.load_if_lost(partition)

    @rule()
    def forget(self) -> None:
        """Redis restarts empty: streams, sets and epochs begin anew."""
        self.streams: dict[int, list[tuple[Life, bytes, bytes]]] = defaultdict(list)
        self.held: dict[tuple[int, Life], set[BlockHash]] = defaultdict(set)
        self.members: dict[NodeId, Epoch] = {}
        self.reading: dict[NodeId, Epoch] = {}
        self.lives: list[Life] = [REDIS]
        self.epoch = 0
        self.next_seq = dict.fromkeys(range(PARTITIONS), 1)
        self.to_load: set[tuple[int, Life]] = set()
        self.begun_before_load: set[tuple[int, Life]] = set()
        for partition in range(PARTITIONS):
            self.mirror.lose(partition)

    @rule(node=st.sampled_from(NODES))
    def join(self, node: NodeId) -> None:
        self.epoch += 1
        self.members[node] = Epoch(self.epoch)
        self.lives.append(Life(node, Epoch(self.epoch)))

    @rule(node=st.sampled_from(NODES))
    def leave(self, node: NodeId) -> None:
        self.members.pop(node, None)

    @rule(
        data=st.data(),
        partition=partitions,
        stored=indices,
        removed=indices,
        fate=st.sampled_from(["delivered", "lost", "under way"]),
    )
    def change(self, data: st.DataObject, partition: int, stored: set[int], removed: set[int], fate: str) -> None:
        """Any life has something to say, one that has ended too: it is late."""
        life = data.draw(st.sampled_from(self.lives[-4:]))
        names = HASHES[partition]
        held = self.held[partition, life]
        held |= {names[i] for i in stored}
        held -= {names[i] for i in removed}
        entry = life, b"".join(names[i] for i in stored), b"".join(names[i] for i in removed)
        self.streams[partition].append(entry)
        if fate == "delivered":
            self.deliver(partition, len(self.streams[partition]))
        elif fate == "lost":
            self.next_seq[partition] = len(self.streams[partition]) + 1

    @rule(partition=partitions, n=st.integers(1, 4))
    def deliver(self, partition: int, n: int) -> None:
        for _ in range(n):
            seq = self.next_seq[partition]
            if seq > len(self.streams[partition]):
                return
            life, stored, removed = self.streams[partition][seq - 1]
            self.mirror.apply(partition, seq, life, stored=stored, removed=removed)
            self.next_seq[partition] += 1

    @rule(partition=partitions)
    def deliver_again(self, partition: int) -> None:
        seq = self.next_seq[partition] - 1
        if seq >= 1:
            life, stored, removed = self.streams[partition][seq - 1]
            self.mirror.apply(partition, seq, life, stored=stored, removed=removed)

    @rule()
    def read_members(self) -> None:
        self.reading = dict(self.members)

    @rule()
    def settle(self) -> None:
        for life in self.mirror.set_members(self.reading):
            self.to_load |= {(partition, life) for partition in range(PARTITIONS)}
        self.settled = self.reading
        self.horizon = max(self.horizon, *self.reading.values(), 0)

    @rule(partition=partitions)
    def load_if_lost(self, partition: int) -> None:
        if self.mirror.position(partition) < 0:
            position = len(self.streams[partition])
            asked = {Life(*member) for member in self.reading.items()} | self.mirror.lives.keys() | {REDIS}
            self.begun_before_load |= {(partition, life) for life in self.lives if life not in asked}
            self.mirror.load(partition, position, [(life, self.pages(partition, life)) for life in asked])
            self.next_seq[partition] = position + 1

    @rule(n=st.integers(1, 20))
    def tidy(self, n: int) -> None:
        self.mirror.tidy(n)

    @rule()
    def catch_up(self) -> None:
        """Once all has arrived the mirror says what is true of every member, and of the tier."""
        self.read_members()
        self.settle()
        for partition in range(PARTITIONS):
            self.load_if_lost(partition)
            self.deliver(partition, len(self.streams[partition]))
            if self.streams[partition] and self.mirror.position(partition) >= 0:
                # What is lost at the very end shows as soon as anything else happens.
                self.change_nothing(partition)
                self.deliver(partition, 1)
            self.load_if_lost(partition)
        self.settle()
        for partition, life in self.to_load | self.begun_before_load:
            if self.members.get(life.node) == life.epoch:
                self.mirror.load_life(partition, life, self.pages(partition, life))
        self.to_load.clear()
        self.begun_before_load.clear()
        current = [Life(*member) for member in self.members.items()]
        bits = {life: self.mirror.bit(*life) for life in current} | {REDIS: REDIS_BIT}
        for partition, names in HASHES.items():
            masks = self.mirror.masks(names)
            for life, bit in bits.items():
                seen = {name for name, mask in zip(names, masks, strict=True) if mask & bit}
                assert seen == self.held[partition, life], (partition, life)
                assert self.mirror.count(partition, life) == len(seen)
        while self.mirror.tidy(100):
            pass
        allowed = sum(self.mirror.lives.values()) | REDIS_BIT
        assert all(mask and not mask & ~allowed for names in HASHES.values() for mask in self.some(names))

    @invariant()
    def counts_are_those_of_the_blocks(self) -> None:
        assert len(set(self.mirror.lives.values())) == len(self.mirror.lives)
        for partition, names in HASHES.items():
            masks = self.mirror.masks(names)
            for life, bit in (*self.mirror.lives.items(), (REDIS, REDIS_BIT)):
                assert self.mirror.count(partition, life) == sum(bool(mask & bit) for mask in masks)
        assert self.mirror.counts.blocks == sum(len(self.some(names)) for names in HASHES.values())

    @invariant()
    def no_life_counts_that_is_over(self) -> None:
        for life in self.mirror.lives:
            assert life.epoch > self.horizon or self.settled.get(life.node) == life.epoch
        assert len({life.node for life in self.mirror.lives}) == len(self.mirror.lives)

    def some(self, names: list[BlockHash]) -> list[int]:
        return [mask for mask in self.mirror.masks(names) if mask]

    def change_nothing(self, partition: int) -> None:
        self.streams[partition].append((REDIS, b"", b""))

    def pages(self, partition: int, life: Life) -> list[bytes]:
        return sorted(self.held[partition, life])


MirrorMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestMirrorMachine = MirrorMachine.TestCase


def test_names_of_the_test_differ_in_what_the_mirror_keeps_of_them() -> None:
    names = [name[:KEY_BYTES] for of in HASHES.values() for name in of]
    assert len(set(names)) == len(names)
