"""One attachment to a worker: the introduction on its socket, and the memory that comes with it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tiered import __version__
from tiered.errors import LayoutMismatch, TieredError, TierUnavailable
from tiered.hashing.scope import ModelScope
from tiered.pool.pool import BlockPool
from tiered.pool.share import open_cuda_handle
from tiered.wire.connection import Connection, connect_unix
from tiered.wire.framing import ENGINE_REPLIES
from tiered.wire.messages import WIRE_MINOR, Attach, Attached, EngineReply, Failure


@dataclass(frozen=True, slots=True)
class Link:
    """What begins and ends together.

    attachment: counted by the client, because every worker counts its connections and leases from 1: by its numbers
    a match of the worker before could be taken for one of this worker's. connection_id: as the worker counts.
    """

    connection: Connection[EngineReply]
    attachment: int
    connection_id: int
    node: str
    pool: BlockPool

    def close(self) -> None:
        self.connection.close()
        self.pool.close()


def introduce(
    connection: Connection[EngineReply], scope: ModelScope, *, engine: str, timeout_s: float
) -> tuple[Attached, int | None]:
    """Say who we are; the worker's answer, and the descriptor of its memory, which is the caller's to close.

    Errors: LayoutMismatch with both sides; TierUnavailable, TierTimeout, ProtocolError.
    """
    attach = Attach(scope=scope, engine=engine, pid=os.getpid(), version=__version__, minor=WIRE_MINOR)
    connection.send(attach, timeout_s=timeout_s)
    reply, descriptor = connection.receive_with_descriptor(timeout_s=timeout_s)
    if isinstance(reply, Attached):
        connection.minor = reply.minor
        return reply, descriptor
    if descriptor is not None:
        os.close(descriptor)
    raise _refusal(reply, connection.name, scope)


def open_link(
    socket_path: str,
    scope: ModelScope,
    *,
    engine: str,
    attachment: int,
    connect_timeout_s: float,
    timeout_s: float,
) -> Link:
    """Attach, and map the pool. Errors: TieredError; nothing stays open then."""
    sock = connect_unix(socket_path, timeout_s=connect_timeout_s)
    connection: Connection[EngineReply] = Connection(sock, ENGINE_REPLIES, name=socket_path)
    try:
        attached, descriptor = introduce(connection, scope, engine=engine, timeout_s=timeout_s)
        return Link(connection, attachment, attached.connection, attached.node, _open_pool(attached, descriptor))
    except BaseException:
        connection.close()
        raise


def _refusal(reply: EngineReply, name: str, scope: ModelScope) -> TieredError:
    if isinstance(reply, Failure) and reply.kind == "layout":
        return LayoutMismatch(engine=scope.layout.describe(), worker=reply.message)
    said = reply.message if isinstance(reply, Failure) else type(reply).__name__
    return TierUnavailable(f"{name}: {said}")


def _open_pool(attached: Attached, descriptor: int | None) -> BlockPool:
    """Map the worker's memory. Errors: TieredError; the descriptor is closed then."""
    if descriptor is None and not attached.handle:
        raise TierUnavailable(f"{attached.device}: no memory came with the worker's answer")
    if descriptor is None:
        try:
            return open_cuda_handle(attached.handle, attached.layout, attached.n_blocks, name=attached.pool)
        except RuntimeError as error:  # what torch raises for a device or a handle it cannot open
            raise TierUnavailable(f"{attached.device}: cannot open the worker's memory: {error}") from error
    try:
        return BlockPool.attach(attached.layout, attached.n_blocks, descriptor=descriptor, name=attached.pool)
    except BaseException:
        os.close(descriptor)
        raise
