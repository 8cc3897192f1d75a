"""Clusters of real workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.small_cluster import SmallCluster, small_cluster
from tiered.cluster.embedded import EmbeddedServer


@pytest.fixture
def cluster(redis_server: EmbeddedServer) -> Iterator[SmallCluster]:
    """On the server that all tests share, which must be left alone."""
    with small_cluster(redis_server) as started:
        yield started


@pytest.fixture
def own_cluster(private_redis_server: EmbeddedServer) -> Iterator[SmallCluster]:
    """On a server of its own, with the deadlines that users have."""
    with small_cluster(private_redis_server, patient=False) as started:
        yield started
