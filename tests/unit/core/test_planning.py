"""Fetch or recompute in the core: what is offered, how long is waited for it, how a slow source is tried again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from tests.unit.core.builders import BLOCK_BYTES, BLUE, PEER, RED, REDIS, World, chain, checksum
from tiered.blocks.state import BlockState
from tiered.core.fetch_plan import FetchDecision
from tiered.core.lease import Lease
from tiered.core.load_op import LoadOp
from tiered.core.match import note_origins
from tiered.core.planning import ALLOWANCE, MARGIN, PROBE_AFTER_S, end_load, plan_fetch, time_for
from tiered.core.promote import FETCH_BLOCKS_MAX, key_of
from tiered.core.pump import pump
from tiered.core.stats import node_stats
from tiered.core.why import WhyLog, happening_of
from tiered.estimate.sources import SourceKey
from tiered.jobs import FetchDone, FetchJob, Origin, PeerAddress
from tiered.types import BlockHash, Source, TenantId

OTHER_PEER = Origin(Source.PEER, PeerAddress("another", 1, "127.0.0.1", 2))
FAST, SLOW = 1e6, 10.0
"""Bytes a second. A block is computed in 0.04 s, fetched in 0.1 ms or in 10 s."""

PREFILL = 100.0


class Planned(World):
    """A world in which the engine has reported its rate, and sources are measured by what they did."""

    def __init__(self, n_blocks: int = 400, *, prefill: float = PREFILL) -> None:
        super().__init__(n_blocks)
        self.core.why = WhyLog()
        if prefill:
            self.core.prefill.note(1_000, 1_000 / prefill)

    def offer(self, hashes: Sequence[BlockHash], origin: Origin) -> Lease:
        """All of it from there, planned by nobody."""
        lease = self.match(hashes)
        note_origins(lease, [(origin,)] * (len(hashes) - len(lease.pinned)))
        return lease

    def plan(
        self,
        hashes: Sequence[BlockHash],
        below: Sequence[Origin] | Mapping[int, Sequence[Origin]],
        *,
        tenant: TenantId = RED,
    ) -> Lease:
        lease = self.match(hashes, tenant=tenant, below=below)
        self.turn()
        return lease

    def turn(self) -> None:
        pump(self.core, self.seam, now=self.now)
        super().turn()

    def end(self, job: FetchJob, took_s: float, *, good: Iterable[BlockHash] | None = None) -> None:
        self.seam.fetches.remove(job)
        have = set(job.hashes if good is None else good)
        self.seam.done.append(
            FetchDone(job.ticket, tuple(checksum(h) if h in have else None for h in job.hashes), took_s)
        )
        self.turn()

    def measure(self, origin: Origin, bytes_per_s: float) -> None:
        """By loads of other prompts."""
        for n_blocks in (8, 32, 8):
            prompt = chain(f"{key_of(origin)}{bytes_per_s}{n_blocks}{self.now}", n_blocks)
            lease = self.offer(prompt, origin)
            self.load(lease)
            (job,) = self.seam.fetches
            took_s = n_blocks * BLOCK_BYTES / bytes_per_s
            self.now += took_s
            self.end(job, took_s)
            self.release(lease)

    def decisions(self) -> dict[str, int]:
        return {decision.value: n for decision, n in self.core.plans.decisions.items() if n}

    def planned(self) -> list[dict[str, int | float | str]]:
        assert self.core.why is not None
        return [happening_of(entry).detail for entry in self.core.why.take() if happening_of(entry).what == "planned"]


def offered(lease: Lease) -> list[Origin]:
    return [choices[0] for _, choices in sorted(lease.origins.items())]


def test_while_no_engine_has_reported_all_is_offered_from_the_nearest_place_as_ever() -> None:
    world = Planned(prefill=0.0)
    world.measure(PEER, SLOW)
    lease = world.plan(chain("p", 40), [PEER, REDIS])
    assert offered(lease) == [PEER] * 40
    assert lease.plan is None
    assert time_for(lease, asked_s=5.0) == 5.0
    assert world.decisions() == {}
    assert world.planned() == []


def test_what_comes_quicker_than_it_is_computed_is_fetched_and_the_decision_is_explained() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.planned()
    lease = world.plan(chain("p", 40), [PEER])
    assert offered(lease) == [PEER] * 40
    assert lease.plan is not None
    assert lease.plan.decision is FetchDecision.FETCH_ALL
    assert lease.plan.computed_s == pytest.approx(1.6, rel=0.01)
    assert lease.plan.ttft_s == pytest.approx(40 * BLOCK_BYTES / FAST, rel=0.1)
    assert world.decisions() == {"fetch_all": 1}
    (detail,) = world.planned()
    assert detail["decision"] == "fetch_all"
    assert detail["from peer other"] == 40
    assert detail["computed_s"] == round(lease.plan.computed_s, 6)


def test_a_source_slower_than_the_engine_is_not_asked_at_all() -> None:
    world = Planned()
    world.measure(REDIS, SLOW)
    lease = world.plan(chain("p", 40), [REDIS])
    assert lease.origins == {}
    assert lease.plan is not None
    assert lease.plan.ttft_s == lease.plan.computed_s
    assert world.load(lease).done
    assert world.decisions() == {"compute": 1}


def test_nothing_is_decided_where_nobody_has_anything() -> None:
    world = Planned()
    lease = world.plan(chain("p", 4), [])
    assert lease.plan is None
    assert (world.decisions(), world.planned()) == ({}, [])


def test_a_prefix_is_fetched_up_to_where_only_a_slow_source_has_it() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.measure(REDIS, SLOW)
    lease = world.plan(chain("p", 60), {i: [PEER, REDIS] if i < 20 else [REDIS] for i in range(60)})
    assert offered(lease) == [PEER] * 20
    assert world.decisions() == {"fetch_part": 1}


def test_segments_of_one_prefix_come_from_several_sources_and_each_has_the_others_to_fall_back_on() -> None:
    world = Planned()
    for origin in (PEER, OTHER_PEER, REDIS):
        world.measure(origin, 10_000.0)
    world.seam.fetches.clear()
    prompt = chain("p", 4 * FETCH_BLOCKS_MAX)
    lease = world.plan(prompt, [PEER, OTHER_PEER, REDIS])
    world.load(lease)
    assert {job.origin for job in world.seam.fetches} == {PEER, OTHER_PEER, REDIS}
    assert all(set(choices) == {PEER, OTHER_PEER, REDIS} for choices in lease.origins.values())
    for job in list(world.seam.fetches):
        world.end(job, 0.1)
    assert world.hot(prompt) == len(prompt)


def test_owners_named_in_another_order_make_no_other_piece() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.measure(OTHER_PEER, FAST / 2)
    below = {i: [PEER, OTHER_PEER] if i % 2 else [OTHER_PEER, PEER] for i in range(FETCH_BLOCKS_MAX)}
    lease = world.plan(chain("p", FETCH_BLOCKS_MAX), below)
    assert offered(lease) == [PEER] * FETCH_BLOCKS_MAX
    world.load(lease)
    assert len(world.seam.fetches) == 1


def test_what_another_load_is_fetching_already_costs_no_second_fetch_and_counts_as_coming_from_there() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.measure(REDIS, FAST / 50)
    prompt = chain("p", 40)
    first = world.offer(prompt, REDIS)
    world.load(first)
    lease = world.plan(prompt, [PEER, REDIS])
    assert lease.plan is not None
    assert lease.plan.fetched == ((SourceKey(""), 32), (SourceKey(""), 8))
    assert lease.plan.fetch_s == pytest.approx(40 * BLOCK_BYTES / (FAST / 50), rel=0.1)  # once, not twice
    op = world.load(lease)
    assert len(world.seam.fetches) == 2
    for job in list(world.seam.fetches):
        world.end(job, 0.1)
    assert op.done
    assert lease.sources == [Source.REDIS] * 40


def test_what_somebody_fetches_from_a_crawl_is_computed() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.measure(REDIS, SLOW)
    prompt = chain("p", 40)
    world.load(world.offer(prompt, REDIS))
    assert world.plan(prompt, [PEER, REDIS]).origins == {}
    assert world.decisions() == {"compute": 1}


@pytest.mark.parametrize("asked_tokens", [0, -5, 1])
def test_an_engine_that_understates_its_prompt_is_not_believed(asked_tokens: int) -> None:
    world = Planned()
    world.measure(PEER, FAST)
    prompt = chain("p", 40)
    lease = world.match(prompt, asked_tokens=asked_tokens)
    plan_fetch(world.core, lease, [(PEER,)] * 40, now=world.now)
    assert lease.plan is not None
    assert lease.plan.computed_s == pytest.approx(1.6, rel=0.01)


def test_only_what_is_below_the_hot_blocks_is_planned() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    prompt = chain("p", 40)
    world.save(prompt[:10])
    lease = world.plan(prompt, [PEER])
    assert sorted(lease.origins) == list(range(10, 40))


# Patience.


def test_a_quick_load_may_take_a_small_part_of_the_prefill_and_no_longer() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    lease = world.plan(chain("p", 40), [PEER])
    assert time_for(lease, asked_s=5.0) == pytest.approx(ALLOWANCE * 1.6, rel=0.01)
    assert time_for(lease, asked_s=0.01) == 0.01


def test_a_slower_load_has_a_margin_beyond_what_is_expected() -> None:
    world = Planned()
    world.measure(PEER, 4_000.0)  # a second for 40 blocks, which are computed in 1.6 s
    lease = world.plan(chain("p", 40), [PEER])
    assert lease.plan is not None
    assert lease.plan.fetch_s == pytest.approx(1.0, rel=0.05)
    assert lease.plan.fetch_s * 1.3 < time_for(lease, asked_s=60.0) <= MARGIN * lease.plan.fetch_s


def give_up_on(world: Planned, lease: Lease, op: LoadOp) -> None:
    """As a host does when the time is over."""
    took_s = time_for(lease, asked_s=5.0)
    world.now += took_s
    world.turn()
    assert not op.done
    end_load(world.core, lease, op, asked_s=5.0, took_s=took_s)
    world.turn()


def test_a_source_that_let_one_request_down_is_not_waited_for_by_the_next() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    lease = world.plan(chain("p", 40), [PEER])
    give_up_on(world, lease, world.load(lease))
    assert world.plan(chain("q", 40), [PEER]).origins == {}
    assert world.core.plans.out_of_patience == 1
    assert world.plan(chain("q", 40), [PEER, REDIS]).origins != {}  # Redis, never measured, is tried


def test_a_crawl_costs_one_request_its_patience_and_every_later_one_nothing() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    waited = []
    for number in range(12):
        lease = world.plan(chain(f"p{number}", 40), [PEER])
        op = world.load(lease)
        if not op.done:
            waited.append(number)
            give_up_on(world, lease, op)
        world.release(lease)
        world.now += 1.6  # it computes
        for job in list(world.seam.fetches):  # what hangs is given up by its mover
            if world.now - world.core.sources._sources[key_of(PEER)].outstanding[job.ticket][1] > 5.0:
                world.end(job, 5.0, good=())
        world.turn()
    assert waited == [0]


def test_a_load_that_waits_for_anothers_fetch_has_patience_too_and_doubts_its_source() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    prompt = chain("p", 40)
    world.load(world.offer(prompt, PEER))
    lease = world.plan(prompt, [REDIS])
    op = world.load(lease)
    assert {job.origin for job in world.seam.fetches} == {PEER}
    give_up_on(world, lease, op)
    assert op.done
    assert world.plan(chain("q", 40), [PEER]).origins == {}


def test_what_arrived_before_the_patience_was_over_counts() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    prompt = chain("p", 40)
    lease = world.plan(prompt, [PEER])
    op = world.load(lease)
    world.end(world.seam.fetches[0], 0.01)
    give_up_on(world, lease, op)
    assert len(lease.pinned) == 32
    assert world.core.plans.measured_s == pytest.approx(time_for(lease, asked_s=5.0))


def test_a_deadline_shorter_than_the_patience_puts_no_source_in_doubt() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    lease = world.plan(chain("p", 40), [PEER])
    op = world.load(lease)
    end_load(world.core, lease, op, asked_s=0.0, took_s=0.0)
    assert world.core.plans.out_of_patience == 0
    assert world.plan(chain("q", 40), [PEER]).origins != {}


# Probes.


def crawling(world: Planned) -> None:
    world.measure(PEER, SLOW)
    world.now += PROBE_AFTER_S + 0.1


def test_a_slow_source_is_tried_again_by_a_fetch_that_nobody_waits_for() -> None:
    world = Planned()
    crawling(world)
    prompt = chain("p", 40)
    lease = world.plan(prompt, [PEER])
    assert lease.origins == {}
    (probe,) = world.seam.fetches
    assert probe.origin == PEER
    assert list(probe.hashes) == prompt[: len(probe.hashes)]
    assert world.load(lease).done
    world.now += 0.001
    world.end(probe, 0.0005)
    assert world.core.strays == {}
    assert world.plan(chain("q", 40), [PEER]).origins != {}


def test_a_probe_is_in_nobodys_way() -> None:
    """The engine computes the very blocks that a probe fetches, and saves them while it hangs."""
    world = Planned()
    crawling(world)
    prompt = chain("p", 40)
    world.release(world.plan(prompt, [PEER]))
    assert world.save(prompt) == (40, "none")
    (probe,) = world.seam.fetches
    world.end(probe, 5.0)
    assert world.hot(prompt) == 40
    assert world.core.blocks_in(BlockState.FILLING) == 0
    assert world.used(RED) == world.core.blocks_in(BlockState.READY)


def test_one_probe_at_a_time_and_none_of_what_was_just_tried() -> None:
    world = Planned()
    world.measure(PEER, SLOW)
    world.plan(chain("p", 40), [PEER])
    assert world.seam.fetches == []
    world.now += PROBE_AFTER_S + 0.1
    for number in range(5):
        world.now += 1.0
        world.plan(chain(f"q{number}", 40), [PEER])
    (probe,) = world.seam.fetches
    world.end(probe, 5.0, good=())
    world.plan(chain("r", 40), [PEER])
    assert world.seam.fetches == []


def test_a_slow_source_is_tried_again_although_another_serves_well() -> None:
    world = Planned()
    crawling(world)
    world.measure(REDIS, FAST)
    lease = world.plan(chain("p", 20), [PEER, REDIS])
    assert offered(lease) == [REDIS] * 20
    assert [job.origin for job in world.seam.fetches] == [PEER]


def test_a_source_that_is_only_a_little_slower_is_left_alone() -> None:
    world = Planned()
    world.measure(PEER, FAST / 2)
    world.measure(REDIS, FAST)
    world.now += PROBE_AFTER_S + 1.0
    world.plan(chain("p", 20), [PEER, REDIS])
    assert world.seam.fetches == []


def test_in_a_full_pool_a_probe_takes_one_block() -> None:
    world = Planned(60)
    crawling(world)
    world.save(chain("full", 60), tenant=BLUE)
    assert world.core.blocks_in(BlockState.FREE) == 0
    for _ in range(3):
        world.plan(chain("p", 40), [PEER])
        world.copy_all()
    (probe,) = world.seam.fetches
    assert len(probe.hashes) == 1
    world.end(probe, 5.0, good=())
    assert world.core.blocks_in(BlockState.FREE) >= 1


def test_where_a_tenant_gets_no_slot_there_is_no_probe() -> None:
    world = Planned()
    crawling(world)
    world.limit(RED, 0)
    world.plan(chain("p", 40), [PEER])
    assert world.seam.fetches == []


def test_a_probe_that_the_queue_has_no_room_for_leaves_nothing_behind() -> None:
    world = Planned()
    crawling(world)
    world.seam.room = 0
    world.plan(chain("p", 40), [PEER])
    assert world.core.strays == {}
    assert world.core.blocks_in(BlockState.FILLING) == 0


# Saves that meet a fetch which nobody waits for.


def given_up(world: Planned, prompt: Sequence[BlockHash]) -> None:
    world.measure(PEER, FAST)
    lease = world.plan(prompt, [PEER])
    give_up_on(world, lease, world.load(lease))
    world.release(lease)


def test_what_was_computed_instead_of_waiting_can_be_saved_while_the_fetch_hangs() -> None:
    world, prompt = Planned(), chain("p", 40)
    given_up(world, prompt)
    assert world.save(prompt) == (40, "none")
    for job in list(world.seam.fetches):
        world.end(job, 5.0)
    assert world.core.strays == world.core.filling == world.core.loads == world.core.fetching == {}
    assert [world.core.table[world.id_of(h)].checksum for h in prompt] == [checksum(h) for h in prompt]
    assert world.used(RED) == world.core.blocks_in(BlockState.READY)


def test_what_had_arrived_behind_the_hanging_part_goes_back() -> None:
    world, prompt = Planned(), chain("p", 40)
    world.measure(PEER, FAST)
    lease = world.plan(prompt, [PEER])
    op = world.load(lease)
    world.end(world.seam.fetches[1], 0.01)  # the second part of the prompt: nothing of it may be used
    give_up_on(world, lease, op)
    assert world.save(prompt[:10]) == (10, "none")
    assert world.hot(prompt) == 10
    (job,) = world.seam.fetches
    world.end(job, 5.0)
    assert world.core.blocks_in(BlockState.FILLING) == 0


def test_a_save_leaves_a_fetch_alone_that_somebody_waits_for() -> None:
    world, prompt = Planned(), chain("p", 40)
    world.measure(PEER, FAST)
    lease = world.plan(prompt, [PEER])
    op = world.load(lease)
    assert world.save(prompt) == (0, "busy")
    for job in list(world.seam.fetches):
        world.end(job, 0.01)
    assert op.done
    assert len(lease.pinned) == 40


def test_a_node_publishes_what_it_has_measured() -> None:
    world = Planned()
    world.measure(PEER, FAST)
    world.measure(REDIS, FAST / 10)
    world.load(world.offer(chain("p", 40), REDIS))
    rates = node_stats(world.core, engines=1, layout="").rates
    assert rates.peers.bytes_per_s == pytest.approx(FAST, rel=0.1)
    assert rates.redis.bytes_per_s == pytest.approx(FAST / 10, rel=0.1)
    assert rates.prefill_tokens_per_s == pytest.approx(PREFILL)
    assert rates.waiting_s == pytest.approx(40 * BLOCK_BYTES / (FAST / 10), rel=0.1)
