"""Two vLLM engines on two workers of one cluster: what one computed the other need not, and the tokens are right.

Right is what vLLM alone answers. Three engines are started, one after the other: vLLM alone, one on worker a whose
blocks are found by all that follows, and one on worker b with little memory of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.coordinator_process import coordinators
from tests.support.small_cluster import SmallCluster, small_cluster
from tests.support.worker_process import until
from tests.vllm.engine import BLOCK, Engine, engine
from tiered.cli.model import demo_model_dir, has_demo_model
from tiered.cluster.embedded import EmbeddedServer
from tiered.connectors.vllm.settings import ConnectorSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of themselves
    pytest.importorskip("vllm.v1.engine.llm_engine")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # vLLM runs in this process too, and warns of its own code
    pytest.mark.skipif(not has_demo_model(), reason="the demo's model is not there; make test-vllm prepares it"),
]

ROOT = Path(__file__).resolve().parents[2]
LONG = 2_000
LITTLE = 70
"""Blocks of the second engine: a long prompt and little else."""


@dataclass(frozen=True)
class Prompts:
    """Token ids by name. Those with a common beginning: ``fork`` and ``long``, ``short`` and ``long``."""

    of: dict[str, list[int]]

    @classmethod
    def made(cls) -> Prompts:
        from transformers import AutoTokenizer

        pages = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "adr").glob("*.md"))]
        text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        ids: list[int] = AutoTokenizer.from_pretrained(demo_model_dir())(text)["input_ids"]
        assert len(ids) > 9_000
        return cls(
            {
                "long": ids[:LONG],
                "fork": ids[:1_000] + ids[5_000:5_300],
                "short": ids[:333],
                "whole blocks": ids[3_000 : 3_000 + 10 * BLOCK],
                "less than a block": ids[4_000 : 4_000 + BLOCK - 1],
                "for redis": ids[6_000:6_700],
                "for a kill": ids[7_000:7_600],
                "one": ids[7_700:8_300],
                "two": ids[8_300:8_900],
                "three": ids[2_200:2_800],
            }
        )


def whole(prompt: Sequence[int]) -> int:
    """Tokens of a prompt that need not be computed: of whole blocks, and short of the last token."""
    return (len(prompt) - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    return Prompts.made().of


@pytest.fixture(scope="module")
def right(prompts: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[int]]]:
    """What vLLM alone answers: computed from nothing, and with its own prefix cache as far as that goes.

    The second of a prompt that begins like an earlier one may differ from the first: its beginning was computed in
    one piece with what followed there, and kernels round differently for other shapes.
    """
    with engine(demo_model_dir(), tmp_path_factory.mktemp("alone")) as alone:
        answers = {name: [alone.answer(prompt).tokens] for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            alone.forget()
            answers[name] += [alone.answer(prompt).tokens, alone.answer(prompt).tokens]
        return answers


@dataclass
class Site:
    server: EmbeddedServer
    cluster: SmallCluster

    def wait_attached(self, name: str) -> None:
        """All clients of an engine: one for each of its lookups' threads, and its rank's two."""
        n_clients = ConnectorSettings.model_fields["lookup_threads"].default + 2
        until(lambda: self.cluster.metrics(name)[("tiered_worker_engines",)] == n_clients, "attached", within_s=60)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server,
        small_cluster(server) as cluster,
    ):
        cluster.start("a", "b", hot="400MiB", settings=["cluster.drain_on_stop_s=30"])
        cluster.wait_acquainted()
        yield Site(server, cluster)


@pytest.fixture(scope="module")
def stored(
    site: Site,
    prompts: dict[str, list[int]],
    right: dict[str, list[list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    """Every prompt computed by the first engine and kept by worker a; what its blocks held, as digests."""
    with engine(demo_model_dir(), tmp_path_factory.mktemp("first"), socket=site.cluster.socket_path("a")) as first:
        site.wait_attached("a")
        for name, prompt in prompts.items():
            first.forget()
            answer = first.answer(prompt)
            assert answer.tokens in right[name], name
        n_blocks = len(set(first.copied("out")))
        until(lambda: site.cluster.blocks("a")["ready"] >= n_blocks, "all is kept", within_s=30)
        site.cluster.wait_announced("a", site.cluster.blocks("a")["ready"])
        return first.copied("out")


@pytest.fixture(scope="module")
def second(site: Site, stored: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("second")
    socket = site.cluster.socket_path("b")
    with engine(demo_model_dir(), folder, socket=socket, n_blocks=LITTLE, connector="UntimedConnector") as started:
        site.wait_attached("b")
        yield started


def test_the_worker_hears_how_fast_an_engine_computes(site: Site, stored: list[str]) -> None:
    assert site.cluster.metrics("a")[("tiered_prefill_tokens_per_second",)] > 0


def test_a_long_prompt_comes_from_the_other_node_bit_for_bit(
    second: Engine, stored: list[str], prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    answer = second.answer(prompts["long"])
    assert answer.cached == whole(prompts["long"])
    assert answer.tokens in right["long"]
    loaded = second.copied("in")
    assert len(loaded) == whole(prompts["long"]) // BLOCK
    assert set(loaded) <= set(stored)


@pytest.mark.parametrize("name", ["fork", "short", "whole blocks", "less than a block"])
def test_common_beginnings_are_reused_as_far_as_they_go(
    name: str, second: Engine, stored: list[str], prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    second.forget()
    answer = second.answer(prompts[name])
    assert answer.cached == whole(prompts[name])
    assert answer.tokens in right[name]
    assert set(second.copied("in")) <= {*stored, *second.copied("out")}


def test_what_vllm_has_itself_is_not_loaded_again(second: Engine, prompts: dict[str, list[int]]) -> None:
    second.forget()
    second.answer(prompts["short"])
    n_loaded = len(second.copied("in"))
    answer = second.answer(prompts["long"])
    assert answer.cached == whole(prompts["long"])
    n_own = len(prompts["short"]) // BLOCK
    assert len(second.copied("in")) - n_loaded == whole(prompts["long"]) // BLOCK - n_own


def test_one_tenant_does_not_find_what_another_stored(second: Engine, prompts: dict[str, list[int]]) -> None:
    second.forget()
    assert second.answer(prompts["short"], tenant="blue").cached == 0
    second.forget()
    assert second.answer(prompts["short"], tenant="not a name").cached == 0
    second.forget()
    until(lambda: _cached_again(second, prompts["short"], tenant="blue"), "blue finds its own", within_s=30)
    second.forget()
    assert second.answer(prompts["short"], salt="pepper").cached == 0


def _cached_again(second: Engine, prompt: Sequence[int], *, tenant: str = "") -> bool:
    second.forget()
    return second.answer(prompt, tenant=tenant, n_answer=1).cached == whole(prompt)


def test_aborted_requests_leave_nothing_behind(
    second: Engine, site: Site, prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    second.forget()
    second.abort(second.ask(prompts["long"]))
    with second.held("in"):  # while it is loaded
        loading = second.ask(prompts["long"])
        second.wait_held("in")
        second.abort(loading)
    second.forget()
    with second.held("out"):  # while it is stored
        storing = second.ask(prompts["three"][::-1], n_answer=200)
        second.wait_held("out")
        second.abort(storing)
    second.forget()
    assert second.answer(prompts["short"]).tokens in right["short"]
    until(lambda: not _pinned_or_filling(site), "nothing is left pinned", within_s=30)


def _pinned_or_filling(site: Site) -> int:
    return site.cluster.blocks("b")["filling"]


def test_preempted_requests_are_answered_as_ever(
    second: Engine, prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    """Three prompts that fit, with answers that do not."""
    second.forget()
    before = _metric(second, "vllm:num_preemptions")
    names = {second.ask(prompts[name], n_answer=220): name for name in ("one", "two", "three")}
    answers = second.answers()
    assert _metric(second, "vllm:num_preemptions") > before
    for request, name in names.items():
        assert len(answers[request].tokens) == 220
        assert answers[request].tokens[:4] in [tokens[:4] for tokens in right[name]]


def _metric(second: Engine, name: str) -> float:
    return sum(getattr(found, "value", 0) for found in second.engine.get_metrics() if found.name == name)


def test_the_engine_counts_what_was_loaded_and_from_where(second: Engine) -> None:
    assert _metric(second, "vllm:tiered_peer_hit_tokens") >= LONG // BLOCK * BLOCK
    assert _metric(second, "vllm:tiered_load_failures") == 0
    assert _metric(second, "vllm:tiered_store_blocks") > 0


def test_a_stopped_nodes_blocks_come_from_redis(
    second: Engine, site: Site, stored: list[str], prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    assert site.cluster.workers["a"].stop(within_s=60) == 0
    second.forget()
    answer = second.answer(prompts["for redis"])
    assert answer.cached == whole(prompts["for redis"])
    assert answer.tokens in right["for redis"]
    assert _metric(second, "vllm:tiered_redis_hit_tokens") >= whole(prompts["for redis"])
    assert set(second.copied("in")) <= {*stored, *second.copied("out")}


def test_a_worker_killed_in_the_middle_of_a_load_costs_the_load(
    second: Engine, site: Site, prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    until(lambda: _cached_again(second, prompts["for a kill"]), "its worker has it", within_s=60)
    second.forget()
    with second.held("in"):
        request = second.ask(prompts["for a kill"])
        second.wait_held("in")
        site.cluster.workers["b"].kill()
    assert second.answers()[request].tokens in right["for a kill"]
    assert _metric(second, "vllm:tiered_load_failures") == 1
    second.forget()
    assert second.answer(prompts["short"]).tokens in right["short"], "without a worker"


def test_an_engine_attaches_again_by_itself(second: Engine, site: Site, prompts: dict[str, list[int]]) -> None:
    site.cluster.restart("b")
    until(lambda: _cached_again(second, prompts["short"]), "it is cached again", within_s=60)


def test_a_reset_of_the_cache_forgets_what_was_computed_before(second: Engine, prompts: dict[str, list[int]]) -> None:
    second.forget()
    assert second.engine.reset_prefix_cache(reset_connector=True)
    assert second.answer(prompts["short"]).cached == 0
    until(lambda: _cached_again(second, prompts["short"]), "what was computed after it is found", within_s=30)


def test_neither_coordinator_nor_redis_is_needed(
    second: Engine, site: Site, prompts: dict[str, list[int]], right: dict[str, list[list[int]]]
) -> None:
    with coordinators(1, site.server, site.cluster.namespace, site.cluster.directory):
        assert _cached_again(second, prompts["short"])
    assert _cached_again(second, prompts["short"]), "it was killed"
    site.server.stop()
    second.forget()
    answer = second.answer(prompts["short"])
    assert (answer.cached, answer.tokens in right["short"]) == (whole(prompts["short"]), True)
    assert second.answer(prompts["one"]).tokens in right["one"]
