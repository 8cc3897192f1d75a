"""describe: who answers at a worker's socket, and who is attached there; for people and their checks."""

from __future__ import annotations

from typing import Final

from tiered.errors import ProtocolError
from tiered.wire.connection import Connection, connect_unix
from tiered.wire.framing import ENGINE_REPLIES
from tiered.wire.messages import Describe, Described, EngineReply

TIMEOUT_S: Final = 2.0


def describe(socket_path: str, *, timeout_s: float = TIMEOUT_S) -> Described:
    """Ask once; nothing is attached. Errors: TierUnavailable, TierTimeout, ProtocolError."""
    sock = connect_unix(socket_path, timeout_s=timeout_s)
    connection: Connection[EngineReply] = Connection(sock, ENGINE_REPLIES, name=socket_path)
    try:
        reply = connection.call(Describe(), timeout_s=timeout_s)
    finally:
        connection.close()
    if not isinstance(reply, Described):
        raise ProtocolError(f"{socket_path}: {type(reply).__name__} is no answer to Describe")
    return reply
