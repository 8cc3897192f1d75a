"""What an engine says of itself and of its requests is checked before it gets into the books."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.content import SCOPE, TENANT, hashes_of, prompt
from tests.support.hot import hot_tier
from tiered.cluster.embedded import EmbeddedServer
from tiered.hashing.chain import join_hashes
from tiered.hashing.scope import scope_id, tenant_label
from tiered.types import TokenCounts
from tiered.wire.framing import ENGINE_REPLIES, FrameReader
from tiered.wire.messages import (
    EngineReply,
    EngineRequest,
    Failure,
    Match,
    Matched,
    Prefilled,
    PrefillNoted,
    Release,
    Released,
)
from worker.engine import PROMPT_TOKENS_MAX, Engine
from worker.hot_tier import HotTier
from worker.sequence_server import SequenceServer

ROOT = scope_id(SCOPE, label=tenant_label(TENANT))
N = 2
HASHES = hashes_of(prompt(1, N))


class Writer:
    """Keeps what is written to an engine; it reads all of it at once."""

    def __init__(self) -> None:
        self.replies: list[EngineReply] = []
        self.transport = self

    def write(self, data: bytes) -> None:
        self.replies += FrameReader(ENGINE_REPLIES).feed(data)

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
def hot(redis_server: EmbeddedServer) -> Iterator[HotTier]:
    with hot_tier(redis_server, n_blocks=N) as tier:
        yield tier


def answers(hot: HotTier, *requests: EngineRequest) -> list[EngineReply]:
    """To an engine of SCOPE, attached as the first one."""

    async def run() -> list[EngineReply]:
        await hot.attach(SCOPE, 1)
        sequences = SequenceServer(hot, 1, asyncio.Semaphore(1))
        engine, writer = Engine(hot, 1, sequences, node="w1", match_lease_s=60.0, attached={}), Writer()
        engine._scope = SCOPE
        for request in requests:
            await engine.answer(request, writer)  # type: ignore[arg-type]
        stats = hot.stats()
        msgspec.msgpack.encode(stats)  # as each renewal of the lease does
        await hot.close(timeout_s=5.0)
        return writer.replies

    return asyncio.run(run())


def match_of(asked_tokens: int) -> Match:
    return Match(tenant=TENANT, scope_id=ROOT, hashes=join_hashes(HASHES), asked_tokens=asked_tokens)


@pytest.mark.parametrize("asked_tokens", [-1, PROMPT_TOKENS_MAX + 1, 2**63 - 1, 2**64 - 1])
def test_what_is_no_prompts_length_is_refused_and_counts_for_nothing(hot: HotTier, asked_tokens: int) -> None:
    refused, again = answers(hot, match_of(asked_tokens), match_of(asked_tokens))
    for reply in (refused, again):
        assert isinstance(reply, Failure)
        assert (reply.kind, reply.message) == ("request", f"asked_tokens: {asked_tokens} is not a prompt's length")
    assert hot.core.leases == {}
    hot.detach(1)
    assert hot.stats().tenants == {}


@pytest.mark.parametrize("told", [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (0, 2**64 - 1)])
def test_what_an_engine_says_it_used_never_counts_for_more_than_it_asked_for(
    hot: HotTier, told: tuple[int, int]
) -> None:
    used_tokens, own_tokens = told
    release = Release(1, used_tokens=used_tokens, own_tokens=own_tokens)
    matched, released = answers(hot, match_of(PROMPT_TOKENS_MAX), release)
    assert isinstance(matched, Matched)
    assert (matched.lease, released) == (1, Released(True))
    tokens = hot.stats().tenants[TENANT].tokens
    assert tokens in (
        TokenCounts(asked=PROMPT_TOKENS_MAX, missed=PROMPT_TOKENS_MAX),
        TokenCounts(),  # it had all of them itself
    )


@pytest.mark.parametrize(
    ("n_tokens", "took_s"),
    [
        (2**63 - 1, 1.0),
        (-1, 1.0),
        (1024, float("nan")),
        (1024, float("inf")),
        (1024, -1.0),
        (1024, 0.0),
        (1024, 5e-324),
    ],
)
def test_a_computation_that_cannot_be_measures_nothing(hot: HotTier, n_tokens: int, took_s: float) -> None:
    assert answers(hot, Prefilled(n_tokens, took_s)) == [PrefillNoted()]
    assert hot.stats().rates.prefill_tokens_per_s == 0
