"""What `tiered up` is given: ports that must be free, settings that belong to a service."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

import coordinator.settings
import worker.settings
from tiered.cli.launcher import COORDINATOR_PREFIX, WORKER_PREFIX, ClusterPlan, LocalCluster
from tiered.cli.overrides import as_environment, as_flags, read_overrides
from tiered.cli.ports import HOST, choose_ports, free_ports
from tiered.config import load_settings, parse_assignments
from tiered.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "assignment", "secret"),
    [
        ({}, None, None),
        ({"TIERED_WORKER_CLUSTER__SECRET": "given"}, None, "given"),
        ({"TIERED_WORKER_CLUSTER__SECRET": "given"}, "worker.cluster.secret=said", "said"),
    ],
)
def test_the_coordinator_is_given_the_workers_secret(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], assignment: str | None, secret: str | None
) -> None:
    monkeypatch.delenv("TIERED_WORKER_CLUSTER__SECRET", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    overrides = read_overrides(None, [assignment] if assignment else [])
    env = LocalCluster(ClusterPlan(overrides=overrides))._environment()
    assert env["TIERED_COORDINATOR_CLUSTER__SECRET"] == env["TIERED_WORKER_CLUSTER__SECRET"]
    assert len(env["TIERED_COORDINATOR_CLUSTER__SECRET"]) > 20 if secret is None else True
    assert secret in (None, env["TIERED_COORDINATOR_CLUSTER__SECRET"])


@pytest.mark.parametrize(
    ("environ", "assignments", "expected"),
    [
        ({}, ["worker.cluster.secret_file={file}"], ("in the file", "in the file")),
        ({"TIERED_WORKER_CLUSTER__SECRET_FILE": "{file}"}, [], ("in the file", "in the file")),
        ({}, ["worker.cluster.secret_file={file}", "coordinator.cluster.secret=own"], ("in the file", "own")),
        ({}, ["worker.cluster.secret=said", "coordinator.cluster.secret_file={file}"], ("said", "in the file")),
        ({"TIERED_COORDINATOR_CLUSTER__SECRET_FILE": "/none"}, ["worker.cluster.secret=said"], ("said", "said")),
        (
            {"TIERED_COORDINATOR_CLUSTER__SECRET": "stale"},
            ["worker.cluster.secret_file={file}"],
            ("in the file", "in the file"),
        ),
    ],
)
def test_a_secret_in_a_file_is_what_both_services_load(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environ: dict[str, str],
    assignments: list[str],
    expected: tuple[str, str],
) -> None:
    file = tmp_path / "secret"
    file.write_text("in the file\n")
    for name in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value.format(file=file))
    overrides = read_overrides(None, [each.format(file=file) for each in assignments])
    env = LocalCluster(ClusterPlan(overrides=overrides), say=print)._environment()

    def flags(of: Mapping[str, str]) -> dict[str, object]:
        return parse_assignments(as_flags(of)[1::2])

    env |= {"TIERED_WORKER_REDIS__URL": "redis://h", "TIERED_COORDINATOR_REDIS__URL": "redis://h"}
    ours = load_settings(
        worker.settings.Settings, environ=env, env_prefix=WORKER_PREFIX, flags=flags(overrides.worker)
    )
    theirs = load_settings(
        coordinator.settings.Settings, environ=env, env_prefix=COORDINATOR_PREFIX, flags=flags(overrides.coordinator)
    )
    assert (ours.settings.cluster.secret, theirs.settings.cluster.secret) == expected


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20


def test_a_taken_port_is_refused_by_the_name_of_its_flag() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: port {port} cannot be used .*0 for any free one"):
            choose_ports(1, base=port, flag="--port")


def test_one_taken_port_in_a_range_refuses_the_range() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="--peer-port-base"):
            choose_ports(3, base=port - 2, flag="--peer-port-base")


@pytest.mark.parametrize("base", [-1, 65_536, 65_535])
def test_a_range_that_leaves_the_ports_is_refused(base: int) -> None:
    with pytest.raises(ConfigError, match="is not a port"):
        choose_ports(2, base=base, flag="--peer-port-base")


def test_settings_are_sorted_by_service_and_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tiered.toml"
    file.write_text('[worker.pool]\npolicy = "lru"\nfree_target = 0.1\n[coordinator.log]\nlevel = "debug"\n')
    overrides = read_overrides(file, ["worker.pool.policy=sieve", "coordinator.redis.url=a=b"])
    assert overrides.worker == {"pool.policy": "sieve", "pool.free_target": "0.1"}
    assert overrides.coordinator == {"log.level": "debug", "redis.url": "a=b"}
    assert as_flags(overrides.worker) == ["--set", "pool.policy=sieve", "--set", "pool.free_target=0.1"]


def test_what_nobody_else_may_see_goes_by_the_environment_and_the_rest_by_flags() -> None:
    said = {
        "http.admin_token": "geheim",
        "cluster.accepted_secret": "geheim",
        "redis.password": "geheim",
        "redis.url": "redis://h:1",
        "tracing.endpoint": "http://me:geheim@h",
        "http.port": "1",
        "cluster.secret_file": "/run/secret",
    }
    overrides = read_overrides(None, [f"coordinator.{key}={value}" for key, value in said.items()])
    assert as_flags(overrides.coordinator) == ["--set", "http.port=1", "--set", "cluster.secret_file=/run/secret"]
    assert as_environment(overrides.coordinator, prefix="P_") == {
        "P_HTTP__ADMIN_TOKEN": "geheim",
        "P_CLUSTER__ACCEPTED_SECRET": "geheim",
        "P_REDIS__PASSWORD": "geheim",
        "P_REDIS__URL": "redis://h:1",
        "P_TRACING__ENDPOINT": "http://me:geheim@h",
    }


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("pool.policy=lru", "pool.policy: unknown setting"),
        ("worker=1", "worker: unknown setting"),
        ("worker.pool.policy", "is not KEY=VALUE"),
        ("coordinator.http.Admin_Token=x", "http.Admin_Token: unknown setting .* lower-case letters"),
        ("coordinator.http__admin_token=x", "http__admin_token: unknown setting .* single underscores"),
    ],
)
def test_a_setting_of_no_service_is_refused(assignment: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_overrides(None, [assignment])


@pytest.mark.parametrize("content", [b"[worker", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        read_overrides(file, [])


def test_a_file_that_is_nested_without_end_is_named(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(f"worker = {'[' * 100_000}{']' * 100_000}\n")
    with pytest.raises(ConfigError, match=r"--config: .*deep\.toml is nested"):
        read_overrides(file, [])


def test_a_null_character_in_a_file_is_refused_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "tiered.toml"
    file.write_text('[worker.cluster]\nsecret = "a\\u0000b"\n')
    with pytest.raises(ConfigError, match=r"worker\.cluster\.secret: a null character") as refused:
        read_overrides(file, [])
    assert "a\0b" not in str(refused.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config: cannot read .*missing\.toml: No such file"):
        read_overrides(tmp_path / "missing.toml", [])
