"""What the coordinator refuses to start with."""

from __future__ import annotations

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


def test_the_token_is_not_shown() -> None:
    rows = {key: value for key, value, _ in describe_settings(load(http__admin_token="s3cret"))}
    assert rows["http.admin_token"] == "***"


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
