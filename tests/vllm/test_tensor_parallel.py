"""Two tensor parallel ranks of one vLLM engine on one worker: each moves its part, and a hit is what both have.

The model is tiny and its weights are random, so its answers say nothing, but they differ with what came before.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import until
from tests.vllm.engine import BLOCK, Engine, engine
from tiered.cluster.clears import ClearRequest, Clears
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.vllm.settings import ConnectorSettings
from tiered.hashing.scope import ModelScope, decode_scope, scope_id, tenant_label
from tiered.types import BlockId, TenantId

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of themselves
    pytest.importorskip("vllm.v1.engine.llm_engine")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM runs in this process too, and warns of its own code
]

RANKS = 2
WHOLE, BEGINNING = 7, 3
"""Blocks of a prompt, and of its beginning that is computed, or left over, alone."""

STORED = 2 * 2 * RANKS * WHOLE
"""Blocks in the worker's pool: of two prompts, each for two tenants."""

TENANT = TenantId(ConnectorSettings.model_fields["default_tenant"].default)
LAYERS, VOCABULARY = 2, 512
EDGE = 8
"""Tokens of an answer, and of a prompt beyond its whole blocks: together no further block."""


@dataclass
class Site:
    cluster: SmallCluster
    engine: Engine

    def scopes(self) -> list[ModelScope]:
        """Those of the engine's ranks, by rank, as the worker tells them."""
        told = [decode_scope(text) for text in self.cluster.node("w").stats.scopes]
        return sorted(told, key=lambda scope: scope.tp_rank)

    def wait_stored(self, n_blocks: int = STORED) -> None:
        """The worker's pool holds as many."""
        until(lambda: self.cluster.blocks("w")["ready"] == n_blocks, f"{n_blocks} blocks are stored", within_s=30)

    def clear(self, request: ClearRequest, *, n_left: int) -> None:
        clears = Clears(self.cluster.client, self.cluster.keys)
        number = clears.ask(request)
        assert number is not None
        clears.clear_redis(request)
        self.wait_stored(n_left)
        clears.done(number)

    @contextmanager
    def damaged(self, prompt: Sequence[int], *, rank: int, index: int) -> Iterator[None]:
        """One byte of a block is wrong for one rank, which finds it as it loads."""
        with self.cluster.attach("w", scope=self.scopes()[rank]) as client:
            match = client.match(prompt, tenant=TENANT)
            assert client.pool is not None
            held = client.pool.host_view(BlockId(match.block_ids[index]))
            held[0] ^= 0xFF
            try:
                yield
            finally:
                held[0] ^= 0xFF
                client.release(match, used_tokens=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=RANKS,
        max_position_embeddings=4_096,
        initializer_range=0.2,  # with the usual, answers hardly depend on the prompt
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    """They differ in their first block only."""
    tokens = random.Random(0).choices(range(VOCABULARY), k=(WHOLE + 1) * BLOCK + EDGE)
    return {"one": tokens[BLOCK:], "two": tokens[:BLOCK] + tokens[2 * BLOCK :]}


@pytest.fixture(scope="module")
def site(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server,
        small_cluster(server) as cluster,
    ):
        cluster.start("w")
        socket = cluster.socket_path("w")
        with engine(model, tmp_path_factory.mktemp("engine"), socket=socket, n_blocks=100, ranks=RANKS) as started:
            n_clients = RANKS * (ConnectorSettings.model_fields["lookup_threads"].default + 2)
            until(lambda: cluster.metrics("w")[("tiered_worker_engines",)] == n_clients, "attached", within_s=60)
            yield Site(cluster, started)


@pytest.fixture(scope="module")
def right(site: Site, prompts: dict[str, list[int]]) -> dict[str, dict[int, list[int]]]:
    """What vLLM answers by itself to each prompt, by how many of its blocks it has already.

    Kernels round differently for other shapes, so to each there is one right answer. The one that begins with nothing
    is for another tenant: the default one's blocks are then those that the other two answers were computed with.
    """
    answers = {}
    for name, prompt in prompts.items():
        site.engine.forget()
        anew = site.engine.answer(prompt, tenant="another", n_answer=EDGE)
        site.engine.forget()
        site.engine.answer(prompt[: BEGINNING * BLOCK], n_answer=1)
        rest = site.engine.answer(prompt, n_answer=EDGE)
        again = site.engine.answer(prompt, n_answer=EDGE)
        assert [each.cached // BLOCK for each in (anew, rest, again)] == [0, BEGINNING, WHOLE]
        answers[name] = {0: anew.tokens, BEGINNING: rest.tokens, WHOLE: again.tokens}
    assert not site.engine.copied("in")
    for n_blocks in (0, BEGINNING, WHOLE):
        assert answers["one"][n_blocks] != answers["two"][n_blocks], "an answer tells of the first block"
    site.wait_stored()
    return answers


def test_each_rank_stores_its_own_part(site: Site, right: dict[str, dict[int, list[int]]]) -> None:
    scopes = site.scopes()
    assert [(scope.tp_rank, scope.tp_size) for scope in scopes] == [(0, RANKS), (1, RANKS)]
    assert {(scope.layout.n_layers, scope.layout.n_kv_heads) for scope in scopes} == {(LAYERS, 1)}
    stored = site.engine.copied_by_rank("out")
    assert [len(digests) for digests in stored.values()] == [STORED // RANKS] * RANKS
    one, two = (set(digests) for digests in stored.values())
    assert not one & two


def test_what_both_ranks_have_each_loads_its_part_of_bit_for_bit(
    site: Site, prompts: dict[str, list[int]], right: dict[str, dict[int, list[int]]]
) -> None:
    before = site.engine.counters()
    for name, prompt in prompts.items():
        site.engine.forget()
        answer = site.engine.answer(prompt, n_answer=EDGE)
        assert (answer.cached, answer.tokens) == (WHOLE * BLOCK, right[name][WHOLE])
    loaded, stored = (site.engine.copied_by_rank(direction) for direction in ("in", "out"))
    assert set(loaded) == set(stored)
    for rank, digests in loaded.items():
        assert len(digests) == 2 * WHOLE
        assert set(digests) <= set(stored[rank])
    assert grown(site, before, "hot_hit_tokens") == 2 * WHOLE * BLOCK, "of the prompts, not of each rank"
    assert grown(site, before, "load_blocks") == 2 * WHOLE * RANKS


def grown(site: Site, before: dict[str, float], name: str) -> float:
    return site.engine.counters().get(f"vllm:tiered_{name}", 0) - before.get(f"vllm:tiered_{name}", 0)


@pytest.mark.parametrize("rank", range(RANKS))
def test_of_a_prompt_of_which_one_rank_lost_the_end_the_rest_is_a_hit(
    rank: int, site: Site, prompts: dict[str, list[int]], right: dict[str, dict[int, list[int]]]
) -> None:
    with site.cluster.attach("w", scope=site.scopes()[rank]) as client:
        first_lost = client.chain(prompts["one"], tenant=TENANT).hashes[BEGINNING]
    site.clear(ClearRequest("prefix", first_lost.hex()), n_left=STORED - (WHOLE - BEGINNING))
    site.engine.forget()
    answer = site.engine.answer(prompts["one"], n_answer=EDGE)
    assert (answer.cached, answer.tokens) == (BEGINNING * BLOCK, right["one"][BEGINNING])
    site.wait_stored()
    site.engine.forget()
    answer = site.engine.answer(prompts["one"], n_answer=EDGE)
    assert (answer.cached, answer.tokens) == (WHOLE * BLOCK, right["one"][WHOLE]), "it was stored anew"


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_comes_damaged_to_one_rank_is_computed_by_both(
    rank: int, site: Site, prompts: dict[str, list[int]], right: dict[str, dict[int, list[int]]]
) -> None:
    before = site.engine.counters()
    site.engine.forget()
    with site.damaged(prompts["one"], rank=rank, index=BEGINNING):
        answer = site.engine.answer(prompts["one"], n_answer=EDGE)
    assert answer.tokens == right["one"][BEGINNING]
    assert grown(site, before, "load_failures") == 1
    assert grown(site, before, "load_failed_blocks") == WHOLE - BEGINNING
    site.engine.forget()
    answer = site.engine.answer(prompts["two"], n_answer=EDGE)
    assert (answer.cached, answer.tokens) == (WHOLE * BLOCK, right["two"][WHOLE]), "the next is served as ever"


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_one_rank_has_nothing_of_is_a_miss(
    rank: int, site: Site, prompts: dict[str, list[int]], right: dict[str, dict[int, list[int]]]
) -> None:
    scope = scope_id(site.scopes()[rank], label=tenant_label(TENANT))
    site.clear(ClearRequest("scope", scope.hex()), n_left=STORED - 2 * WHOLE)
    n_loaded = len(site.engine.copied("in"))
    for name, prompt in prompts.items():
        site.engine.forget()
        answer = site.engine.answer(prompt, n_answer=EDGE)
        assert (answer.cached, answer.tokens) == (0, right[name][0])
    assert len(site.engine.copied("in")) == n_loaded
    site.wait_stored()
    site.engine.forget()
    assert site.engine.answer(prompts["one"], n_answer=1).cached == WHOLE * BLOCK, "it was stored anew"
