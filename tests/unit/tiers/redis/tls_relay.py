"""Speaks TLS on a TCP port and passes the bytes to a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def relaying(target: Path, certificate: Path, key: Path) -> Iterator[int]:
    """Yields the port; each connection is served until one side closes it.

    One thread serves them all: a TLS connection that one thread reads while another writes loses bytes.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    started = threading.Event()
    relay = _Relay(target, context, started)
    thread = threading.Thread(target=asyncio.run, args=(relay.serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield relay.port
    finally:
        relay.stop()
        thread.join(10)
        assert not thread.is_alive()


class _Relay:
    def __init__(self, target: Path, context: ssl.SSLContext, started: threading.Event) -> None:
        self._target = target
        self._context = context
        self._started = started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self.port = 0

    async def serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0, ssl=self._context) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._started.set()
            await self._stopped.wait()

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _relay(self, outside: asyncio.StreamReader, to_outside: asyncio.StreamWriter) -> None:
        inside, to_inside = await asyncio.open_unix_connection(self._target)
        copies = [
            asyncio.create_task(_copy(outside, to_inside)),
            asyncio.create_task(_copy(inside, to_outside)),
        ]
        with suppress(asyncio.CancelledError):  # The relay ends, and with it what is still connected.
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
            copy.cancel()
        to_inside.close()
        to_outside.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # Either side may go at any time.
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
