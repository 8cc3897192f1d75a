"""GET /readyz of real workers: engines may come, a drain, another worker of the same name, and Redis gone."""

from __future__ import annotations

import httpx

from tests.support.content import LAYOUT, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import paused, until
from tiered.cluster.drains import Drains
from tiered.types import NodeId

QUICK = ("cluster.heartbeat_s=0.1", "cluster.lease_ttl_s=0.6")
POOL = str(16 * LAYOUT.block_bytes)


def asked(port: int, path: str = "/readyz") -> tuple[int, dict[str, object]]:
    answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10.0, trust_env=False)
    return answer.status_code, answer.json()


def refused(port: int) -> str:
    """What is missing; empty when it is ready."""
    status, said = asked(port)
    assert status in (200, 503)
    error = said.get("error", {"field": ""})
    assert isinstance(error, dict)
    return str(error["field"])


def test_a_drained_worker_is_not_ready_until_the_drain_is_called_off(cluster: SmallCluster) -> None:
    cluster.start("w1", hot=POOL, settings=QUICK)
    node = cluster.node("w1")
    port, drains = node.info.metrics_port, Drains(cluster.client, cluster.keys)
    until(lambda: asked(port) == (200, {"status": "ok", "epoch": node.epoch, "redis_connected": True}), "it is ready")
    drains.ask(NodeId("w1"), node.epoch)
    until(lambda: cluster.view("w1") is None, "it has left")
    assert refused(port) == "drain"
    assert asked(port, "/healthz") == (200, {"status": "ok"})
    assert drains.cancel(NodeId("w1"))
    until(lambda: refused(port) == "", "it is ready again")


def test_a_worker_stays_ready_without_redis_and_engines_attach(own_cluster: SmallCluster) -> None:
    cluster = own_cluster
    cluster.start("w1", hot=POOL, settings=QUICK)
    node = cluster.node("w1")
    port = node.info.metrics_port
    alone = {"status": "ok", "epoch": 0, "redis_connected": False}
    with paused(cluster.server.pid):
        until(lambda: asked(port) == (200, alone), "its lease has lapsed, and it is ready")
        with cluster.attach("w1") as client:
            save(client, prompt(1, 4))
            assert take(client, prompt(1, 4)).total() == 4
    until(lambda: asked(port)[1].get("epoch", 0) not in (0, node.epoch), "it has joined again")


def test_a_worker_whose_name_was_taken_is_not_ready(cluster: SmallCluster) -> None:
    """On two machines, so that they do not share a journal, which would refuse the second."""
    settings = [*QUICK, "journal.mode=off"]
    cluster.start("w1", hot=POOL, settings=settings)
    port = cluster.node("w1").info.metrics_port
    until(lambda: refused(port) == "", "it is ready")
    second = cluster.spawn("w2", *settings, hot=POOL, extra=["--node", "w1"])
    until(lambda: refused(port) == "lease", "it is not ready")
    assert asked(port, "/healthz")[0] == 200
    second.kill()
    until(lambda: refused(port) == "", "it has its name back")
