"""Facts about addresses that several parts need: who can reach one, how long a Unix socket's is, where ours lies."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

SOCKET_PATH_BYTES_MAX: Final = 103 if sys.platform == "darwin" else 107
"""What the kernel takes for a Unix socket's path, less the closing zero."""


def default_worker_socket() -> Path:
    """Where a worker listens for engines, and engines look for it, unless told otherwise: this user's own folder for
    sockets, where the machine has one.
    """
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / "tiered-worker.sock"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach, or be named by, this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
