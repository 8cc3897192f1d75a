"""One server, and what is done to it under a load: paused, killed, filled, flushed, and its replies cut, stalled and
corrupted on their way. Nothing raises, no byte is wrong, no lookup takes long, and all of it works again afterwards.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.faulty_relay import Fault, FaultyRelay
from tests.support.redis_load import BYTES, Load, get, named, put, quick, works_again
from tests.support.redis_server import eventually, settings_for
from tests.support.redis_topologies import free_ports
from tiered.cluster.agreement import keys_of
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command, connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.config import RedisSettings
from tiered.errors import TierError
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier

PAUSE_S = 5.0
LOOKUP_S = 0.2
"""The deadline of a lookup here, as ``quick`` sets it; once the breaker is open the answer comes at once."""


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None, port=port) as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedServer) -> RedisSettings:
    return quick(settings_for(server))


def conserved(settings: RedisSettings) -> bool:
    with closing(connect(settings, timeout_s=5.0)) as client:
        return Auditor(client, keys_of(settings)).walk().conserved is True


def warm(load: Load) -> None:
    eventually(lambda: load.stored > 50 and load.hits > 50)


def test_a_paused_server_costs_bounded_waits_and_then_nothing(
    server: EmbeddedServer, settings: RedisSettings
) -> None:
    with Load(settings) as load, closing(RedisTier(settings)) as tier:
        warm(load)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            waits = []
            ends_at = time.monotonic() + PAUSE_S
            while time.monotonic() < ends_at:
                began = time.monotonic()
                with pytest.raises(TierError):
                    tier.lookup(named(1))
                waits.append(time.monotonic() - began)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert max(waits) < 3 * LOOKUP_S
        assert sorted(waits)[len(waits) // 2] < 0.01  # the breaker is open: at once
        stored = load.stored
        eventually(works_again(settings), within_s=5)
        eventually(lambda: load.stored > stored)
    eventually(lambda: conserved(settings), within_s=40)


def test_a_server_killed_and_restarted_empty_is_used_again_at_once(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None) as first:
        settings = quick(settings_for(first))
        with Load(settings) as load:
            warm(load)
            first.kill()
            with EmbeddedServer.start(tmp_path / "r", maxmemory_bytes=None):
                stored, hits = load.stored, load.hits
                eventually(works_again(settings), within_s=5)
                eventually(lambda: load.stored > stored + 20 and load.hits > hits + 20)
                load.stop()
                eventually(lambda: conserved(settings), within_s=40)


def test_a_full_server_refuses_and_serves_on_and_takes_more_once_there_is_room(settings: RedisSettings) -> None:
    with closing(connect(settings, timeout_s=5.0)) as client, closing(RedisTier(settings)) as tier:
        held = named("held")
        assert put(tier, held) == [PutAnswer.STORED]
        used = command(client, "INFO", "memory")["used_memory"]
        command(client, "CONFIG", "SET", "maxmemory", used + 20 * BYTES)
        with Load(settings) as load:
            more = itertools.count()
            eventually(lambda: put(tier, named(("one more", next(more)))) == [PutAnswer.REFUSED_FULL])
            assert get(tier, held) == [True]
            command(client, "CONFIG", "SET", "maxmemory", 0)
            stored = load.stored
            eventually(lambda: load.stored > stored + 20)
        eventually(lambda: conserved(settings), within_s=40)


def test_a_server_flushed_under_load_is_only_empty(settings: RedisSettings) -> None:
    with closing(connect(settings, timeout_s=5.0)) as client:
        with Load(settings) as load:
            for _ in range(5):
                warm(load)
                command(client, "FLUSHALL")
                load.stored = load.hits = 0
            warm(load)
        eventually(lambda: conserved(settings), within_s=40)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_replies_that_are_cut_stalled_or_corrupted_are_never_taken_for_good(
    settings: RedisSettings, port: int, fault: Fault
) -> None:
    """Each connection meets the fault once, at a place that falls into a value, a length or a script's reply."""
    for after_bytes in (5, BYTES // 2, 3 * BYTES + 77):
        with (
            FaultyRelay(port, fault, after_bytes=after_bytes) as relay,
            Load(settings.model_copy(update={"url": f"redis://127.0.0.1:{relay.port}"}), n_threads=2),
        ):
            assert relay.reached.wait(10)
            eventually(lambda relay=relay: relay.connections > 4)  # type: ignore[misc]
    eventually(works_again(settings), within_s=5)
