"""A router asks a real coordinator over real workers: who holds the prompt comes first, until it is gone."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.test_coordinator import CoordinatorProcess, ready
from tests.support.content import SCOPE, TENANT, hashes_of, prompt, save, take
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.cli.main import main

N = 12
SOON_S = 2.0
"""Between a save and the answer that knows of it: an announcement and a turn of the mirror."""


@pytest.fixture
def http(cluster: SmallCluster) -> Iterator[httpx.Client]:
    flags = ("--port", "0", "--redis-url", cluster.server.url, "--namespace", cluster.namespace)
    process = CoordinatorProcess(*flags, "--set", "cluster.snapshot_interval_s=0.2")
    try:
        with ready(process) as http:
            yield http
        assert "Traceback" not in process.log
    finally:
        process.close()


def ranked(http: httpx.Client, tokens: list[int]) -> list[dict[str, object]]:
    """Nothing while no engine is known yet."""
    answer = http.post("/v1/route", json={"tenant": TENANT, "tokens": tokens})
    if answer.status_code == 422:
        assert answer.json()["error"]["field"] == "model"
        return []
    nodes: list[dict[str, object]] = answer.raise_for_status().json()["nodes"]
    return nodes


def said_by(command: str, http: httpx.Client, tokens: list[int], directory: Path) -> dict[str, Any]:
    """What the command prints as JSON."""
    file = directory / "prompt.txt"
    file.write_text(" ".join(map(str, tokens)))
    out = io.StringIO()
    flags = ["--tenant", TENANT, "--tokens", str(file), "--coordinator", str(http.base_url), "--json"]
    with redirect_stdout(out):
        assert main([command, *flags]) == 0
    said: dict[str, Any] = json.loads(out.getvalue())
    return said


def test_the_node_that_saved_a_prompt_comes_first_until_it_is_killed(
    cluster: SmallCluster, http: httpx.Client, tmp_path: Path
) -> None:
    w1, _ = cluster.start("w1", "w2", settings=("cluster.heartbeat_s=0.5", "cluster.lease_ttl_s=2"))
    tokens = prompt(1, N)
    with cluster.attach("w1") as one, cluster.attach("w2") as two:
        until(lambda: len(ranked(http, tokens)) == 2, "both engines are known")
        assert [each["hot_blocks"] for each in ranked(http, tokens)] == [0, 0]
        assert save(one, tokens).n_stored == N

        def first() -> tuple[object, ...]:
            node = ranked(http, tokens)[0]
            return node["node"], node["hot_blocks"], node["computed_tokens"]

        until(lambda: first() == ("w1", N, 0), "w1 comes first", within_s=SOON_S)
        second = ranked(http, tokens)[1]
        assert (second["node"], second["hot_blocks"], second["peer_blocks"]) == ("w2", 0, N)
        by_command = said_by("route", http, tokens, tmp_path)["nodes"]
        assert [(each["node"], each["hot_blocks"]) for each in by_command] == [("w1", N), ("w2", 0)]
        assert said_by("prefixes", http, tokens, tmp_path)["scopes"][0]["covered_blocks"] == N
        said = http.post("/v1/prefixes", json={"tenant": TENANT, "tokens": tokens}).json()["scopes"][0]
        assert said["hashes"] == [block_hash.hex() for block_hash in hashes_of(tokens)]
        assert said["runs"] == [{"first_block": 0, "blocks": N, "nodes": ["w1"], "n_nodes": 1, "redis": False}]

        w1.kill()
        until(lambda: first()[0] == "w2", "w2 comes first", within_s=2.0 + SOON_S)
        node = ranked(http, tokens)[0]
        assert (node["peer_blocks"], node["computed_tokens"]) == (0, N * SCOPE.layout.block_tokens)
        assert save(two, tokens).n_stored == N
        until(lambda: first() == ("w2", N, 0), "w2 holds it now", within_s=SOON_S)
    mirror = http.get("/v1/stats").json()["mirror"]
    assert mirror["loads"] == 0
    assert mirror["lag_s"] < SOON_S
    assert "tiered_mirror_blocks" in http.get("/metrics").text


def test_the_prefix_that_is_used_most_is_known_to_all(cluster: SmallCluster, http: httpx.Client) -> None:
    cluster.start("w1", settings=("cluster.heartbeat_s=0.2",))
    often, once = prompt(1, N), prompt(2, N)
    with cluster.attach("w1") as one:
        for tokens in (often, once):
            assert save(one, tokens).n_stored == N
        for tokens in (often, often, often, once):
            assert take(one, tokens).total() == N

        def hits() -> list[tuple[str, int]]:
            return [(each["hash"], each["hits"]) for each in http.get("/v1/prefixes").json()["prefixes"]]

        expected = [(hashes_of(often)[-1].hex(), 3), (hashes_of(once)[-1].hex(), 1)]
        until(lambda: hits() == expected, "the search has been through the pool", within_s=15.0)
