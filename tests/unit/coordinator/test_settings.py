"""What the coordinator refuses to start with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator.settings import ENV_PREFIX, Settings
from tiered.addresses import is_loopback
from tiered.config import Loaded, describe_settings, load_settings, parse_assignments
from tiered.errors import ConfigError


def load(**flags: object) -> Loaded[Settings]:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(Settings, environ={}, env_prefix=ENV_PREFIX, flags=given)


def test_the_defaults_start_on_loopback_without_a_token() -> None:
    settings = load().settings
    assert (settings.http.host, settings.http.port, settings.http.admin_token) == ("127.0.0.1", 8080, "")


def test_a_host_that_others_reach_needs_a_token() -> None:
    with pytest.raises(ConfigError, match=r"http\.admin_token.*set http\.admin_token, or listen on 127\.0\.0\.1"):
        load(http__host="0.0.0.0")
    assert load(http__host="0.0.0.0", http__admin_token="s3cret").settings.http.host == "0.0.0.0"


def test_the_address_for_others_may_say_the_machines_name() -> None:
    assert load().settings.http.advertise_host == ""
    host = load(http__advertise_host="{node}.coordinators").settings.http.advertise_host
    assert host == f"{socket.gethostname()}.coordinators"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "http://c1", "c1/api"])
def test_what_nobody_can_be_sent_to_is_not_advertised(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^http\.advertise_host: .*a name or an address"):
        load(http__advertise_host=host)


def test_the_token_is_not_shown() -> None:
    rows = {key: value for key, value, _ in describe_settings(load(http__admin_token="s3cret"))}
    assert rows["http.admin_token"] == "***"


def test_the_cluster_secret_is_not_shown_and_may_be_left_out() -> None:
    assert load().settings.cluster.secret == ""
    rows = {key: value for key, value, _ in describe_settings(load(cluster__secret="s3cret"))}
    assert rows["cluster.secret"] == "***"
    with pytest.raises(ConfigError, match=r"cluster\.secret"):
        load(cluster__secret="x" * 513)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.sweep_s: unknown setting.*sweep_interval_s"):
        load(cluster__sweep_s=1)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_loopback_is_known_by_all_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_assignments_keep_what_follows_the_first_equals_sign() -> None:
    assert parse_assignments(["http.admin_token=a=b"]) == {"http.admin_token": "a=b"}


@pytest.mark.parametrize("assignment", ["http.port", "=1", ""])
def test_an_assignment_without_key_and_value_is_refused(assignment: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_assignments([assignment])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("from-a-file\n", encoding="utf-8")
    return file


def test_a_token_may_come_from_a_file(secret: Path) -> None:
    loaded = load(http__host="0.0.0.0", http__admin_token_file=str(secret))
    assert loaded.settings.http.admin_token == "from-a-file"
    rows = {key: (value, origin) for key, value, origin in describe_settings(loaded)}
    assert rows["http.admin_token"] == ("***", f"file {secret}, which the command line names")


@pytest.mark.parametrize("name", ["admin_token", "read_token"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "it cannot be read (No such file or directory)"),
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff\xfe", "it is no text file"),
        (b"x" * 65_537, "it has more than 65536 bytes"),
    ],
)
def test_a_token_file_that_holds_none_stops_the_start(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(**{f"http__{name}_file": str(file)})
    assert str(caught.value).startswith(f"http.{name}_file: ")
    assert words in str(caught.value)


def test_a_token_from_a_file_is_a_token_like_others(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * 513, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^http\.admin_token: '\*\*\*'.*at most 512 characters.*file {file}"):
        load(http__admin_token_file=str(file))


def test_a_token_and_a_file_with_it_are_one_too_many(secret: Path) -> None:
    with pytest.raises(ConfigError, match=r"^http\.admin_token: .*give one of the two") as caught:
        load(http__admin_token="s3cret", http__admin_token_file=str(secret))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("token", ["two words", "tab\there", "ümlaut", "null\x00"])
def test_a_token_that_no_header_carries_stops_the_start(token: str) -> None:
    with pytest.raises(ConfigError, match=r"^http\.admin_token:.*printable ASCII"):
        load(http__admin_token=token)


def test_readers_hold_another_token_than_admins() -> None:
    with pytest.raises(ConfigError, match=r"^http\.read_token: '\*\*\*' is not valid.*make two"):
        load(http__admin_token="s3cret", http__read_token="s3cret")
    with pytest.raises(ConfigError, match=r"^http\.read_token: .*http\.admin_token"):
        load(http__read_token="s3cret")
    assert load(http__admin_token="s3cret", http__read_token="other").settings.http.read_token == "other"


@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_a_certificate_needs_its_key_and_the_other_way_round(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^http\.tls_cert.*set both"):
        load(**{f"http__{name}": "/some.pem"})
