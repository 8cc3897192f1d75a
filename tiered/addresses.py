"""Facts about addresses that several parts need: who can reach one, how settings write one for many nodes, how long a
Unix socket's is, where ours lies.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

SOCKET_PATH_BYTES_MAX: Final = 103 if sys.platform == "darwin" else 107
"""What the kernel takes for a Unix socket's path, less the closing zero."""

WILDCARDS: Final = ("0.0.0.0", "::")
"""To listen on; nobody can be told to go there."""

_NODE: Final = "{node}"


def default_worker_socket() -> Path:
    """Where a worker listens for engines, and engines look for it, unless told otherwise: this user's own folder for
    sockets, where the machine has one.
    """
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / "tiered-worker.sock"


def with_node(text: str, node: str) -> str:
    """A setting in which ``{node}`` stands for the node's name: containers of one kind share their settings."""
    return text.replace(_NODE, node)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach, or be named by, this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
