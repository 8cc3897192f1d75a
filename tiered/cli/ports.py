"""Ports of one machine: which are free, and whether the asked-for ones are.

A free port is only free at the moment of asking; who listens later may still find it taken and says so
itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack

from tiered.errors import ConfigError

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct ports nobody listens on. All are held at once while choosing, or the same one could come twice."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def require_free(ports: Iterable[int], *, flag: str) -> None:
    """Errors: ConfigError naming the flag and the first port that is taken or is no port."""
    for port in ports:
        if not 0 < port <= 65_535:
            raise ConfigError(f"{flag}: {port} is not a port; write 1 to 65535, or 0 for any free one", field=flag)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                # As servers do: a connection of an earlier life that is still ending does not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{flag}: port {port} cannot be used ({reason}); choose another one, or 0 for any free one",
                field=flag,
            ) from None


def choose_ports(count: int, *, base: int, flag: str) -> list[int]:
    """``base, base + 1, ...`` after checking each, or any free ones when base is 0."""
    if base == 0:
        return free_ports(count)
    ports = list(range(base, base + count))
    require_free(ports, flag=flag)
    return ports
