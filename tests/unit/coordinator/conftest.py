"""The API over a real server that starts empty, without sockets of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
from fastapi.testclient import TestClient

from coordinator.leader.runner import Sweeper
from coordinator.server.api import build_api
from coordinator.server.services import Services
from coordinator.view.keeper import ViewKeeper
from coordinator.view.reader import ClusterReader
from tiered.clock import SystemClock
from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings


@dataclass(frozen=True, slots=True)
class Parts:
    """A coordinator's parts, run by the test instead of by time."""

    client: redis.Redis
    keys: Keys
    membership: Membership
    directory: Directory
    ledger: RedisLedger
    tenants: Tenants
    keeper: ViewKeeper
    sweeper: Sweeper

    def http(self, *, admin_token: str = "", base_url: str = "http://127.0.0.1:8080") -> TestClient:
        return TestClient(build_api(Services(self.keeper, self.tenants, admin_token, self.ledger)), base_url=base_url)


@pytest.fixture
def parts(redis_settings: RedisSettings) -> Iterator[Parts]:
    client = connect(redis_settings, timeout_s=redis_settings.control_timeout_s)
    keys = Keys(redis_settings.namespace)
    membership, directory = Membership(client, keys), Directory(client, keys)
    ledger, tenants = RedisLedger(client, keys), Tenants(client, keys)
    reader = ClusterReader(membership=membership, ledger=ledger, tenants=tenants)
    yield Parts(
        client=client,
        keys=keys,
        membership=membership,
        directory=directory,
        ledger=ledger,
        tenants=tenants,
        keeper=ViewKeeper(reader.read, SystemClock()),
        sweeper=Sweeper(membership=membership, directory=directory),
    )
    client.close()


@pytest.fixture
def api(parts: Parts) -> Iterator[TestClient]:
    parts.keeper.refresh()
    with parts.http() as client:
        yield client
