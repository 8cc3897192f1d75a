"""What every CacheClient promises of chains and vouchers: engines match in one process and copy in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.contract.conftest import MakeRig
from tests.support.content import LAYOUT, TENANT, filler, prompt, save, take
from tests.support.worker_process import until
from tiered.client.port import Chain
from tiered.hashing.chain import Extras, MultimodalItem
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, Source, TokenCounts

T = LAYOUT.block_tokens
EXTRAS = Extras(adapter="a", salt="s", items=(MultimodalItem(b"picture", T, 2 * T),))


@pytest.mark.parametrize("extras", [None, EXTRAS])
@pytest.mark.parametrize("n_before", [0, 1, T - 1, T, 2 * T + 1])
def test_a_chain_that_grew_is_that_of_all_its_tokens(make_rig: MakeRig, n_before: int, extras: Extras | None) -> None:
    client, tokens = make_rig().client, prompt(1, 5)[:-1]
    chain = client.chain(tokens[:n_before], tenant=TENANT, extras=extras)
    tail = tokens[len(chain.hashes) * T :]
    assert chain.grown(tail) == client.chain(tokens, tenant=TENANT, extras=extras)
    assert chain.grown(tail[:T]).grown(tail[T:]) == chain.grown(tail)


def test_a_chain_is_saved_and_matched_as_its_tokens_are(make_rig: MakeRig) -> None:
    rig = make_rig()
    chain = rig.client.chain(prompt(1, 4), tenant=TENANT)
    assert rig.client.save_chain(chain, fill=filler(chain.hashes)).n_stored == 4
    assert take(rig.other, prompt(1, 4)) == Counter({Source.HOT: 4})
    match = rig.other.match_chain(rig.other.chain(prompt(1, 4), tenant=TENANT))
    assert (match.n_blocks, match.asked_tokens) == (4, 4 * T)
    assert rig.other.release(match, used_tokens=4 * T)


def test_a_match_that_is_not_counted_asks_for_nothing_in_the_books(make_rig: MakeRig) -> None:
    rig = make_rig()
    save(rig.client, prompt(1, 2))
    before = rig.tokens(TENANT)
    match = rig.client.match_chain(rig.client.chain(prompt(1, 4), tenant=TENANT), is_counted=False)
    assert len(match.block_ids) == 2
    assert rig.client.release(match, used_tokens=2 * T)
    assert rig.tokens(TENANT) == before


def test_tokens_that_the_engine_had_are_not_asked_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    save(rig.client, prompt(1, 3))
    match = rig.client.match(prompt(1, 4), tenant=TENANT)
    assert rig.client.release(match, used_tokens=3 * T, own_tokens=T)
    assert rig.tokens(TENANT) == TokenCounts(asked=3 * T, hot=2 * T, missed=T)


def test_a_voucher_is_good_while_its_pins_are_held_and_for_its_pool_alone(make_rig: MakeRig) -> None:
    rig = make_rig()
    save(rig.client, prompt(1, 2))
    match = rig.client.match(prompt(1, 2), tenant=TENANT)
    voucher = match.voucher
    assert voucher is not None
    assert rig.other.vouch(voucher)
    assert not rig.other.vouch(replace(voucher, pool=b"another"))
    assert not rig.other.vouch(replace(voucher, lease=voucher.lease + 1))
    assert rig.client.release(match, used_tokens=2 * T)
    assert not rig.other.vouch(voucher)


def test_pins_that_ended_by_themselves_are_not_vouched_for(make_rig: MakeRig) -> None:
    rig = make_rig(match_lease_s=0.05)
    save(rig.client, prompt(1, 2))
    match = rig.client.match(prompt(1, 2), tenant=TENANT)
    voucher = match.voucher
    assert voucher is not None
    until(lambda: not rig.other.vouch(voucher), "the pins have ended")
    assert not rig.client.release(match, used_tokens=2 * T)


def test_what_a_fill_raises_is_raised_and_nothing_of_the_save_is_found(make_rig: MakeRig) -> None:
    rig = make_rig()
    chain = rig.client.chain(prompt(1, 3), tenant=TENANT)

    def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
        raise RuntimeError("taken away")

    with pytest.raises(RuntimeError, match="taken away"):
        rig.client.save_chain(chain, fill=fill)
    assert take(rig.other, prompt(1, 3)) == Counter()
    assert save(rig.client, prompt(1, 3)).n_stored == 3


def test_a_chain_of_nothing_saves_and_finds_nothing(make_rig: MakeRig) -> None:
    client = make_rig().client
    chain = client.chain([], tenant=TENANT)
    assert chain == Chain(TENANT, chain.root, [], 0, T)
    assert client.save_chain(chain, fill=filler([])).n_stored == 0
    match = client.match_chain(chain)
    assert match.n_blocks == 0
    client.release(match, used_tokens=0)
