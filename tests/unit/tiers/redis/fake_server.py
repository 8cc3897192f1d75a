"""A server of one connection that answers with bytes chosen by the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def answering(path: Path, *conversations: bytes) -> Iterator[str]:
    """Each accepted connection reads one request, gets one conversation's bytes and is closed; yields the URL."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(10)

    def serve() -> None:
        for reply in conversations:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # The client may close before it has read everything.
                connection.settimeout(10)
                connection.recv(1 << 16)
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield f"unix://{path}"
    finally:
        listener.close()
        server.join(10)
