"""What every CacheClient promises: the same tests on a core in this process and on a worker in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.contract.conftest import MakeRig
from tests.support.content import LAYOUT, TENANT, filler, hashes_of, prompt, right_bytes, save, take, wrong_blocks
from tests.support.worker_process import until
from tiered.hashing.chain import Extras
from tiered.pool.pool import BlockPool
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import BlockId, Continues, Hints, Source, TenantId

OTHER = TenantId("globex")
T = LAYOUT.block_tokens


def test_an_empty_cache_has_nothing(make_rig: MakeRig) -> None:
    client = make_rig().client
    match = client.match(prompt(1, 4), tenant=TENANT)
    assert (match.n_blocks, list(match.block_ids)) == (0, [])
    assert list(client.load(match).block_ids) == []
    assert client.release(match, used_tokens=0)


def test_what_was_saved_is_found_bit_equal_by_every_client_of_the_tier(make_rig: MakeRig) -> None:
    rig = make_rig()
    saved = save(rig.client, prompt(1, 5))
    assert (saved.n_stored, saved.first_index, saved.reason) == (5, 0, "")
    for client in (rig.client, rig.other):
        assert take(client, prompt(1, 5)) == Counter({Source.HOT: 5})


def test_a_match_and_a_load_say_the_same_blocks_with_their_checksums(make_rig: MakeRig) -> None:
    client = make_rig().client
    saved = save(client, prompt(1, 3))
    match = client.match(prompt(1, 3), tenant=TENANT)
    loaded = client.load(match)
    assert list(loaded.block_ids) == list(match.block_ids)
    assert list(loaded.checksums) == list(match.checksums) == list(saved.checksums)
    assert None not in saved.checksums
    assert list(loaded.sources) == [Source.HOT] * 3
    assert client.release(match, used_tokens=3 * T)


def test_only_full_blocks_are_kept(make_rig: MakeRig) -> None:
    client = make_rig().client
    tokens = prompt(1, 3)[:-1]
    assert save(client, tokens).n_stored == 2
    assert take(client, tokens) == Counter({Source.HOT: 2})
    assert save(client, tokens[: T - 1]).n_stored == 0
    assert take(client, tokens[: T - 1]) == Counter()


def test_a_prompt_of_nothing_is_a_miss_and_saves_nothing(make_rig: MakeRig) -> None:
    client = make_rig().client
    assert take(client, []) == Counter()
    assert save(client, []).n_stored == 0


def test_a_longer_prompt_finds_the_part_that_is_there_and_saves_the_rest(make_rig: MakeRig) -> None:
    client = make_rig().client
    save(client, prompt(1, 3))
    assert take(client, prompt(1, 7)) == Counter({Source.HOT: 3})
    saved = save(client, prompt(1, 7))
    assert (saved.first_index, saved.n_stored) == (3, 4)
    assert take(client, prompt(1, 7)) == Counter({Source.HOT: 7})


def test_what_is_all_there_is_not_written_again(make_rig: MakeRig) -> None:
    client = make_rig().client
    save(client, prompt(1, 3))

    def must_not_fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        raise AssertionError("nothing is missing")

    saved = client.save(prompt(1, 3), tenant=TENANT, fill=must_not_fill)
    assert (saved.n_stored, saved.first_index, saved.reason) == (0, 3, "")


def test_prompts_that_fork_share_their_beginning_and_keep_their_ends_apart(make_rig: MakeRig) -> None:
    client = make_rig().client
    stem, left, right = prompt(1, 2), prompt(2, 2), prompt(3, 2)
    save(client, stem + left)
    saved = save(client, stem + right)
    assert (saved.first_index, saved.n_stored) == (2, 2)
    assert take(client, stem + left) == take(client, stem + right) == Counter({Source.HOT: 4})
    # The same tokens after another beginning are another block.
    assert take(client, left) == Counter()


def test_another_tenant_never_finds_it_and_the_same_one_does(make_rig: MakeRig) -> None:
    client = make_rig().client
    save(client, prompt(1, 3), tenant=TENANT)
    assert take(client, prompt(1, 3), tenant=OTHER) == Counter()
    assert take(client, prompt(1, 3), tenant=TENANT) == Counter({Source.HOT: 3})
    assert save(client, prompt(1, 3), tenant=OTHER).n_stored == 3
    assert take(client, prompt(1, 3), tenant=OTHER) == Counter({Source.HOT: 3})


@pytest.mark.parametrize("sharing", ["group:team", "public"])
def test_tenants_that_share_find_each_others_blocks_and_one_that_stays_private_does_not(
    make_rig: MakeRig, sharing: str
) -> None:
    rig = make_rig()
    rig.set_policy(TenantPolicy(tenant=DEFAULT_TENANT, sharing=sharing))
    tokens = prompt(1, 2)
    hashes = rig.client.match(tokens, tenant=TENANT).hashes
    assert rig.client.save(tokens, tenant=TENANT, fill=filler(hashes)).n_stored == 2
    match = rig.other.match(tokens, tenant=OTHER)
    assert list(match.hashes) == list(hashes)
    assert rig.other.pool is not None
    assert len(match.block_ids) == 2
    assert wrong_blocks(rig.other.pool, match.block_ids, hashes) == []
    assert rig.other.release(match, used_tokens=2 * T)
    assert take(rig.client, tokens, tenant=TENANT, hashes=hashes) == Counter({Source.HOT: 2})
    assert list(hashes) != hashes_of(tokens)  # what a private tenant would look for


def test_a_change_of_sharing_is_seen_within_two_seconds(make_rig: MakeRig) -> None:
    rig = make_rig()
    tokens = prompt(1, 2)
    save(rig.client, tokens)
    rig.set_policy(TenantPolicy(tenant=TENANT, sharing="public"))
    until(lambda: not take(rig.client, tokens), "the private blocks are not looked for", within_s=2.0)


def test_a_save_says_whose_blocks_left_for_it(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=8)
    save(rig.client, prompt(1, 8), tenant=OTHER)
    saved = save(rig.client, prompt(2, 2))
    assert (saved.n_stored, saved.gave, saved.answer) == (2, {OTHER: 2}, f"granted after reclaiming from {OTHER}")
    assert save(rig.client, prompt(2, 2)).answer == "granted"
    rig.set_policy(TenantPolicy(tenant=TENANT, hot_limit_bytes=0))
    assert save(rig.client, prompt(3, 1), wait_s=0.1).answer == "refused: quota"


def test_hints_and_the_end_of_a_session_are_taken_by_any_policy(make_rig: MakeRig) -> None:
    client = make_rig().client
    hints = Hints(continues=Continues.YES, ttl_s=30.0, session="chat-1", labels=("tools=7",))
    tokens = prompt(1, 2)
    match = client.match(tokens, tenant=TENANT, hints=hints)
    assert client.release(match, used_tokens=0)
    assert client.save(tokens, tenant=TENANT, fill=filler(hashes_of(tokens)), hints=hints).n_stored == 2
    client.close_session("chat-1", tenant=TENANT)
    client.close_session("nobody's", tenant=TENANT)
    assert take(client, tokens) == Counter({Source.HOT: 2})


def test_an_adapter_or_a_salt_is_part_of_the_identity(make_rig: MakeRig) -> None:
    client = make_rig().client
    tokens, extras = prompt(1, 2), Extras(adapter="lora-a")
    hashes = hashes_of(tokens, extras=extras)
    client.save(tokens, tenant=TENANT, fill=filler(hashes), extras=extras)
    assert client.match(tokens, tenant=TENANT).n_blocks == 0
    assert client.match(tokens, tenant=TENANT, extras=Extras(salt="lora-a")).n_blocks == 0
    assert client.match(tokens, tenant=TENANT, extras=extras).n_blocks == 2


def test_of_a_chain_longer_than_the_pool_the_beginning_is_kept(make_rig: MakeRig) -> None:
    client = make_rig(n_blocks=8).client
    saved = save(client, prompt(1, 20), wait_s=0.2)
    assert (saved.n_stored, saved.first_index, saved.reason) == (8, 0, "full")
    assert take(client, prompt(1, 20)) == Counter({Source.HOT: 8})


def test_what_was_pushed_out_comes_back_from_redis_bit_equal(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=8)
    save(rig.client, prompt(1, 6))
    save(rig.client, prompt(2, 8))
    until(lambda: rig.in_redis() >= 6, "the first prompt is in Redis")
    match = rig.client.match(prompt(1, 6), tenant=TENANT)
    assert (len(match.block_ids), match.n_redis, match.n_peer) == (0, 6, 0)
    rig.client.release(match, used_tokens=0)
    assert take(rig.client, prompt(1, 6)) == Counter({Source.REDIS: 6})


def test_pins_of_a_match_survive_pressure(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=8)
    save(rig.client, prompt(1, 4))
    match = rig.client.match(prompt(1, 4), tenant=TENANT)
    for seed in range(2, 6):
        save(rig.other, prompt(seed, 8), wait_s=0.2)
    pool = rig.client.pool
    assert pool is not None
    assert wrong_blocks(pool, match.block_ids, hashes_of(prompt(1, 4))) == []
    assert rig.client.release(match, used_tokens=4 * T)
    assert save(rig.other, prompt(9, 8)).n_stored == 8  # and after the release their room is anybody's


def test_a_match_is_released_once(make_rig: MakeRig) -> None:
    client = make_rig().client
    save(client, prompt(1, 2))
    match = client.match(prompt(1, 2), tenant=TENANT)
    assert client.release(match, used_tokens=2 * T)
    assert not client.release(match, used_tokens=2 * T)
    assert list(client.load(match).block_ids) == []


def test_pins_end_by_themselves_and_a_late_release_says_so(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=2, match_lease_s=0.05)
    save(rig.client, prompt(1, 2))
    match = rig.client.match(prompt(1, 2), tenant=TENANT)

    def room_is_made() -> bool:
        take(rig.other, prompt(3, 1))
        return save(rig.other, prompt(2, 2), wait_s=0.0).n_stored == 2

    until(room_is_made, "the pins no longer hold the pool")
    assert not rig.client.release(match, used_tokens=2 * T)


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1.5, "7", None])
def test_a_token_that_is_none_is_refused_and_nothing_is_stored(make_rig: MakeRig, bad: object) -> None:
    client = make_rig().client
    tokens = [*prompt(1, 2)[:-1], bad]
    with pytest.raises(ValueError, match="tokens: "):
        client.match(tokens, tenant=TENANT)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens: "):
        save(client, tokens)  # type: ignore[arg-type]
    assert take(client, prompt(1, 2)) == Counter()


@pytest.mark.parametrize(
    ("n_tokens", "took_s"),
    [
        (2_000, 0.5),
        (0, 0.5),
        (-1, 1.0),
        (63, 1.0),
        (2_000, 0.0),
        (2_000, float("nan")),
        (2_000, float("inf")),
        (1 << 80, 1.0),
    ],
)
def test_a_report_of_how_long_the_engine_computed_costs_nothing_however_absurd(
    make_rig: MakeRig, n_tokens: int, took_s: float
) -> None:
    client = make_rig().client
    save(client, prompt(1, 3))
    client.note_prefill(n_tokens=n_tokens, took_s=took_s)
    assert take(client, prompt(1, 3)) == Counter({Source.HOT: 3})


def test_what_would_take_longer_to_fetch_than_to_compute_is_computed(make_rig: MakeRig) -> None:
    """Of an engine that computes a hundred million tokens a second."""
    rig = make_rig(n_blocks=8)
    save(rig.client, prompt(1, 6))
    save(rig.client, prompt(2, 8))
    until(lambda: rig.in_redis() >= 6, "the first prompt is in Redis")
    assert take(rig.client, prompt(1, 6)) == Counter({Source.REDIS: 6})  # by which Redis is measured
    save(rig.client, prompt(2, 8))
    until(lambda: rig.client.match(prompt(1, 6), tenant=TENANT).n_redis == 6, "nothing of it is hot")
    rig.client.note_prefill(n_tokens=1_000_000, took_s=0.011)
    match = rig.client.match(prompt(1, 6), tenant=TENANT)
    assert match.n_redis < 6
    assert rig.client.release(match, used_tokens=0)


def test_a_prefix_that_another_is_writing_is_left_to_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    seen = []

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        seen.append(save(rig.other, prompt(1, 3)))
        # Not to be found before it is whole, and nobody else's work is held up by it.
        assert rig.other.match(prompt(1, 3), tenant=TENANT).n_blocks == 0
        assert save(rig.other, prompt(2, 3)).n_stored == 3
        filler(hashes_of(prompt(1, 3)))(pool, block_ids, first_index)

    assert rig.client.save(prompt(1, 3), tenant=TENANT, fill=fill).n_stored == 3
    assert [(saved.n_stored, saved.reason) for saved in seen] == [(0, "busy")]
    assert take(rig.other, prompt(1, 3)) == Counter({Source.HOT: 3})


def test_a_fill_that_fails_leaves_nothing_behind(make_rig: MakeRig) -> None:
    client = make_rig(n_blocks=8).client

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        pool.host_view(block_ids[0])[:] = bytes(LAYOUT.block_bytes)
        raise RuntimeError("out of device memory")

    with pytest.raises(RuntimeError, match="out of device memory"):
        client.save(prompt(1, 8), tenant=TENANT, fill=fill)
    assert take(client, prompt(1, 8)) == Counter()
    assert save(client, prompt(1, 8)).n_stored == 8


def test_every_token_asked_for_is_counted_once_where_it_was_found(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=8)
    save(rig.client, prompt(1, 4))
    take(rig.client, [*prompt(1, 6), 1, 2, 3])  # 4 blocks hot, 2 blocks and 3 tokens missed
    save(rig.client, prompt(2, 8))
    until(lambda: rig.in_redis() >= 4, "the first prompt is in Redis")
    take(rig.client, prompt(1, 4))
    match = rig.client.match(prompt(2, 1), tenant=TENANT)
    rig.client.release(match, used_tokens=5)  # an engine that could not use all that it was given
    tokens = rig.tokens(TENANT)
    assert tokens.asked == tokens.hot + tokens.peer + tokens.redis + tokens.missed
    assert (tokens.asked, tokens.redis, tokens.peer) == (6 * T + 3 + 4 * T + T, 4 * T, 0)
    assert tokens.hot in (4 * T, 4 * T + 5)  # loading the first prompt may have pushed the second out


def test_a_tenant_at_its_limit_gives_up_its_own_blocks_only(make_rig: MakeRig) -> None:
    rig = make_rig(n_blocks=16)
    rig.set_policy(TenantPolicy(tenant=TENANT, hot_limit_bytes=4 * LAYOUT.block_bytes))
    save(rig.client, prompt(1, 6), tenant=OTHER)
    assert save(rig.client, prompt(1, 4)).n_stored == 4
    assert save(rig.client, prompt(2, 4)).n_stored == 4
    assert take(rig.client, prompt(1, 6), tenant=OTHER) == Counter({Source.HOT: 6})
    assert save(rig.client, prompt(3, 6), wait_s=0.2).reason == "quota"


def test_the_right_bytes_of_two_blocks_differ() -> None:
    """The suite's own control: content that could not tell two blocks apart would prove nothing."""
    first, second = hashes_of(prompt(1, 2))
    assert right_bytes(first, 64) != right_bytes(second, 64)
