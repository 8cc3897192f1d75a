"""A client without a pool submits keys and values to a real worker, and gets attention's outputs back."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import tiered.client.attention as attention_client
from tests.support.content import LAYOUT, SCOPE, TENANT, prompt
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import fork, until
from tests.unit.attention.reference import TOLERANCE, attend
from tiered.client.attention import PAYLOAD_BYTES_MAX, AttentionClient, AttentionSequence
from tiered.errors import CapacityError, LayoutMismatch, OwnershipError, TierUnavailable
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.types import TenantId
from tiered.wire.messages import Append, Appended, Attend, Attention

SIZE = LAYOUT.block_tokens
N_BLOCKS = 16
N_HEADS = 4
HALF = KvLayout(n_layers=2, n_kv_heads=2, head_dim=16, dtype="bfloat16", block_tokens=16)
LATENT = KvLayout(n_layers=2, n_kv_heads=1, head_dim=24, dtype="float32", block_tokens=16, attention="mla")
FLOAT = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def scope_of(layout: KvLayout) -> ModelScope:
    return ModelScope(model="test", weights_version="1", layout=layout)


def start(cluster: SmallCluster, *, layout: KvLayout = LAYOUT, n_blocks: int = N_BLOCKS) -> str:
    settings = ["pool.free_target=0", "pool.demote=never"]
    cluster.start("w1", hot=str(n_blocks * layout.block_bytes), settings=settings)
    return cluster.socket_path("w1")


@pytest.fixture
def client(cluster: SmallCluster) -> Iterator[AttentionClient]:
    with AttentionClient.attach(start(cluster), SCOPE) as attached:
        yield attached


class Mirror:
    """A sequence in the worker, and its tokens' keys and values kept here, contiguous."""

    def __init__(self, sequence: AttentionSequence, layout: KvLayout = LAYOUT) -> None:
        self.sequence = sequence
        self.layout = layout
        self.tokens: list[int] = []
        self.kept = content([], 0, layout)

    def append(self, tokens: Sequence[int]) -> int:
        new = content([*self.tokens, *tokens], len(self.tokens), self.layout)
        n_cached = self.sequence.append(tokens, new)
        self.tokens += tokens
        self.kept = torch.cat([self.kept, new], 2)
        return n_cached

    def fork(self) -> Mirror:
        twin = Mirror(self.sequence.fork(), self.layout)
        twin.tokens, twin.kept = list(self.tokens), self.kept
        return twin

    def truncate(self, n_tokens: int) -> None:
        self.sequence.truncate(n_tokens)
        del self.tokens[n_tokens:]
        self.kept = self.kept[:, :, :n_tokens]

    def check(self, n_queries: int, *, latent_dim: int | None = None) -> None:
        """Attention of the last tokens, in every layer, equals that over what was kept here."""
        dtype = FLOAT[self.layout.dtype]
        queries = torch.randn(n_queries, N_HEADS, self.layout.head_dim).to(dtype)
        scale = self.layout.head_dim**-0.5
        for layer in range(self.layout.n_layers):
            got = self.sequence.attend(layer, queries, scale=scale, latent_dim=latent_dim)
            keys, values = self.kept[layer, 0], self.kept[layer, -1][..., :latent_dim]
            expected = attend(queries, keys, values, scale=scale)
            torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def content(tokens: Sequence[int], first_token: int, layout: KvLayout = LAYOUT) -> torch.Tensor:
    """Keys and values of tokens[first_token:], each the same wherever its prefix is the same."""
    columns = []
    for end in range(first_token + 1, len(tokens) + 1):
        generator = torch.Generator().manual_seed(hash(tuple(tokens[:end])) & 0xFFFF_FFFF)
        shape = (layout.n_layers, layout.n_planes, 1, layout.n_kv_heads, layout.head_dim)
        columns.append(torch.randn(shape, generator=generator).to(FLOAT[layout.dtype]))
    empty = torch.empty(layout.n_layers, layout.n_planes, 0, layout.n_kv_heads, layout.head_dim)
    return torch.cat([empty.to(FLOAT[layout.dtype]), *columns], 2)


@pytest.mark.parametrize(("layout", "latent_dim"), [(LAYOUT, None), (HALF, None), (LATENT, 16)])
def test_outputs_equal_contiguous_attention(cluster: SmallCluster, layout: KvLayout, latent_dim: int | None) -> None:
    with AttentionClient.attach(start(cluster, layout=layout), scope_of(layout)) as client:
        mirror = Mirror(client.open(TENANT), layout)
        mirror.append(prompt(1, 2)[:20])
        mirror.check(20, latent_dim=latent_dim)
        twin = mirror.fork()
        for step in range(SIZE):
            for index, branch in enumerate((mirror, twin)):
                branch.append([100 * index + step])
                branch.check(1, latent_dim=latent_dim)
        twin.truncate(18)
        twin.append([5, 6])
        twin.check(3, latent_dim=latent_dim)
        mirror.check(len(mirror.tokens), latent_dim=latent_dim)


def test_a_batch_of_sequences_attends_in_one_call(client: AttentionClient) -> None:
    mirrors = [Mirror(client.open(TENANT)) for _ in range(3)]
    for seed, (mirror, n_tokens) in enumerate(zip(mirrors, (3, 16, 40), strict=True)):
        mirror.append(prompt(seed, 3)[:n_tokens])
    queries = torch.randn(1 + 0 + 5, N_HEADS, LAYOUT.head_dim)
    lens = (1, 0, 5)
    got = client.attend(1, queries, [(m.sequence, n) for m, n in zip(mirrors, lens, strict=True)])
    scale = LAYOUT.head_dim**-0.5
    expected = torch.cat(
        [
            attend(queries[i : i + n], m.kept[1, 0], m.kept[1, 1], scale=scale)
            for m, n, i in zip(mirrors, lens, (0, 1, 1), strict=True)
        ]
    )
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


def test_what_one_client_stored_another_reuses_and_another_tenant_does_not(
    cluster: SmallCluster, client: AttentionClient
) -> None:
    Mirror(client.open(TENANT)).append(prompt(1, 3))
    with AttentionClient.attach(cluster.socket_path("w1"), SCOPE) as other:
        sequence = other.open(TENANT)
        assert sequence.reuse(prompt(1, 3)[:40]) == 32
        assert len(sequence) == 32
        again = Mirror(other.open(TENANT))
        assert again.append(prompt(1, 3)) == 48
        again.check(48)
        assert other.open(TenantId("stranger")).reuse(prompt(1, 3)) == 0
    assert cluster.blocks("w1")["ready"] == 3
    with cluster.attach("w1") as engine:  # and so does an engine that maps the pool
        assert engine.match(prompt(1, 3), tenant=TENANT).n_blocks == 3


def test_what_does_not_fit_is_refused_by_name_and_the_connection_stays(client: AttentionClient) -> None:
    mirror = Mirror(client.open(TENANT))
    mirror.append([1, 2, 3])
    sequence, good = mirror.sequence, content([1, 2, 3, 4], 3)
    for tokens, keys_values, named in [
        ([4], good[:1], "keys_values"),
        ([4, 5], good, "keys_values"),
        ([4], good.half(), "keys_values"),
        ([-1], good, "tokens"),
        ([1 << 32], good, "tokens"),
    ]:
        with pytest.raises(ValueError, match=named):
            sequence.append(tokens, keys_values)
    for layer, shape, n_queries, named in [
        (2, (1, 4, 16), 1, "layer"),
        (-1, (1, 4, 16), 1, "layer"),
        (0, (4, 4, 16), 4, "query_lens"),
        (0, (1, 3, 16), 1, "queries"),
        (0, (1, 0, 16), 1, "queries"),
        (0, (1, 4, 8), 1, "queries"),
        (0, (1, 4, 16), 2, "queries"),
    ]:
        with pytest.raises(ValueError, match=named):
            client.attend(layer, torch.zeros(shape), [(sequence, n_queries)])
    with pytest.raises(ValueError, match="latent_dim"):
        sequence.attend(0, torch.zeros(1, 4, 16), latent_dim=8)
    with pytest.raises(ValueError, match=r"queries: torch\.float64"):
        sequence.attend(0, torch.zeros(1, 4, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="more than the"):
        sequence.attend(0, torch.zeros(1, PAYLOAD_BYTES_MAX // 64 + 1, 16))
    for n_tokens in (-1, 4):
        with pytest.raises(ValueError, match="is not between 0 and the 3"):
            sequence.truncate(n_tokens)
    mirror.append([4])
    mirror.append([])
    mirror.check(4)


def test_bytes_that_are_no_whole_tensor_are_refused_by_the_worker_itself(client: AttentionClient) -> None:
    mirror = Mirror(client.open(TENANT))
    mirror.append([1, 2, 3])
    for request, expected, named in [
        (Append(mirror.sequence.sequence_id, b"\0\0\0", b""), Appended, "tokens: 3 bytes"),
        (Append(mirror.sequence.sequence_id, b"\0\0\0\0", b"\0"), Appended, "keys_values: 1 bytes, not the 512"),
        (Attend((mirror.sequence.sequence_id,), (1,), 0, 4, b"\0"), Attention, "queries: 1 bytes, not 256"),
        (Attend((mirror.sequence.sequence_id,), (), 0, 4, b""), Attention, "query_lens: 0 for 1"),
        (Attend((), (), 0, 4, b"\0"), Attention, "queries: 1 bytes, not 0"),
        (Attend((mirror.sequence.sequence_id,), (-1,), 0, 4, b""), Attention, "query_lens: -1"),
    ]:
        with pytest.raises(ValueError, match=named):
            client.call(request, expected)
    mirror.check(3)


def test_sequences_belong_to_their_connection(cluster: SmallCluster, client: AttentionClient) -> None:
    sequence = client.open(TENANT)
    with AttentionClient.attach(cluster.socket_path("w1"), SCOPE) as thief:
        stolen = AttentionSequence(thief, sequence.sequence_id, 0)
        with pytest.raises(OwnershipError, match="not held by this connection"):
            stolen.truncate(0)
        with pytest.raises(OwnershipError, match="not held by this connection"):
            thief.attend(0, torch.zeros(0, 4, 16), [(sequence, 0)])
    sequence.drop()
    with pytest.raises(OwnershipError, match="not held by this connection"):
        sequence.drop()


def test_a_full_pool_is_refused_with_names_and_takes_nothing(cluster: SmallCluster, client: AttentionClient) -> None:
    mirror = Mirror(client.open(TENANT))
    mirror.append(prompt(1, N_BLOCKS - 1))
    late = Mirror(client.open(TenantId("late")))
    with pytest.raises(CapacityError, match=r"'acme' holds 15 of 16 blocks \(sequences: 1, leases: 0\)"):
        late.append(prompt(2, 2))
    assert cluster.blocks("w1") == {"free": 1, "filling": 0, "ready": 15, "leaving": 0}
    mirror.sequence.drop()
    late.append(prompt(2, 2))
    late.check(1)


def test_an_append_larger_than_a_message_goes_in_several_all_or_none(
    client: AttentionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_client, "PAYLOAD_BYTES_MAX", 7 * (LAYOUT.token_bytes + 4))
    mirror = Mirror(client.open(TENANT))
    mirror.append([9])
    assert mirror.append(prompt(1, 3)) == 0
    mirror.check(5)
    twin = Mirror(client.open(TENANT))
    assert twin.append([9, *prompt(1, 3)[:30]]) == 16
    twin.check(5)
    with pytest.raises(CapacityError):
        twin.sequence.append(prompt(2, N_BLOCKS), content(prompt(2, N_BLOCKS), 0))
    assert len(twin.sequence) == 31
    twin.check(5)
    monkeypatch.setattr(attention_client, "PAYLOAD_BYTES_MAX", LAYOUT.token_bytes)
    with pytest.raises(ValueError, match="keys_values of one token"):
        twin.append([1])


def test_another_layout_is_refused(cluster: SmallCluster, client: AttentionClient) -> None:
    with pytest.raises(LayoutMismatch):
        AttentionClient.attach(cluster.socket_path("w1"), scope_of(HALF))


def hold_and_stall(socket_path: str, marker: str) -> None:
    """Hold whole blocks, an open one and a fork of it; then stop for ever."""
    client = AttentionClient.attach(socket_path, SCOPE)
    mirror = Mirror(client.open(TENANT))
    mirror.append(prompt(1, 3)[:40])
    mirror.fork().append([7])
    Path(marker).touch()
    signal.pause()


def test_all_that_a_killed_client_held_comes_back(
    cluster: SmallCluster, client: AttentionClient, tmp_path: Path
) -> None:
    marker = tmp_path / "held"
    doomed = fork(hold_and_stall, cluster.socket_path("w1"), str(marker))
    until(marker.exists, "the client holds its sequences", within_s=20)
    assert cluster.blocks("w1") == {"free": 12, "filling": 2, "ready": 2, "leaving": 0}
    doomed.kill()
    doomed.join(10)
    until(lambda: cluster.blocks("w1")["filling"] == 0, "open blocks are given back")
    mirror = Mirror(client.open(TENANT))
    mirror.append(prompt(4, N_BLOCKS))  # no pin is left: the whole pool is room
    mirror.check(1)


def test_a_worker_that_dies_is_an_error_in_time(cluster: SmallCluster, client: AttentionClient) -> None:
    sequence = client.open(TENANT)
    cluster.workers["w1"].kill()
    with pytest.raises(TierUnavailable):
        sequence.truncate(0)
    with pytest.raises(TierUnavailable):
        client.open(TENANT)
