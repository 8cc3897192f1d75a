"""What comes in on an engine's connection, as requests, within bounds: the connection is dropped, never the process.

Owns the deadlines of reading and whose turn it is; what a request means is the server's to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from tiered.errors import ProtocolError
from tiered.wire.framing import ENGINE_REQUESTS, FrameReader
from tiered.wire.messages import EngineRequest

FIRST_S: Final = 10.0
"""Who connects says what it is within this time; engines attach at once."""

FRAME_S: Final = 10.0
"""Of one request from its first byte to its last: 16 MiB cross a Unix socket in milliseconds."""

TURN_REQUESTS: Final = 64
"""So many requests sent ahead are answered in a row; then the others have their turn."""

_READ_BYTES: Final = 1 << 18


async def requests_of(reader: asyncio.StreamReader) -> AsyncGenerator[EngineRequest, None]:
    """One by one, until the engine goes. Memory is taken as bytes arrive, not as they are announced.

    Errors: ProtocolError for what is no request, or takes too long to become one.
    """
    frames: FrameReader[EngineRequest] = FrameReader(ENGINE_REQUESTS)
    loop = asyncio.get_running_loop()
    ends_at: float | None = loop.time() + FIRST_S
    n_in_turn = 0
    while True:
        try:
            async with asyncio.timeout_at(ends_at):
                data = await reader.read(_READ_BYTES)
        except TimeoutError:
            raise ProtocolError("a request did not come to its end in time") from None
        if not data:
            return
        n_before = n_in_turn
        for request in frames.feed(data):
            n_in_turn += 1
            yield request
            if n_in_turn % TURN_REQUESTS == 0:
                await asyncio.sleep(0)
        if not frames.is_amid_one:
            ends_at = None
        elif n_in_turn > n_before or ends_at is None:  # another one has begun
            ends_at = loop.time() + FRAME_S
