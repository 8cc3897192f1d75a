"""A TCP relay whose answers come at a rate that a test may change at any time, to a crawl and back."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from types import TracebackType
from typing import Self

_STEP_S = 0.02


class SlowRelay:
    """Relays to a port of this machine, or to a Unix socket. bytes_per_s: of what the server answers, on each
    connection; None: as fast as it comes. address: where it listens."""

    def __init__(
        self,
        target: int | str,
        *,
        bytes_per_s: float | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._ended = threading.Event()
        self._listener = socket.create_server(address)
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def slow_to(self, bytes_per_s: float | None) -> None:
        """From the next bytes on, also of what is on its way."""
        self._bytes_per_s = bytes_per_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
                server = _connect(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            for target, sockets in ((self._forward, (client, server)), (self._answer, (server, client))):
                thread = threading.Thread(target=target, args=sockets)
                self._threads.append(thread)
                thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                self._pass_on(client, memoryview(data))
            client.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, client: socket.socket, data: memoryview) -> None:
        while data and not self._ended.is_set():
            bytes_per_s = self._bytes_per_s
            if bytes_per_s is None:
                client.sendall(data)
                return
            part = data[: max(1, int(bytes_per_s * _STEP_S))]
            self._ended.wait(len(part) / bytes_per_s)
            client.sendall(part)
            data = data[len(part) :]


def _connect(target: int | str) -> socket.socket:
    if isinstance(target, int):
        return socket.create_connection(("127.0.0.1", target))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(target)
    return sock


def main() -> None:
    """In a process of its own, ``TARGET HOST PORT``: print the port, then take rates from standard input, one a line,
    0 for none."""
    target, host, port = sys.argv[1:]
    with SlowRelay(int(target) if target.isdigit() else target, address=(host, int(port))) as relay:
        print(relay.port, flush=True)
        for line in sys.stdin:
            relay.slow_to(float(line) or None)
            print("done", flush=True)


if __name__ == "__main__":
    main()
