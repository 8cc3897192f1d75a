"""Where the worker's TCP servers begin to listen: the family, and what to say when it fails."""

from __future__ import annotations

import errno
import os
import socket

from tiered.errors import ConfigError


def family_of(host: str, port: int) -> socket.AddressFamily:
    """IPv4 or IPv6, as the address says. Errors: OSError for a name that nobody knows or that is none."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no name at all") from None


def cannot_listen(error: OSError, host: str, port: int, *, names: str) -> ConfigError:
    """names: of the settings, up to their ``_host`` and ``_port``."""
    if error.errno == errno.EADDRINUSE:
        field, fix = f"{names}_port", "stop what listens there, or choose a free port, or 0 for any"
    elif error.errno == errno.EACCES:
        field, fix = f"{names}_port", "choose one of 1024 or above, or 0 for any free port"
    else:
        field, fix = f"{names}_host", "use an address of this machine"
    # Of an address that cannot be bound the standard library's own words name it once more.
    why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
    return ConfigError(f"{field}: cannot listen on {host}:{port}: {why}; {fix}", field=field)
