"""The embedded server of a local cluster: what it is told when it starts, and that others agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tiered.cli.embedded import LocalServer, partitions_asked
from tiered.cli.overrides import read_overrides
from tiered.cluster.agreement import require_agreement
from tiered.cluster.connection import command, connect
from tiered.config import RedisSettings

PARTITIONS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    server = LocalServer(tmp_path, capacity_bytes=1 << 20, namespace="t", partitions=PARTITIONS)
    server.spawn()
    yield server
    server.stop(grace_s=5.0)


def test_it_is_told_the_partitions_that_the_services_are_started_with(server: LocalServer) -> None:
    settings = RedisSettings(url=server.url, namespace="t", partitions=PARTITIONS)
    with closing(connect(settings, timeout_s=5.0)) as client:
        parts = require_agreement(client, settings).every()
        bounds = [int(command(client, "HGET", part.limits(), ":capacity")) for part in parts]
    assert (len(bounds), sum(bounds)) == (PARTITIONS, 1 << 20)


@pytest.mark.parametrize(
    ("said", "environ", "asked"),
    [
        ([], {}, 1),
        (["coordinator.redis.partitions=8"], {"TIERED_COORDINATOR_REDIS__PARTITIONS": "2"}, 8),
        ([], {"TIERED_COORDINATOR_REDIS__PARTITIONS": "2"}, 2),
        (["coordinator.redis.partitions=3"], {}, 1),
        (["coordinator.redis.partitions=many"], {}, 1),
    ],
)
def test_they_are_what_the_coordinator_is_told(said: list[str], environ: dict[str, str], asked: int) -> None:
    assert partitions_asked(read_overrides(None, said), environ) == asked
