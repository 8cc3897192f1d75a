"""Serves CacheClient to the engines beside us, over a Unix socket. No KV byte crosses it, but for clients without a
pool (``worker.sequence_server``).

Owns the socket and who is on it; what a request is answered is ``worker.engine``'s. One task per connection; requests
of one connection are answered in order. When the connection ends, however it ends, all that its engine held comes
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
from pathlib import Path

from tiered.errors import ConfigError, ProtocolError, VersionMismatch
from tiered.log import get_logger
from tiered.wire.framing import parting_word
from tiered.wire.messages import AttachedEngine
from worker.engine import Engine
from worker.engine_frames import requests_of
from worker.hot_tier import HotTier
from worker.sequence_server import COMPUTING_MAX, SequenceServer

CONNECTIONS_MAX = 1_024
SILENT_MAX = 64
"""Of connections on which nothing has been said yet."""

REFUSALS = ("version", "protocol", "busy")
"""It speaks another version of the wire; what it said is not of this protocol; there are too many."""

STOP_S = 1.0
"""How long a stop waits for the connections' tasks to end; they are cancelled, so it takes a moment."""

_log = get_logger("worker.local")


class LocalServer:
    def __init__(self, path: Path, hot: HotTier, *, node: str, match_lease_s: float) -> None:
        self._path = path
        self._hot = hot
        self._node = node
        self._match_lease_s = match_lease_s
        self._connections = itertools.count(1)
        self._computing = asyncio.Semaphore(COMPUTING_MAX)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}
        """Connections that have not said anything yet, the oldest first."""
        self._attached: dict[int, AttachedEngine] = {}
        """By connection."""
        self.refused = dict.fromkeys(REFUSALS, 0)
        """Connections that were ended here, by reason."""

    async def start(self) -> None:
        """Listen. Errors: ConfigError when the path cannot be used, or a living worker listens there."""
        await self._clear_the_way()
        umask = os.umask(0o177)  # from its first moment on the socket is its owner's alone
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        except OSError as error:
            raise ConfigError(
                f"node.socket: cannot listen on {self._path}: {error.strerror}; choose a path in a directory that "
                "exists and may be written",
                field="node.socket",
            ) from None
        finally:
            os.umask(umask)

    @property
    def serving(self) -> bool:
        return self._server is not None

    async def stop(self) -> None:
        """Let go of every engine, whatever is being waited for on its behalf. Harmless when done before."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            serving = list(self._serving)
            for task in serving:
                task.cancel()
            if serving:
                await asyncio.wait(serving, timeout=STOP_S)
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _clear_the_way(self) -> None:
        """Remove the socket of a worker that was killed; refuse to take the place of one that lives, or of a file."""
        try:
            if not stat.S_ISSOCK(self._path.stat().st_mode):
                raise ConfigError(
                    f"node.socket: {self._path} exists and is no socket; choose another path", field="node.socket"
                )
            _, writer = await asyncio.open_unix_connection(self._path)
        except ConnectionRefusedError:
            self._path.unlink(missing_ok=True)
        except OSError:
            return  # nothing there, or nothing we may touch: listening will say which
        else:
            writer.close()
            raise ConfigError(
                f"node.socket: {self._path} is in use by another worker; stop it or choose another path",
                field="node.socket",
            )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(self._connections)
        sequences = SequenceServer(self._hot, connection, self._computing)
        engine = Engine(
            self._hot,
            connection,
            sequences,
            node=self._node,
            match_lease_s=self._match_lease_s,
            attached=self._attached,
        )
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= CONNECTIONS_MAX:
            self.refused["busy"] += 1
            _log.warning("engine refused: there are too many", connections=len(self._serving))
            writer.transport.abort()
            return
        self._make_way(task)
        try:
            async with contextlib.aclosing(requests_of(reader)) as requests:
                async for request in requests:
                    self._silent.pop(task, None)
                    await engine.answer(request, writer)
        except ProtocolError as error:
            if isinstance(error, VersionMismatch):
                writer.write(parting_word(error))
            self.refused["version" if isinstance(error, VersionMismatch) else "protocol"] += 1
            _log.warning("engine dropped", connection=connection, error=str(error))
        except OSError as error:  # the engine died, or takes no more replies; what it held comes back below
            _log.debug("engine lost", connection=connection, error=str(error))
        except asyncio.CancelledError:
            pass  # by stop(), or to make way; asyncio's streams would log the cancellation as an error of ours
        finally:
            sequences.close()
            n_leases = self._hot.detach(connection)
            if self._attached.pop(connection, None) is not None:
                _log.info("engine gone", connection=connection, leases_ended=n_leases)
            self._serving.discard(task)
            self._silent.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # nobody reads it, and a close would wait until somebody does
            else:
                writer.close()

    def _make_way(self, task: asyncio.Task[None]) -> None:
        """Take a new connection in; of too many that have not said a word the oldest has to go."""
        if len(self._silent) >= SILENT_MAX:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()
        self._serving.add(task)
        self._silent[task] = None
