"""Settings that come from files which other settings name."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.settings import ENV_PREFIX
from coordinator.settings import Settings as CoordinatorSettings
from tiered.config import Loaded, describe_settings, load_settings
from tiered.errors import ConfigError
from worker.settings import Settings as WorkerSettings


def load(environ: dict[str, str], **flags: str) -> Loaded[CoordinatorSettings]:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(
        CoordinatorSettings,
        environ={ENV_PREFIX + key: value for key, value in environ.items()},
        env_prefix=ENV_PREFIX,
        flags=given,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("pass word/1\n", encoding="utf-8")
    return file


def test_any_setting_may_be_given_by_a_file(file: Path) -> None:
    loaded = load({"CLUSTER__SECRET_FILE": str(file)})
    assert loaded.settings.cluster.secret == "pass word/1"
    rows = {key: (value, origin) for key, value, origin in describe_settings(loaded)}
    said = f"file {file}, which environment TIERED_COORDINATOR_CLUSTER__SECRET_FILE names"
    assert rows["cluster.secret"] == ("***", said)
    assert "cluster.secret_file" not in rows
    file.write_text("2.5", encoding="utf-8")
    assert load({"CLUSTER__SWEEP_INTERVAL_S_FILE": str(file)}).settings.cluster.sweep_interval_s == 2.5


def test_a_toml_file_may_name_files_too(file: Path, tmp_path: Path) -> None:
    config = tmp_path / "worker.toml"
    config.write_text(f'[cluster]\nsecret_file = "{file}"\n', encoding="utf-8")
    loaded = load_settings(WorkerSettings, file=config, environ={}, env_prefix="TIERED_WORKER_")
    assert loaded.settings.cluster.secret == "pass word/1"


def test_a_name_that_ends_so_is_no_setting_where_the_rest_is_none() -> None:
    for key in ("CLUSTER__NONSENSE_FILE", "NONSENSE_FILE", "CLUSTER_FILE"):
        with pytest.raises(ConfigError, match="unknown setting"):
            load({key: "/nowhere"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "it cannot be read (No such file or directory)"),
        (b"\n", "it is empty"),
        (b"\xff\xfe", "it is no text file"),
        (b"x" * 65_537, "it has more than 65536 bytes"),
    ],
)
def test_a_file_that_holds_no_value_stops_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load({"CLUSTER__SECRET_FILE": str(file)})
    assert str(caught.value).startswith(f"cluster.secret_file: '{file}' is not valid: {words}")
    assert caught.value.field == "cluster.secret_file"


def test_a_value_and_a_file_with_it_are_one_too_many(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.secret: .*give one of the two") as caught:
        load({"CLUSTER__SECRET_FILE": str(file)}, cluster__secret="s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "with_login"),
    [
        ("redis://h:1/2", "redis://:pass%20word%2F1@h:1/2"),
        ("rediss://me@h?db=3", "rediss://me:pass%20word%2F1@h?db=3"),
        ("unix:///run/r.sock?db=1", "unix://:pass%20word%2F1@/run/r.sock?db=1"),
        ("redis+cluster://a:1,b:2", "redis+cluster://:pass%20word%2F1@a:1,b:2"),
        ("redis+sentinel://a,b:2/kv", "redis+sentinel://:pass%20word%2F1@a,b:2/kv"),
        ("redis://:pass%20word%2F1@h", "redis://:pass%20word%2F1@h"),
    ],
)
def test_the_password_of_redis_may_be_a_file_and_becomes_part_of_its_url(
    file: Path, url: str, with_login: str
) -> None:
    loaded = load({"REDIS__URL": url, "REDIS__PASSWORD_FILE": str(file)})
    assert loaded.settings.redis.url == with_login
    assert not [value for _, value, _ in describe_settings(loaded) if "pass" in value]


def test_two_passwords_of_redis_stop_the_start_and_neither_is_shown(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^redis\.url: 'redis://\*\*\*@h' is not valid: .*give one of the two"
    ) as caught:
        load({"REDIS__URL": "redis://:other@h", "REDIS__PASSWORD_FILE": str(file)})
    assert "other" not in str(caught.value).replace("another", "")


def test_a_file_that_is_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "worker.toml"
    config.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"worker.toml is (nested too deeply|not valid TOML)"):
        load_settings(WorkerSettings, file=config, environ={}, env_prefix="TIERED_WORKER_")
