"""``tiered check`` and ``tiered sweep`` against a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import redis

from tests.support.redis_server import block_hash
from tiered.cli.cluster_file import ClusterState, write_cluster_file
from tiered.cli.main import main
from tiered.cluster.connection import command
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger, ReserveRequest
from tiered.config import RedisSettings
from tiered.types import TenantId

RED = TenantId("red")


@pytest.fixture
def flags(redis_settings: RedisSettings) -> list[str]:
    return ["--redis-url", redis_settings.url, "--namespace", redis_settings.namespace, "--json"]


@pytest.fixture
def stored(redis_client: redis.Redis, redis_keys: Keys) -> Keys:
    """Two blocks of one tenant."""
    ledger = RedisLedger(redis_client, redis_keys)
    for name in "ab":
        assert ledger.reserve([ReserveRequest(block_hash(name), RED, 10, 0)], ttl_s=30)[0].reserved
        command(redis_client, "SET", redis_keys.block(block_hash(name)), b"x" * 10)
        assert ledger.commit([(block_hash(name), RED, 10)]) == [True]
    return redis_keys


def test_books_that_are_true_pass(stored: Keys, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["conserved"], report["blocks"], report["stored_bytes"]) == (True, 2, 20)
    assert report["tenants"] == {"red": 20}


def test_a_lost_value_fails_the_check_and_a_sweep_settles_it(
    stored: Keys, flags: list[str], redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    command(redis_client, "DEL", stored.block(block_hash("a")))
    assert main(["check", *flags]) == 1
    assert json.loads(capsys.readouterr().out)["lost"] == 1
    assert main(["sweep", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["lost"] == 1
    assert main(["check", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] == 1
    assert main(["check", *flags[:-1]]) == 0
    assert "conserved" in capsys.readouterr().out


def test_a_sweep_settles_a_lost_record_to_the_end(
    stored: Keys, flags: list[str], redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    command(redis_client, "DEL", stored.meta(block_hash("a")))
    assert main(["sweep", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["conserved"], report["stray"], report["recounted"], report["blocks"]) == (True, 1, 1, 1)
    assert main(["check", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["tenants"] == {"red": 10}


def test_a_block_without_its_prefix_outlives_a_sweep(
    stored: Keys, flags: list[str], redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prefix may be on its way; a lost record makes the sweep walk more than once."""
    ledger, block = RedisLedger(redis_client, stored), block_hash("c")
    assert ledger.reserve([ReserveRequest(block, RED, 10, 1, block_hash("not here"))], ttl_s=30)[0].reserved
    command(redis_client, "SET", stored.block(block), b"x" * 10)
    assert ledger.commit([(block, RED, 10)]) == [True]
    command(redis_client, "DEL", stored.meta(block_hash("a")))
    assert main(["sweep", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["conserved"], report["orphans"], report["blocks"]) == (True, 1, 2)


@pytest.mark.parametrize("what", ["check", "sweep"])
def test_a_policy_that_cannot_be_read_stops_neither(
    what: str, stored: Keys, flags: list[str], redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    command(redis_client, "HSET", stored.tenants(), "blue", '{"tenant": "blue", "colour": 7}')
    assert main([what, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] == 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["check", "--json"], '"blocks": 2'),
        (["sweep", "--json"], '"blocks": 2'),
        (["clear", "--redis-only", "--tenant", "red"], "cleared 2 blocks\n"),
    ],
)
def test_a_url_with_a_password_need_not_be_an_argument(
    command: list[str],
    said: str,
    stored: Keys,
    redis_settings: RedisSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIERED_REDIS_URL", redis_settings.url)
    assert main([*command, "--namespace", redis_settings.namespace]) == 0
    assert said in capsys.readouterr().out


def test_a_url_of_the_environment_that_is_the_clusters_has_the_clusters_namespace(
    stored: Keys,
    redis_settings: RedisSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TIERED_REDIS_URL", redis_settings.url)
    write_cluster_file(ClusterState("http://h", redis_settings.url, redis_settings.namespace, os.getpid(), []))
    assert main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] == 2


def test_a_redis_that_does_not_answer_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--redis-url", "redis://127.0.0.1:1"]) == 2
    assert "--redis-url: no usable server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "exactly one of --tenant"),
        (["--tenant", "a", "--scope", "00"], "exactly one of --tenant"),
        (["--prefix", "abc"], "--prefix: 'abc' is not 64 hexadecimal digits"),
        (["--scope", "zz"], "--scope: 'zz' is not 64 hexadecimal digits"),
        (["--tenant", "a", "--redis-url", "redis://h"], "--redis-url: goes with --redis-only"),
    ],
)
def test_clear_says_what_it_cannot_understand(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clear", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_clearing_takes_a_tenants_blocks_out(
    stored: Keys, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clear", "--redis-only", "--tenant", "red", *flags[:-1]]) == 0
    assert capsys.readouterr().out == "cleared 2 blocks\n"
