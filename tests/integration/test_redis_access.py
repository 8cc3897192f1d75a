"""How the Redis tier is let in: passwords and TLS on every kind of servers, and users who see one namespace only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from tests.integration.test_redis_topologies import get, named, opened, put
from tests.support.redis_server import settings_for
from tests.support.redis_topologies import Access, Cluster, SentinelSet, running_cluster, running_sentinels
from tiered.cluster.agreement import keys_of, require_agreement
from tiered.cluster.audit import Auditor
from tiered.cluster.connection import command, connect, require_reachable
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.membership import Membership
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.errors import ConfigError, TierError
from tiered.tenancy.policy import TenantPolicy
from tiered.tiers.redis.answers import PutAnswer
from tiered.types import NodeId, NodeInfo, NodeStats, TenantId

Topology = Callable[[Path, Access], AbstractContextManager[Cluster | SentinelSet]]


@pytest.mark.parametrize("topology", [running_cluster, running_sentinels])
@pytest.mark.parametrize("tls", [False, True])
def test_passwords_and_tls_reach_every_server(
    tmp_path: Path, redis_server: EmbeddedServer, topology: Topology, tls: bool
) -> None:
    if tls:
        make_certificate(tmp_path)
    with topology(tmp_path, Access(password="geheim", tls=tmp_path if tls else None)) as running:
        settings = settings_for(redis_server, url=running.url, partitions=8)
        with opened(settings) as (tier, client):
            require_reachable(client, settings)
            assert put(tier, named(*range(30))) == [PutAnswer.STORED] * 30
            assert all(get(tier, named(*range(30))))
            assert Auditor(client, keys_of(settings)).walk().conserved
        wrong = settings.model_copy(update={"url": running.url.replace(":geheim@", ":falsch@")})
        with opened(wrong) as (tier, client):
            with pytest.raises(ConfigError, match=r"redis\.url: no usable server") as refused:
                require_reachable(client, wrong)
            assert "falsch" not in str(refused.value)
            assert put(tier, named(1)) == [PutAnswer.FAILED]


def test_a_user_who_may_see_one_namespace_only_needs_nothing_else(private_redis_server: EmbeddedServer) -> None:
    """The rights are those that docs/operations.md names."""
    admin = settings_for(private_redis_server, namespace="blue")
    with closing(connect(admin, timeout_s=5.0)) as root:
        rights = ["resetkeys", "~{blue:*", "+@all", "-@admin", "-@dangerous", "+keys", "+info", "+cluster|slots"]
        command(root, "ACL", "SETUSER", "blue", "on", ">pw", *rights)
        command(root, "SET", "{red:0}:u", "x")
    url = private_redis_server.url.replace("unix://", "unix://blue:pw@")
    settings = RedisSettings(url=url, namespace="blue", partitions=4, lookup_timeout_s=5.0)
    with opened(settings) as (tier, client):
        require_reachable(client, settings)
        keys = require_agreement(client, settings)
        Tenants(client, keys).create(TenantPolicy(tenant="red", redis_limit_bytes=10_000_000))
        assert put(tier, named(*range(12))) == [PutAnswer.STORED] * 12
        assert all(get(tier, named(*range(12))))
        assert Auditor(client, keys).walk().conserved
        assert RedisLedger(client, keys).clear(TenantId("red")) == 12
        membership = Membership(client, keys)
        epoch = membership.join(NodeInfo("a", "h", 1, 2, "/s", 3), lease_ttl_s=30)
        membership.renew(NodeId("a"), epoch, NodeStats(), lease_ttl_s=30)
        assert len(membership.nodes()) == 1
        with pytest.raises(TierError, match=r"(?i)permission"):
            command(client, "GET", "{red:0}:u")


def make_certificate(directory: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl")
    options = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", *options, *files, *names], cwd=directory, check=True, capture_output=True
    )
