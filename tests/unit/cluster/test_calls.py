"""What of a call over several servers is left when one of them does not run its part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError, NoScriptError, ReadOnlyError

from tests.support.redis_server import block_hash
from tiered.cluster.calls import Call, load, run_tolerant
from tiered.cluster.connection import command
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveAnswer, ReserveRequest
from tiered.cluster.routing import Command, RoutedClient
from tiered.cluster.servers import client_of
from tiered.errors import TierUnavailable
from tiered.redis_url import Address
from tiered.types import TenantId

RED = TenantId("red")
SIZE = 16
SCRIPT = load("grants")


class TwoServers:
    """The last partition is on the second server, all else on the first."""

    def __init__(self, keys: Keys, urls: Sequence[str]) -> None:
        self._second = keys.every()[-1].meta(b"")  # type: ignore[arg-type]
        self._urls = urls

    def url_of(self, key: bytes, *, within_s: float) -> str:
        return self._urls[key.partition(b"}")[0] == self._second.partition(b"}")[0]]

    def suspect(self) -> None: ...

    def moved(self, slot: int, address: Address) -> None: ...

    def at(self, address: Address) -> str:
        raise AssertionError


@pytest.fixture
def second(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path / "second", maxmemory_bytes=None) as server:
        yield server


def test_a_master_that_refuses_writes_costs_the_others_blocks_nothing(
    private_redis_server: EmbeddedServer, second: EmbeddedServer
) -> None:
    keys = Keys("t", partitions=2)
    topology = TwoServers(keys, [private_redis_server.url, second.url])
    with closing(RoutedClient(topology, connect_timeout_s=5.0, timeout_s=5.0)) as client:
        ledger = RedisLedger(client, keys)
        hashes = [block_hash(i) for i in range(20)]
        here = [h for h in hashes if keys.of(h).partition == 0]
        assert 0 < len(here) < len(hashes)
        with closing(client_of(second.url, connect_timeout_s=5.0, timeout_s=5.0)) as its_own:
            command(its_own, "CONFIG", "SET", "min-replicas-to-write", 1)
        answers = ledger.reserve([ReserveRequest(h, RED, SIZE, 0) for h in hashes], ttl_s=60)
        assert [h for h, answer in zip(hashes, answers, strict=True) if answer.reserved] == here
        assert set(answers) == {ReserveAnswer.RESERVED, ReserveAnswer.UNANSWERED}
        for h in here:
            command(client, "SET", keys.of(h).block(h), b"x" * SIZE)
        committed = ledger.commit([(h, RED, SIZE) for h in hashes])
        assert [h for h, there in zip(hashes, committed, strict=True) if there] == here
        assert ledger.touch(hashes, RED) == len(here)
        assert ledger.remove(hashes) == len(here)


class Answering(RoutedClient):
    """Each EVALSHA is answered by the next of these."""

    def __init__(self, *replies: Any) -> None:
        self._answers = list(replies)

    def run(self, commands: Sequence[Command]) -> list[Any]:
        return [b"loaded" if one.parts[0] == "SCRIPT LOAD" else self._answers.pop(0) for one in commands]


CALLS = [Call([key], []) for key in (b"a", b"b")]


@pytest.mark.parametrize(
    "reply",
    [
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        redis.ResponseError("MISCONF it is configured to save, but cannot"),
        redis.ResponseError("BUSY it is busy running a script"),
        ReadOnlyError("a replica"),
    ],
)
def test_a_server_that_runs_nothing_for_now_is_as_good_as_away(reply: Exception) -> None:
    assert run_tolerant(Answering(1, reply), SCRIPT, CALLS) == [1, None]
    with pytest.raises(TierUnavailable):
        run_tolerant(Answering(reply, reply), SCRIPT, CALLS)


def test_a_server_that_forgets_the_script_twice_is_as_good_as_away() -> None:
    assert run_tolerant(Answering(1, NoScriptError("a"), NoScriptError("b")), SCRIPT, CALLS) == [1, None]


@pytest.mark.parametrize("reply", [redis.ResponseError("WRONGTYPE what is this"), NoPermissionError("no rights")])
def test_what_is_wrong_with_a_call_itself_is_heard(reply: Exception) -> None:
    with pytest.raises(TierUnavailable):
        run_tolerant(Answering(1, reply), SCRIPT, CALLS)
