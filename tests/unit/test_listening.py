"""Where a service that listens is found, from here and from elsewhere."""

from __future__ import annotations

import socket

import pytest

from tiered.errors import ConfigError
from tiered.listening import advertised_url_of, listen, url_of

MACHINE = socket.gethostname()


def bound(host: str) -> socket.socket:
    try:
        return listen(host, 0, group="http")
    except (OSError, ConfigError):
        pytest.skip(f"this machine has no {host}")


@pytest.mark.parametrize(
    ("listens_on", "here"),
    [("0.0.0.0", "127.0.0.1"), ("0", "127.0.0.1"), ("::", "[::1]"), ("127.0.0.1", "127.0.0.1")],
)
def test_a_browser_on_this_machine_is_sent_to_loopback(listens_on: str, here: str) -> None:
    with bound(listens_on) as listener:
        assert url_of(listener) == f"http://{here}:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("listens_on", "advertised", "there"),
    [
        ("0.0.0.0", "", MACHINE),
        ("0", "", MACHINE),
        ("::", "", MACHINE),
        ("127.0.0.1", "", "127.0.0.1"),
        ("::1", "", "[::1]"),
        ("0.0.0.0", "10.1.2.3", "10.1.2.3"),
        ("127.0.0.1", "c1.example", "c1.example"),
        ("0.0.0.0", "fd00::7", "[fd00::7]"),
        ("0.0.0.0", "[fd00::7]", "[fd00::7]"),
    ],
)
def test_others_are_sent_where_it_says_or_to_a_host_that_they_may_reach(
    listens_on: str, advertised: str, there: str
) -> None:
    with bound(listens_on) as listener:
        assert advertised_url_of(listener, advertised) == f"http://{there}:{listener.getsockname()[1]}"
