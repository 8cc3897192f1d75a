"""The API over a real server that starts empty, without sockets of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
from fastapi.testclient import TestClient

from coordinator.leader.runner import Sweeper
from coordinator.server.api import build_api
from coordinator.server.credentials import Credentials
from coordinator.server.known_tokens import KnownTokens
from coordinator.server.services import Services
from coordinator.view.explainer import Explainer
from coordinator.view.keeper import ViewKeeper
from coordinator.view.mirror import Mirror
from coordinator.view.nodes_client import NodesClient
from coordinator.view.reader import ClusterReader
from tiered.clock import Clock, SystemClock
from tiered.cluster.access import AccessTokens
from tiered.cluster.clears import Clears
from tiered.cluster.connection import connect
from tiered.cluster.directory import Directory
from tiered.cluster.drains import Drains
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.shares import Shares
from tiered.cluster.tenants import Tenants
from tiered.cluster.why import BooksWhy
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
    drains: Drains

    def http(
        self,
        *,
        admin_token: str = "",
        read_token: str = "",
        bearer: str = "",
        base_url: str = "http://127.0.0.1:8080",
        clock: Clock | None = None,
        mirror: Mirror | None = None,
        secret: str = "s3",
    ) -> TestClient:
        """A replica of its own, called with the given bearer token, if any."""
        tokens = AccessTokens(self.client, self.keys)
        known = KnownTokens(tokens, clock or SystemClock())
        credentials = Credentials(admin_token=admin_token, read_token=read_token, tokens=tokens, known=known)
        services = Services(
            self.keeper,
            self.tenants,
            credentials,
            self.ledger,
            self.drains,
            Clears(self.client, self.keys),
            explainer=Explainer(NodesClient(secret, answer_s=1.0), BooksWhy(self.client, self.keys)),
            mirror=mirror or Mirror(),
        )
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        return TestClient(build_api(services), base_url=base_url, headers=headers)


@pytest.fixture
def parts(redis_settings: RedisSettings) -> Iterator[Parts]:
    client = connect(redis_settings, timeout_s=redis_settings.control_timeout_s)
    keys = Keys(redis_settings.namespace)
    membership, directory = Membership(client, keys), Directory(client, keys)
    ledger, tenants = RedisLedger(client, keys), Tenants(client, keys)
    reader = ClusterReader(membership=membership, ledger=ledger, tenants=tenants, shares=Shares(client, keys))
    yield Parts(
        client=client,
        keys=keys,
        membership=membership,
        directory=directory,
        ledger=ledger,
        tenants=tenants,
        keeper=ViewKeeper(reader.read, SystemClock()),
        sweeper=Sweeper(membership=membership, directory=directory),
        drains=Drains(client, keys),
    )
    client.close()


@pytest.fixture
def api(parts: Parts) -> Iterator[TestClient]:
    parts.keeper.refresh()
    with parts.http() as client:
        yield client
