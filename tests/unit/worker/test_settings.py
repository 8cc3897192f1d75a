"""What of a worker's settings depends on its name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tiered.config import load_settings
from tiered.errors import ConfigError
from worker.settings import ENV_PREFIX, Settings


def load(**flags: str) -> Settings:
    given = {f"node.{key}": value for key, value in flags.items()}
    return load_settings(Settings, environ={}, env_prefix=ENV_PREFIX, flags={**given, "cluster.secret": "s"}).settings


def test_socket_and_address_may_say_the_nodes_name() -> None:
    node = load(
        name="w1", socket="/run/tiered/{node}.sock", peer_host="0.0.0.0", advertise_host="{node}.workers"
    ).node
    assert (node.socket, node.advertise_host) == (Path("/run/tiered/w1.sock"), "w1.workers")


def test_a_node_without_a_name_is_called_as_its_machine_is() -> None:
    node = load(socket="/run/tiered/{node}.sock", advertise_host="{node}").node
    name = socket.gethostname()
    assert (node.name, node.advertise_host, node.socket) == (name, name, Path(f"/run/tiered/{name}.sock"))


def test_a_bad_name_is_what_is_said_and_not_what_follows_from_it() -> None:
    with pytest.raises(ConfigError, match=r"^node\.name: 'a b' is not valid"):
        load(name="a b", socket="/run/tiered/{node}.sock", peer_host="0.0.0.0", advertise_host="{node}")


def test_a_path_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^node\.socket: .*at most 107 bytes"):
        load(name="w" * 60, socket="/run/{node}/{node}.sock")
