"""KV events: what the connector tells of the blocks that the worker took, beside what vLLM's own block pool tells.

No engine is started: vLLM's requests, hashes and block pool are the real ones, and so is the worker.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from tests.support.small_cluster import small_cluster
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch say of themselves
    pytest.importorskip("vllm.v1.core.kv_cache_utils")

from vllm import SamplingParams
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from tiered.connectors.vllm import connector as connector_module
from tiered.connectors.vllm import worker as worker_module
from tiered.connectors.vllm.connector import TieredConnector, TieredReports
from tiered.connectors.vllm.engine import Engine
from tiered.connectors.vllm.events import ORDERS_MAX, StoreEvents
from tiered.connectors.vllm.orders import Shard, StoreOrder, StoreReport, pack_tokens
from tiered.connectors.vllm.worker import Rank
from tiered.types import TenantId

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

BLOCK, N_BLOCKS = 16, 24
ONE, TWO = Shard(0, 0), Shard(0, 1)
LOCAL = {"locality": "LOCAL", "ownership": "tiered"}


@pytest.fixture(autouse=True)
def _hashing() -> None:
    init_none_hash(sha256)


def request_of(name: str, n_tokens: int, *, first: int = 0, **how: Any) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=list(range(first, first + n_tokens)),
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
        **how,
    )


def of_vllm(request: Request, n_before: int, n_blocks: int) -> BlockStored:
    """What vLLM tells of the same blocks when they are in its own memory."""
    pool = BlockPool(N_BLOCKS, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True)
    blocks = pool.get_new_blocks(n_blocks)
    pool.cache_full_blocks(
        request=request,
        blocks=blocks,
        num_cached_blocks=n_before,
        num_full_blocks=n_blocks,
        block_size=BLOCK,
        kv_cache_group_id=0,
    )
    (event,) = pool.take_events()
    assert isinstance(event, BlockStored)
    return event


def told_as(event: BlockStored, medium: str = "CPU") -> BlockStored:
    return msgspec.structs.replace(event, medium=medium, **LOCAL)


def order_of(request: Request, n_blocks: int, *, first: int = 0, number: int = 1) -> StoreOrder:
    tokens = pack_tokens(list(request.all_token_ids)[first * BLOCK : n_blocks * BLOCK])
    blocks = tuple(range(1, 1 + n_blocks))
    return StoreOrder(number, request.request_id, TenantId("acme"), None, first * BLOCK, tokens, blocks)


def events(*shards: Shard) -> StoreEvents:
    made = StoreEvents(block_tokens=BLOCK, hash_tokens=BLOCK)
    made.expect(shards or (ONE,))
    return made


def stored(*new: tuple[int, int], n_here: int | None = None, number: int = 1, device: str = "cpu") -> StoreReport:
    return StoreReport(number, new, new[-1][1] if n_here is None else n_here, device)


def image(identifier: str, offset: int, length: int) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset=offset, length=length))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"cache_salt": "pepper"},
        {"lora_request": LoRARequest("sql", 3, "/nowhere")},
        {"mm_features": [image("cat", 20, 20), image("dog", 50, 8)]},
        {"session_id": "chat-7"},
    ],
    ids=["plain", "salt", "adapter", "images", "session"],
)
def test_a_stored_block_is_told_of_as_vllm_tells_of_its_own(how: dict[str, Any]) -> None:
    request, made = request_of("r", 5 * BLOCK + 3, **how), events()
    made.ordered(order_of(request, 5), request)
    made.reported(ONE, stored((0, 5)))
    assert made.take() == [told_as(of_vllm(request, 0, 5))]
    assert made.take() == []


def test_a_later_order_hangs_on_the_block_before_it() -> None:
    request, made = request_of("r", 6 * BLOCK, cache_salt="pepper"), events()
    made.ordered(order_of(request, 6, first=2), request)
    made.reported(ONE, stored((2, 6)))
    assert made.take() == [told_as(of_vllm(request, 2, 6))]


def test_only_what_was_put_there_is_told_of_each_run_by_itself() -> None:
    request, made = request_of("r", 8 * BLOCK), events()
    made.ordered(order_of(request, 8), request)
    made.reported(ONE, stored((1, 2), (2, 3), (5, 7), n_here=7))
    assert made.take() == [told_as(of_vllm(request, 1, 3)), told_as(of_vllm(request, 5, 7))]


def test_nothing_is_told_of_a_store_that_put_nothing_there() -> None:
    request, made = request_of("r", 2 * BLOCK), events()
    made.ordered(order_of(request, 2), request)
    made.reported(ONE, StoreReport(1))
    assert made.take() == []
    made.reported(ONE, stored((0, 2)))
    assert made.take() == [], "its order has ended"


def test_a_block_is_told_of_once_all_shards_have_it() -> None:
    request, made = request_of("r", 6 * BLOCK), events(ONE, TWO)
    made.ordered(order_of(request, 6), request)
    made.reported(TWO, stored((2, 4)))
    assert made.take() == []
    made.reported(ONE, stored((0, 6)))
    assert made.take() == [told_as(of_vllm(request, 0, 4))]


def test_what_lies_on_a_device_is_not_said_to_be_in_the_hosts_memory() -> None:
    request, made = request_of("r", 2 * BLOCK), events()
    made.ordered(order_of(request, 2), request)
    made.reported(ONE, stored((0, 2), device="cuda:0"))
    assert made.take() == [told_as(of_vllm(request, 0, 2), "STORAGE")]


def test_names_are_numbers_where_vllms_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1")
    request, made = request_of("r", 4 * BLOCK), events()
    made.ordered(order_of(request, 4, first=1), request)
    made.reported(ONE, stored((1, 4)))
    (event,) = made.take()
    assert event == told_as(of_vllm(request, 1, 4))
    assert isinstance(event, BlockStored)
    assert isinstance(event.block_hashes[0], int)
    assert isinstance(event.parent_block_hash, int)


def test_after_a_reset_nothing_of_before_is_told() -> None:
    request, made = request_of("r", 2 * BLOCK), events()
    made.ordered(order_of(request, 2), request)
    made.cleared()
    made.reported(ONE, stored((0, 2)))
    (event,) = made.take()
    assert isinstance(event, AllBlocksCleared)


def test_orders_that_nobody_speaks_of_again_are_forgotten() -> None:
    request, made = request_of("r", BLOCK), events()
    for number in range(ORDERS_MAX + 1):
        made.ordered(order_of(request, 1, number=number), request)
    made.reported(ONE, stored((0, 1), number=0))
    assert made.take() == []
    made.reported(ONE, stored((0, 1), number=1))
    assert len(made.take()) == 1


def test_reports_of_several_ranks_are_put_together() -> None:
    first, second = StoreReport(1), StoreReport(2)
    both = TieredReports({ONE: [first]}).aggregate(TieredReports({TWO: [second], ONE: [second]}))
    assert both == TieredReports({ONE: [first, second], TWO: [second]})


# The connector as vLLM calls it, on a real worker.


@dataclass
class Steps:
    """Both sides of the connector in one process, and vLLM's calls in their order."""

    scheduler: TieredConnector
    worker: TieredConnector

    def step(self, *requests: Request, finished: Request | None = None) -> list[Any]:
        """One step that computes the whole of ``requests``; the events that vLLM would publish after it."""
        blocks = {request.request_id: list(range(1, 1 + len(request.block_hashes))) for request in requests}
        if finished is not None:
            self.scheduler.request_finished(finished, list(range(1, 1 + len(finished.block_hashes))))
        output = SimpleNamespace(
            num_scheduled_tokens={request.request_id: request.num_prompt_tokens for request in requests},
            preempted_req_ids=set(),
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: [blocks[name]]),
        )
        metadata = self.scheduler.build_connector_meta(output)
        self.worker.handle_preemptions(metadata)
        self.worker.wait_for_save()
        told = KVConnectorOutput()
        told.finished_sending, told.finished_recving = self.worker.get_finished(set())
        told.kv_connector_worker_meta = self.worker.build_connector_worker_meta()
        self.scheduler.update_connector_output(told)
        return list(self.scheduler.take_events())

    def compute(self, request: Request) -> list[Any]:
        """From its arrival until the engine may free its blocks."""
        self.scheduler.on_new_request(request)
        found: list[Any] = []
        until(lambda: self.scheduler.get_num_new_matched_tokens(request, 0)[0] is not None, "it was looked up")
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: [[]]), 0)
        found += self.step(request)
        request.num_computed_tokens = request.num_prompt_tokens
        found += self.step(finished=request)

        def freed() -> bool:
            found.extend(self.step())
            return not self.scheduler.has_pending_block_frees()

        until(freed, "its blocks are free")
        return found


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server,
        small_cluster(server) as cluster,
    ):
        cluster.start("a", hot="16MiB")
        yield cluster.socket_path("a")


@pytest.fixture
def steps(request: pytest.FixtureRequest, socket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    layers = {
        f"l.{layer}": FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=8, dtype=torch.float32)
        for layer in range(2)
    }
    engine = Engine(
        block_tokens=BLOCK,
        hash_tokens=BLOCK,
        n_blocks=N_BLOCKS,
        specs=layers,
        attention="gqa",
        model="test",
        weights_version=request.node.name,  # whatever other tests stored is not found
        kv_quantization="",
        tp_size=1,
        kv_tp_replicas=1,
        tells_events=getattr(request, "param", True),
    )
    monkeypatch.setattr(connector_module, "engine_of", lambda *_: engine)
    monkeypatch.setattr(connector_module, "_rank", lambda: Rank(0, 0))
    monkeypatch.setattr(worker_module, "packing_of", lambda *_, **__: ["test"])
    extra = {"socket": socket, "lookup_timeout_s": 10.0, "hold_s": 20.0}
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))
    made = [TieredConnector(config, role, None) for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)]
    scheduler, worker = made
    worker.register_kv_caches({layer: torch.rand(N_BLOCKS, 2, BLOCK, 16) for layer in layers})
    handshake = worker.get_handshake_metadata()
    assert handshake is not None
    scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})
    try:
        yield Steps(scheduler, worker)
    finally:
        for side in made:
            side.shutdown()


def test_blocks_are_told_of_once_the_worker_has_them(steps: Steps) -> None:
    request = request_of("first", 5 * BLOCK + 3)
    assert steps.compute(request) == [told_as(of_vllm(request, 0, 5))]
    longer = request_of("longer", 8 * BLOCK)
    assert steps.compute(longer) == [told_as(of_vllm(longer, 5, 8))], "the others are there since the first"


def test_a_reset_of_the_connector_is_told_and_begins_anew(steps: Steps) -> None:
    request = request_of("before", 3 * BLOCK)
    assert len(steps.compute(request)) == 1
    assert steps.scheduler.reset_cache()
    assert [type(event) for event in steps.step()] == [AllBlocksCleared]
    again = request_of("after", 3 * BLOCK)
    assert steps.compute(again) == [told_as(of_vllm(again, 0, 3))]


@pytest.mark.parametrize("steps", [False], indirect=True)
def test_nothing_is_told_where_events_are_off(steps: Steps) -> None:
    assert steps.compute(request_of("quiet", 3 * BLOCK)) == []
    assert steps.scheduler.reset_cache()
    assert steps.step() == []
    assert steps.worker.build_connector_worker_meta() is None
