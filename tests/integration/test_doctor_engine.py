"""``tiered doctor --engine``: whether an engine is attached and finds anything, as its worker says."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.content import LAYOUT, SCOPE, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tiered import __version__
from tiered.cli.main import main
from tiered.client.describe import describe
from tiered.client.remote import RemoteClient
from tiered.errors import TierUnavailable


@pytest.fixture
def checks(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(socket: str, *, code: int) -> dict[str, dict[str, Any]]:
        assert main(["doctor", "--engine", "transformers", "--socket", socket, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert found["ok"] is (code == 0)
        return {check["name"]: check for check in found["checks"]}

    return run


def test_no_worker_is_required_and_said_with_what_to_do(checks: Any, tmp_path: Path) -> None:
    worker = checks(str(tmp_path / "none.sock"), code=1)["worker"]
    assert (worker["ok"], worker["required"]) == (False, True)
    assert "none.sock" in worker["detail"]
    assert "--socket" in worker["fix"]


def test_an_engine_that_is_attached_and_has_hits_is_found(cluster: SmallCluster, checks: Any) -> None:
    cluster.start("w1")
    path = cluster.socket_path("w1")
    before = checks(path, code=1)
    assert __version__ in before["worker"]["detail"]
    assert before["attached"]["detail"] == "no transformers is, nor any other engine"
    with cluster.attach("w1"):
        assert checks(path, code=1)["attached"]["detail"] == "no transformers is, only test"
    client = RemoteClient.attach(path, SCOPE, engine="transformers 5.24.0")
    attached = checks(path, code=0)["attached"]
    assert "transformers 5.24.0 (process " in attached["detail"]
    assert LAYOUT.describe() in attached["detail"]
    assert checks(path, code=0)["hits"]["ok"] is False
    save(client, prompt(1, 4))
    take(client, prompt(1, 4))
    n_tokens = 4 * LAYOUT.block_tokens
    hits = f"{n_tokens} of {n_tokens} prompt tokens (100%): {n_tokens} hot, 0 from peers, 0 from Redis"
    assert checks(path, code=0)["hits"]["detail"] == hits
    client.close()


def test_tiered_serve_counts_as_transformers(cluster: SmallCluster, checks: Any) -> None:
    cluster.start("w1")
    path = cluster.socket_path("w1")
    with closing(RemoteClient.attach(path, SCOPE, engine="tiered-serve-7")):
        assert "tiered-serve-7" in checks(path, code=0)["attached"]["detail"]


def test_who_asks_about_a_worker_is_not_attached_by_it(cluster: SmallCluster) -> None:
    cluster.start("w1")
    path = cluster.socket_path("w1")
    for _ in range(2):
        described = describe(path)
        assert (described.node, described.engines, described.n_blocks, described.layout) == ("w1", (), 0, "")
    cluster.workers["w1"].kill()
    with pytest.raises(TierUnavailable):
        describe(path)
