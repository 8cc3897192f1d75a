"""Sequences of an engine in this process: what attention reads through their block tables; many threads at once."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch

from tests.support.content import SCOPE, TENANT, prompt, save
from tests.unit.attention.reference import attend
from tiered.attention import PagedBatch, paged_attention, write_kv
from tiered.blocks.state import BlockState
from tiered.client.local import LocalClient
from tiered.client.sequences import SequenceHandle
from tiered.config import PoolSettings
from tiered.core.invariants import check_core
from tiered.errors import CapacityError, OutOfBlocks, OwnershipError
from tiered.types import TenantId

LAYOUT = SCOPE.layout
SIZE = LAYOUT.block_tokens
N_HEADS = 4


def client_of(n_blocks: int) -> LocalClient:
    return LocalClient(SCOPE, PoolSettings(bytes=n_blocks * LAYOUT.block_bytes))


@pytest.fixture
def client() -> Iterator[LocalClient]:
    opened = client_of(32)
    opened.pool.tensor.fill_(torch.nan)
    yield opened
    opened.close()


def content(prefix: Sequence[int]) -> torch.Tensor:
    """Of a prefix's last token, from all of the prefix. Shape: (n_layers, n_planes, n_kv_heads, head_dim)."""
    generator = torch.Generator().manual_seed(hash(tuple(prefix)) & 0xFFFF_FFFF)
    return torch.randn(LAYOUT.n_layers, 2, LAYOUT.n_kv_heads, LAYOUT.head_dim, generator=generator)


def compute(client: LocalClient, sequence: SequenceHandle, first_token: int) -> None:
    """What an engine does with the tokens of an append."""
    tokens = sequence.tokens
    if first_token < len(tokens):
        slots = torch.tensor(sequence.slots(first_token, len(tokens)))
        new = torch.stack([content(tokens[: i + 1]) for i in range(first_token, len(tokens))])
        for layer in range(LAYOUT.n_layers):
            write_kv(client.pool.tensor, layer, slots, new[:, layer, 0], new[:, layer, 1])
    sequence.written()


def go_on(client: LocalClient, sequence: SequenceHandle, tokens: Sequence[int]) -> int:
    first_token = sequence.append(tokens).first_token
    compute(client, sequence, first_token)
    return first_token


def check_attention(client: LocalClient, sequences: Sequence[SequenceHandle]) -> None:
    """One decode step of the batch, equal to attention over what each sequence's own tokens say."""
    tables = [sequence.block_table for sequence in sequences]
    width = max(map(len, tables))
    table = torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in tables])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    batch = PagedBatch(table, lengths, torch.ones_like(lengths), query_len_max=1)
    queries = torch.randn(len(sequences), N_HEADS, LAYOUT.head_dim, generator=torch.Generator().manual_seed(1))
    scale = LAYOUT.head_dim**-0.5
    for layer in range(LAYOUT.n_layers):
        got = paged_attention(queries, client.pool.tensor, layer, batch)
        for row, sequence in enumerate(sequences):
            tokens = sequence.tokens
            planes = torch.stack([content(tokens[: i + 1]) for i in range(len(tokens))])[:, layer]
            expected = attend(queries[row : row + 1], planes[:, 0], planes[:, 1], scale=scale)
            torch.testing.assert_close(got[row : row + 1].double(), expected, atol=1e-5, rtol=1e-5)


def test_attention_over_forks_that_part_equals_contiguous_attention(client: LocalClient) -> None:
    trunk = client.open_sequence(tenant=TENANT, tokens=[*prompt(1, 2), 7, 7, 7])
    compute(client, trunk, 0)
    beams = [trunk, trunk.fork(), trunk.fork()]
    for step in range(SIZE + 3):  # past the end of the open block
        for index, beam in enumerate(beams):
            go_on(client, beam, [100 * index + step])
        check_attention(client, beams)
        if step == 5:
            beams.append(beams[1].fork())
            beams[0].truncate(2 * SIZE + 1)
            go_on(client, beams[0], [9, 9])
    assert len({beam.block_table[:2] for beam in beams}) == 1
    late = client.open_sequence(tenant=TENANT, tokens=beams[1].tokens)
    assert late.n_written == len(late) // SIZE * SIZE
    compute(client, late, late.n_written)
    check_attention(client, [late, *beams])
    for sequence in (late, *beams):
        sequence.drop()
    assert all(record.pins == 0 for record in client.core.table.records)


def test_no_sequence_is_opened_over_blocks_that_an_engine_packs_its_own_way() -> None:
    packed = msgspec.structs.replace(SCOPE, layout=msgspec.structs.replace(LAYOUT, interior="an engine's"))
    client = LocalClient(packed, PoolSettings(bytes=4 * LAYOUT.block_bytes))
    with contextlib.closing(client), pytest.raises(ValueError, match="an engine's can only be copied whole"):
        client.open_sequence(tenant=TENANT)


def test_what_sequences_wrote_is_a_match_and_what_was_saved_is_reused(client: LocalClient) -> None:
    with client.open_sequence(tenant=TENANT, tokens=prompt(1, 2)) as sequence:
        compute(client, sequence, 0)
    assert client.match(prompt(1, 2), tenant=TENANT).n_blocks == 2
    save(client, prompt(2, 3))
    with client.open_sequence(tenant=TENANT, tokens=prompt(2, 3)) as sequence:
        assert sequence.n_written == 3 * SIZE
    assert client.match(prompt(1, 2), tenant=TenantId("other")).n_blocks == 0


def test_what_a_private_sequence_wrote_is_a_match_once_it_is_shared(client: LocalClient) -> None:
    with client.open_sequence(tenant=TENANT, is_private=True) as sequence:
        go_on(client, sequence, prompt(1, 3))
        assert (client.match(prompt(1, 3), tenant=TENANT).n_blocks, sequence.n_ready) == (0, 0)
        assert sequence.share(2 * SIZE) == 2
        assert (client.match(prompt(1, 3), tenant=TENANT).n_blocks, sequence.n_ready) == (2, 2)


def test_a_sequence_that_was_forgotten_is_dropped_with_the_next_call(client: LocalClient) -> None:
    held = client.open_sequence(tenant=TENANT, tokens=prompt(1, 30))
    other = client.open_sequence(tenant=TENANT)
    with client._changed:  # where the garbage collector may come by
        held.forget()
    assert client.core.blocks_in(BlockState.FILLING) == 30
    other.append(prompt(2, 3))
    assert client.core.blocks_in(BlockState.FILLING) == 3


def test_no_room_is_an_error_with_names_and_holds_nothing(client: LocalClient) -> None:
    held = client.open_sequence(tenant=TENANT, tokens=prompt(1, 30))
    with pytest.raises(OutOfBlocks, match=r"'acme' holds 30 of 32 blocks \(sequences: 1, leases: 0\)"):
        client.open_sequence(tenant=TenantId("late"), tokens=prompt(2, 3)).append([1])
    held.drop()
    with client.open_sequence(tenant=TenantId("late"), tokens=prompt(2, 3)) as sequence:
        assert len(sequence.block_table) == 3


def test_a_copy_that_fails_leaves_the_sequence_as_it_was(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = client.open_sequence(tenant=TENANT, tokens=[1, 2, 3])
    compute(client, trunk, 0)
    twin = trunk.fork()

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(client.pool, "copy_tokens", fail)
        with pytest.raises(RuntimeError, match="the device is gone"):
            twin.append([4])
    assert twin.tokens == [1, 2, 3]
    assert twin.block_table == trunk.block_table
    go_on(client, twin, [4])
    check_attention(client, [twin, trunk])


def test_a_dropped_sequence_is_refused_and_leaving_its_with_does_no_harm(client: LocalClient) -> None:
    with client.open_sequence(tenant=TENANT, tokens=[1]) as sequence:
        sequence.drop()
        for call in (sequence.drop, sequence.fork, sequence.written, lambda: sequence.append([1])):
            with pytest.raises(OwnershipError, match="was dropped"):
                call()


@pytest.mark.parametrize(("first_token", "end_token"), [(-1, 2), (2, 1), (0, 4)])
def test_tokens_that_are_not_there_have_no_slots(client: LocalClient, first_token: int, end_token: int) -> None:
    with (
        client.open_sequence(tenant=TENANT, tokens=[1, 2, 3]) as sequence,
        pytest.raises(ValueError, match="are not among the 3"),
    ):
        sequence.slots(first_token, end_token)


def test_many_threads_may_call_one_sequence(client: LocalClient) -> None:
    """Whatever they do to each other is one of the documented errors, and nothing is lost."""
    shared = client.open_sequence(tenant=TENANT)
    start = threading.Barrier(16)

    def meddle(seed: int) -> None:
        rng = random.Random(seed)
        start.wait(30)
        for _ in range(40):
            call = rng.choice(
                [
                    lambda: shared.append([seed] * rng.randrange(20)),
                    shared.written,
                    lambda: shared.truncate(rng.randrange(60)),
                    lambda: shared.fork().drop(),
                    lambda: shared.slots(0, len(shared)),
                ]
            )
            with contextlib.suppress(ValueError, CapacityError):
                call()

    with ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(meddle, seed) for seed in range(16)]:
            done.result(60)
    check_core(client.core)
    shared.drop()
    with pytest.raises(OwnershipError):
        shared.drop()
    assert all(record.pins == 0 for record in client.core.table.records)
    assert client.core.filling == {}


N_THREADS = 256


def test_many_threads_on_one_small_pool_lose_no_block_and_read_no_foreign_bytes() -> None:
    """Half as many blocks as threads, so that they evict each other's and run out, in every order."""
    client = client_of(N_THREADS // 2)
    start = threading.Barrier(N_THREADS + 1)
    refused = threading.Semaphore(0)

    def engine(seed: int) -> None:
        rng = random.Random(seed)
        tenant = TenantId(rng.choice(("red", "blue")))
        start.wait(30)
        for _ in range(6):
            tokens = prompt(rng.randrange(12), rng.randrange(1, 4))[: rng.randrange(1, 3 * SIZE)]
            match = client.match(tokens, tenant=tenant)
            try:
                with client.open_sequence(tenant=tenant) as sequence:
                    _live(client, sequence, tokens, rng)
            except CapacityError:
                refused.release()
            finally:
                client.release(match, used_tokens=len(match.block_ids) * SIZE)

    with ThreadPoolExecutor(N_THREADS) as threads:
        engines = [threads.submit(engine, seed) for seed in range(N_THREADS)]
        start.wait(30)
        while not all(running.done() for running in engines):
            with client._changed:
                check_core(client.core)
            threading.Event().wait(0.02)  # leave the engines the lock for a while
        for running in engines:
            running.result(0)
    core = client.core
    check_core(core)
    assert core.sequences == core.leases == core.filling == {}
    assert sum(record.pins for record in core.table.records) == 0
    assert core.blocks_in(BlockState.FREE) + core.blocks_in(BlockState.READY) == core.n_blocks
    assert sum(counters.evicted for counters in core.counters.values()) > 0
    client.close()


def _live(client: LocalClient, sequence: SequenceHandle, tokens: Sequence[int], rng: random.Random) -> None:
    """One request: a prompt, a fork that goes another way, a cut; each token marked by what it should be."""
    _mark(client, sequence, sequence.append(tokens).first_token)
    with sequence.fork() as twin:
        for _ in range(3):
            for branch in (sequence, twin):
                _mark(client, branch, branch.append([rng.randrange(1 << 20)]).first_token)
        twin.truncate(rng.randrange(len(twin) + 1))
        _mark(client, twin, twin.append(tokens[:5]).first_token)
        for branch in (sequence, twin):
            marks = [_mark_of(branch.tokens[: i + 1]) for i in range(len(branch))]
            flat = client.pool.tensor[:, 0, 0, :, 0, 0].flatten()
            assert flat[torch.tensor(branch.slots(0, len(branch)))].tolist() == marks


def _mark_of(prefix: Sequence[int]) -> float:
    return float(hash(tuple(prefix)) & 0xFF_FFFF)


def _mark(client: LocalClient, sequence: SequenceHandle, first_token: int) -> None:
    tokens = sequence.tokens
    for position, slot in zip(range(first_token, len(tokens)), sequence.slots(first_token, len(tokens)), strict=True):
        client.pool.tensor[slot // SIZE, 0, 0, slot % SIZE, 0, 0] = _mark_of(tokens[: position + 1])
    sequence.written()
