"""Facts about addresses that several parts need: who can reach one, and how long a Unix socket's may be."""

from __future__ import annotations

import ipaddress
import sys
from typing import Final

SOCKET_PATH_BYTES_MAX: Final = 103 if sys.platform == "darwin" else 107
"""What the kernel takes for a Unix socket's path, less the closing zero."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach, or be named by, this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
