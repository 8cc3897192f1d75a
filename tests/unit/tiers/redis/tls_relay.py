"""Speaks TLS on a TCP port and passes the bytes to a Unix socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def relaying(target: Path, certificate: Path, key: Path) -> Iterator[int]:
    """Yields the port; each connection is served until one side closes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # Either side may go at any time.
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(raw: socket.socket) -> None:
        with (
            suppress(OSError),  # A client that does not trust us hangs up.
            raw,
            context.wrap_socket(raw, server_side=True) as outside,
            socket.socket(socket.AF_UNIX) as inside,
        ):
            inside.connect(str(target))
            back = threading.Thread(target=copy, args=(inside, outside))
            back.start()
            copy(outside, inside)
            back.join(10)

    def accept() -> None:
        with suppress(OSError):  # Closing the listener ends the loop.
            while True:
                raw, _ = listener.accept()
                raw.settimeout(10)
                threads.append(threading.Thread(target=serve, args=(raw,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(10)
