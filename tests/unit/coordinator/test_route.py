"""Which node comes first, by which numbers, and which cannot come at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.view.mirror import REDIS, REDIS_BIT, Life, Mirror
from coordinator.view.naming import NamedBlocks
from coordinator.view.route import NodeRoute, Ranking, rank
from coordinator.view.spread import STRETCHES_MAX
from tests.support.content import LAYOUT, SCOPE, hashes_of, prompt
from tests.unit.coordinator.builders import node_view
from tiered.hashing.scope import encode_scope
from tiered.types import (
    BlockHash,
    DrainProgress,
    DrainState,
    Epoch,
    NodeId,
    NodeRates,
    NodeStats,
    NodeView,
    SourceRate,
)

N = 8
TOKENS = prompt(1, N)
HASHES = tuple(hashes_of(TOKENS))
NAMED = (NamedBlocks(SCOPE, HASHES),)
QUICK = SourceRate(latency_s=0.001, bytes_per_s=1e9)
RATES = NodeRates(peers=QUICK, redis=QUICK, prefill_tokens_per_s=1_000.0)
UNKNOWN = NodeRates()


def node(
    name: str, epoch: int = 1, *, rates: NodeRates = RATES, scopes: Sequence[str] = (encode_scope(SCOPE),)
) -> NodeView:
    return node_view(name, epoch=epoch, stats=NodeStats(engines=1, scopes=tuple(scopes), rates=rates))


def holding(*, redis: Sequence[BlockHash] = (), **held: Sequence[BlockHash]) -> Mirror:
    """The lives are those of epoch 1."""
    mirror = Mirror()
    lives = {Life(NodeId(name), Epoch(1)): [b"".join(hashes)] for name, hashes in held.items()}
    mirror.load(0, 0, (lives | {REDIS: [b"".join(redis)]}).items())
    return mirror


def ranking(nodes: Sequence[NodeView], mirror: Mirror, *, n_tokens: int = len(TOKENS), limit: int = 1_000) -> Ranking:
    return rank(nodes, mirror, NAMED, n_tokens=n_tokens, limit=limit)


def order(found: Ranking) -> list[str]:
    return [each.node.info.node for each in found.ranked]


def of(found: Ranking, name: str) -> NodeRoute:
    return next(each for each in found.ranked if each.node.info.node == name)


def test_the_node_that_holds_the_prompt_comes_first() -> None:
    found = ranking([node("a"), node("b"), node("c")], holding(b=HASHES, c=HASHES[:3]))
    assert order(found) == ["b", "c", "a"]
    assert [of(found, name).hot_blocks for name in "bca"] == [N, 3, 0]
    assert of(found, "b").computed_tokens == 0
    assert of(found, "b").expected_ttft_s == 0.0


def test_what_is_not_hot_comes_from_peers_and_redis_where_that_is_quicker_than_computing() -> None:
    found = of(ranking([node("a"), node("b")], holding(b=HASHES[:4], redis=HASHES[4:6]), n_tokens=N * 16 + 5), "a")
    assert (found.hot_blocks, found.peer_blocks, found.redis_blocks, found.computed_tokens) == (0, 4, 2, 2 * 16 + 5)
    fetch_s = 0.001 + 4 * LAYOUT.block_bytes / 1e9
    assert found.expected_ttft_s == pytest.approx(fetch_s + 37 / 1_000)
    assert found.uncached_s == pytest.approx((N * 16 + 5) / 1_000)


def test_a_source_slower_than_computing_is_not_used() -> None:
    crawl = msgspec.structs.replace(RATES, redis=SourceRate(latency_s=0.001, bytes_per_s=1_000.0))
    found = of(ranking([node("a", rates=crawl)], holding(redis=HASHES)), "a")
    assert (found.redis_blocks, found.computed_tokens) == (0, N * 16)
    assert found.expected_ttft_s == found.uncached_s


def test_a_node_with_fetches_waiting_is_passed_over_for_one_without() -> None:
    busy = msgspec.structs.replace(RATES, waiting_s=0.05)
    found = ranking([node("a", rates=busy), node("b")], holding(redis=HASHES))
    assert order(found) == ["b", "a"]
    assert of(found, "a").waiting_s == 0.05


def test_a_quick_engine_without_the_prompt_may_beat_a_slow_one_with_half_of_it() -> None:
    slow = msgspec.structs.replace(RATES, prefill_tokens_per_s=10.0)
    quick = msgspec.structs.replace(RATES, prefill_tokens_per_s=100_000.0)
    assert order(ranking([node("a", rates=slow), node("b", rates=quick)], holding(a=HASHES[:4]))) == ["b", "a"]


def test_blocks_behind_a_gap_count_for_nothing() -> None:
    found = ranking([node("a"), node("b")], holding(a=(*HASHES[:2], *HASHES[3:])))
    assert of(found, "a").hot_blocks == 2
    assert of(found, "a").computed_tokens == (N - 2) * 16
    assert of(found, "b").peer_blocks == 2


def test_a_node_is_no_peer_of_its_own() -> None:
    """What it holds behind a gap, and nobody else does, it does not find."""
    found = of(ranking([node("a")], holding(a=HASHES[4:], redis=HASHES[:4])), "a")
    assert (found.hot_blocks, found.peer_blocks, found.redis_blocks, found.computed_tokens) == (0, 0, 4, 4 * 16)


def test_nodes_that_cannot_have_it_are_named_with_the_reason_and_still_lend() -> None:
    lapsed = replace(node("a"), lease_left_s=0.0)
    draining = node("b")
    draining = replace(
        draining, stats=msgspec.structs.replace(draining.stats, drain=DrainProgress(state=DrainState.DRAINING))
    )
    other = node("c", scopes=[encode_scope(msgspec.structs.replace(SCOPE, model="other"))])
    idle = node("d", scopes=())
    found = ranking([lapsed, draining, other, idle, node("e")], holding(a=HASHES, b=HASHES[:4]))
    assert [(each.node.info.node, each.reason) for each in found.refused] == [
        ("a", "its lease has lapsed"),
        ("b", "it is draining"),
        ("c", "no engine of model test is attached"),
        ("d", "no engine of model test is attached"),
    ]
    assert order(found) == ["e"]
    assert of(found, "e").peer_blocks == 4, "of the draining one, not of the one that is gone"


def test_an_older_life_of_a_node_counts_for_nothing() -> None:
    found = ranking([node("a", epoch=2), node("b")], holding(a=HASHES))
    assert [each.hot_blocks + each.peer_blocks for each in found.ranked] == [0, 0]


def test_without_any_rate_nodes_are_ranked_by_what_they_hold_and_it_is_said() -> None:
    nodes = [node(name, rates=UNKNOWN) for name in "abc"]
    found = ranking(nodes, holding(b=HASHES, c=HASHES[:6]))
    assert order(found) == ["b", "c", "a"]
    assert found.unmeasured == ("prefill", "peers", "redis")
    assert {each.expected_ttft_s for each in found.ranked} == {None}


def test_a_rate_that_one_node_lacks_is_taken_from_the_others_and_it_is_said() -> None:
    """Else a source that was never tried would look quicker than any that was."""
    found = ranking([node("a", rates=UNKNOWN), node("b")], holding(redis=HASHES))
    assert of(found, "a").assumed == ("prefill", "peers", "redis")
    assert of(found, "b").assumed == ()
    assert of(found, "a").expected_ttft_s == of(found, "b").expected_ttft_s
    assert found.unmeasured == ()


def test_a_node_with_several_ranks_is_as_slow_as_the_slowest() -> None:
    ranks = [msgspec.structs.replace(SCOPE, tp_size=2, tp_rank=rank_) for rank_ in range(2)]
    hashes = [tuple(hashes_of(TOKENS, scope=scope)) for scope in ranks]
    named = [NamedBlocks(scope, theirs) for scope, theirs in zip(ranks, hashes, strict=True)]
    mirror = holding(a=(*hashes[0], *hashes[1][:3]))
    found = rank([node("a", scopes=[encode_scope(scope) for scope in ranks])], mirror, named, n_tokens=len(TOKENS))
    assert found.ranked[0].hot_blocks == 3


def test_a_prompt_shorter_than_a_block_goes_by_waiting_alone() -> None:
    busy = msgspec.structs.replace(RATES, waiting_s=1.0)
    found = rank([node("a", rates=busy), node("b")], holding(), (NamedBlocks(SCOPE, ()),), n_tokens=5)
    assert [each.computed_tokens for each in found.ranked] == [5, 5]
    assert order(found) == ["b", "a"]


def test_nodes_that_are_alike_share_the_prompts_and_equal_beginnings_stay_together() -> None:
    nodes = [node(f"n{i}") for i in range(10)]

    def first(seed: int, n_blocks: int) -> str:
        named = (NamedBlocks(SCOPE, tuple(hashes_of(prompt(seed, n_blocks)))),)
        return order(rank(nodes, holding(), named, n_tokens=n_blocks * 16))[0]

    firsts = [first(seed, 2) for seed in range(100)]
    assert len(set(firsts)) == 10
    assert max(firsts.count(name) for name in firsts) < 30
    assert first(7, 2) == first(7, 3) == first(7, 8)


def test_a_prompt_scattered_beyond_measure_is_cut_off() -> None:
    tokens = prompt(2, 4 * STRETCHES_MAX)
    hashes = hashes_of(tokens)
    mirror = holding(b=hashes[::2], redis=hashes[1::2])
    found = rank([node("a"), node("b")], mirror, (NamedBlocks(SCOPE, tuple(hashes)),), n_tokens=len(tokens))
    assert of(found, "a").computed_tokens == 3 * STRETCHES_MAX * 16


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeView], Mirror]:
    seconds = st.floats(0.0, 0.01)
    speed = st.sampled_from([0.0, 1e5, 1e6, 1e7])
    nodes, held = [], {}
    for i in range(draw(st.integers(1, 12))):
        rates = NodeRates(
            peers=SourceRate(draw(seconds), draw(speed)),
            redis=SourceRate(draw(seconds), draw(speed)),
            prefill_tokens_per_s=draw(st.sampled_from([0.0, 1_000.0, 20_000.0])),
            waiting_s=draw(st.sampled_from([0.0, 0.0, 0.01])),
        )
        nodes.append(node(f"n{i}", rates=rates))
        held[f"n{i}"] = [HASHES[index] for index in draw(st.sets(st.integers(0, N - 1), max_size=N))]
    return nodes, holding(redis=HASHES[: draw(st.integers(0, N))], **held)


@given(clusters(), st.integers(1, 5))
def test_a_limit_gives_the_head_of_the_whole_ranking(cluster: tuple[list[NodeView], Mirror], limit: int) -> None:
    nodes, mirror = cluster
    assert ranking(nodes, mirror, limit=limit).ranked == ranking(nodes, mirror).ranked[:limit]


@given(clusters())
def test_the_numbers_of_a_node_add_up_and_are_what_it_could_have(cluster: tuple[list[NodeView], Mirror]) -> None:
    nodes, mirror = cluster
    masks = mirror.masks(HASHES)
    for each in ranking(nodes, mirror, n_tokens=N * 16 + 3).ranked:
        bit = mirror.bit(NodeId(each.node.info.node), Epoch(1))
        hot = next((i for i, mask in enumerate(masks) if not mask & bit), N)
        assert each.hot_blocks == hot
        n_fetched = each.peer_blocks + each.redis_blocks
        assert each.computed_tokens == (N - hot - n_fetched) * 16 + 3
        fetched = masks[hot : hot + n_fetched]
        assert all(mask & ~bit for mask in fetched)
        assert each.peer_blocks <= sum(bool(mask & ~bit & ~REDIS_BIT) for mask in fetched)
        assert each.redis_blocks <= sum(bool(mask & REDIS_BIT) for mask in fetched)
        if each.expected_ttft_s is not None and each.uncached_s is not None:
            assert 0 <= each.expected_ttft_s <= each.uncached_s


def test_of_a_hundred_nodes_the_one_that_holds_it_is_found() -> None:
    nodes = [node(f"node-{i:03}") for i in range(100)]
    found = ranking(nodes, holding(**{"node-057": HASHES, "node-003": HASHES[:7]}), limit=2)
    assert order(found) == ["node-057", "node-003"]
