"""Which connections the peer port has room for. Thread-safe.

Owns the bounds and who gives way: a stranger, who has not proven the cluster secret yet, to the next stranger, first
of all those from the address that has most of them; a proven peer that asks for nothing, to one that just came. So
neither strangers who never say a word nor peers that keep connections for later can shut the others out. Does not
know what is said on a connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from typing import Final

PROVEN_MAX: Final = 64
"""Peers' connections, of which each costs a thread."""

STRANGERS_MAX: Final = 64
"""Connections in their handshake. An honest one takes a few milliseconds for it, so that even a flood of others, each
of which makes the oldest give way, leaves it time."""

LEAVING_MAX: Final = 64
"""Connections that have been told to go while their threads have not ended."""


class PeerSlots:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, str] = {}
        """With the address each came from, the oldest first."""
        self._proven: set[socket.socket] = set()
        self._quiet: dict[socket.socket, None] = {}
        """Proven ones that ask for nothing, the one that has been quiet for longest first."""

    def admit(self, sock: socket.socket, source: str) -> bool:
        """A stranger came from there. False: there are so many that not even their threads end in time."""
        with self._lock:
            if len(self._open) >= PROVEN_MAX + STRANGERS_MAX + LEAVING_MAX:
                return False
            if len(self._strangers) >= STRANGERS_MAX:
                [(crowd, _)] = Counter(self._strangers.values()).most_common(1)
                oldest = next(sock for sock, source in self._strangers.items() if source == crowd)
                del self._strangers[oldest]
                _end(oldest)
            self._open.add(sock)
            self._strangers[sock] = source
            return True

    def promote(self, sock: socket.socket) -> bool:
        """The stranger has proven itself. False: all places are taken by peers that are being served."""
        with self._lock:
            if self._strangers.pop(sock, None) is None:  # it had to give way meanwhile
                return False
            if len(self._proven) >= PROVEN_MAX:
                if not self._quiet:
                    return False
                quiet = next(iter(self._quiet))
                del self._quiet[quiet]
                self._proven.discard(quiet)
                _end(quiet)
            self._proven.add(sock)
            return True

    def quiet(self, sock: socket.socket) -> None:
        """It is waited for what the peer asks next."""
        with self._lock:
            if sock in self._proven:
                self._quiet[sock] = None

    def busy(self, sock: socket.socket) -> None:
        with self._lock:
            self._quiet.pop(sock, None)

    def leave(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.discard(sock)
            self._strangers.pop(sock, None)
            self._proven.discard(sock)
            self._quiet.pop(sock, None)

    def end_all(self) -> None:
        with self._lock:
            for sock in self._open:
                _end(sock)


def _end(sock: socket.socket) -> None:
    """Its thread notices and lets go of it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
