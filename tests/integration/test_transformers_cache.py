"""``generate`` with a TieredCache attached to a worker: shared between engines, right when the worker is killed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.small_cluster import PATIENT, SmallCluster
from tests.support.worker_process import until
from tests.unit.connectors.families import BLOCK, batch, generate, hits, make_model, one, tokens
from tiered.client.remote import RemoteOptions
from tiered.connectors.transformers import model_scope, tiered_cache
from tiered.types import Source

PROMPT = tokens(1, 61)
OPTIONS = RemoteOptions(attach_timeout_s=30.0, call_timeout_s=1.0, grace_s=1.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("gemma3")


def test_what_one_engine_stored_another_reuses_also_from_a_peer(cluster: SmallCluster, model: Any) -> None:
    cluster.start("w1", "w2")
    scope = model_scope(model, block_tokens=BLOCK)
    inputs = batch([PROMPT, tokens(2, 41)])
    expected = generate(model, inputs)
    with cluster.attach("w1", scope=scope, options=PATIENT) as first, tiered_cache(first, model, inputs) as cache:
        assert torch.equal(generate(model, inputs, cache), expected)
    with cluster.attach("w1", scope=scope, options=PATIENT) as second, tiered_cache(second, model, inputs) as cache:
        assert torch.equal(generate(model, inputs, cache), expected)
        assert hits(cache) == [56, 36]
    cluster.wait_announced("w1", (61 + 11) // BLOCK + (41 + 11) // BLOCK)
    with cluster.attach("w2", scope=scope, options=PATIENT) as third, tiered_cache(third, model, inputs) as cache:
        assert cache.hit_tokens == [{Source.PEER: 56}, {Source.PEER: 36}]
        assert torch.equal(generate(model, inputs, cache), expected)


def test_a_worker_killed_while_an_answer_is_generated_is_not_missed(cluster: SmallCluster, model: Any) -> None:
    [worker] = cluster.start("w1")
    inputs = one(PROMPT)
    expected = generate(model, inputs)
    with cluster.attach("w1", scope=model_scope(model, block_tokens=BLOCK), options=OPTIONS) as client:
        with tiered_cache(client, model, inputs) as cache:
            generate(model, inputs, cache)
        with tiered_cache(client, model, inputs) as cache:
            assert hits(cache) == [56]
            worker.kill()
            assert torch.equal(generate(model, inputs, cache), expected)
            assert [saved.reason for saved in cache.save()] == ["unavailable"]
        with tiered_cache(client, model, inputs) as cache:
            assert hits(cache) == [0]
            assert torch.equal(generate(model, inputs, cache), expected)
        cluster.restart("w1")
        until(lambda: client.attached, "the client attached again", within_s=15)
        with tiered_cache(client, model, inputs) as cache:
            assert torch.equal(generate(model, inputs, cache), expected)
            assert [saved.n_stored for saved in cache.save()] == [(61 + 11) // BLOCK]
