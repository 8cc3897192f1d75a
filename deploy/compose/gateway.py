"""One address for all coordinators of docker-compose.yml: hands each connection to the first of them that takes it.

Always the first in the order of their addresses, because a dashboard's history is one replica's. It looks into
nothing that passes, so tokens are between a caller and a coordinator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import signal
import socket
from typing import Final

CONNECT_S: Final = 2.0
CONNECTIONS_MAX: Final = 512
CHUNK_BYTES: Final = 64 << 10


class Gateway:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._n_open = 0

    async def serve(self, listen: int) -> None:
        """Until SIGTERM or SIGINT; what is open then is cut."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with await asyncio.start_server(self._take, "0.0.0.0", listen):
            print(f"gateway: port {listen} leads to {self._host}:{self._port}", flush=True)
            await stop.wait()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._n_open >= CONNECTIONS_MAX:
            return writer.transport.abort()
        self._n_open += 1
        try:
            onward = await self._connect()
            if onward is None:
                print(f"gateway: nobody answers at {self._host}:{self._port}", flush=True)
                return writer.transport.abort()
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pass_on(reader, onward[1]))
                    both.create_task(_pass_on(onward[0], writer))
            finally:
                onward[1].transport.abort()
                writer.transport.abort()
        finally:
            self._n_open -= 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address in await self._addresses():
            with contextlib.suppress(OSError):  # and TimeoutError, which is one
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(address, self._port)
        return None

    async def _addresses(self) -> list[str]:
        """Asked for with each connection: coordinators come and go."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({str(address[0]) for *_, address in found}, key=ipaddress.ip_address)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes, and then that nothing more comes. Someone who hangs up is no error."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def main() -> None:
    parser = argparse.ArgumentParser(prog="gateway")
    parser.add_argument("--listen", type=int, default=8080, metavar="PORT")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="every address of that name may be used")
    arguments = parser.parse_args()
    host, _, port = arguments.to.partition(":")
    asyncio.run(Gateway(host, int(port)).serve(arguments.listen))


if __name__ == "__main__":
    main()
