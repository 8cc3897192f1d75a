"""A TCP relay that does one bad thing to what a server answers, after a known number of bytes."""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from types import TracebackType
from typing import Self


class Fault(enum.Enum):
    NONE = "none"
    CUT = "cut"
    """The connection ends, in order, in the middle of a block."""
    RESET = "reset"
    CORRUPT = "corrupt"
    """One bit of one byte is turned."""
    STALL = "stall"
    """Nothing comes any more, and nothing ends."""


class FaultyRelay:
    """Relays to a port of this machine; every connection suffers ``fault`` after ``after_bytes`` bytes of answer.

    reached: set as soon as a connection came that far. With Fault.STALL, what had arrived by then stays delivered.
    """

    def __init__(self, port: int, fault: Fault, *, after_bytes: int) -> None:
        self.reached = threading.Event()
        self.connections = 0
        self._target = port
        self._fault = fault
        self._after_bytes = after_bytes
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(10)

    def drop(self) -> None:
        """End all connections there are, in order; new ones are accepted."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self.connections += 1
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
        left = self._after_bytes
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self._fault is Fault.NONE or left >= len(data):
                    client.sendall(data)
                    left -= len(data)
                    continue
                client.sendall(data[:left])
                self.reached.set()
                client.sendall(self._suffer(client, data[left:]))
                left = 1 << 62  # once is enough
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _suffer(self, client: socket.socket, rest: bytes) -> bytes:
        if self._fault is Fault.CORRUPT:
            return bytes([rest[0] ^ 0x10]) + rest[1:]
        if self._fault is Fault.STALL:
            self._ended.wait()
        if self._fault is Fault.RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        raise ConnectionAbortedError("cut")
