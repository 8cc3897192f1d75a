"""The embedded server as one service of a local cluster: startable again at the same address.

Which binary serves, and with which flags, is :mod:`tiered.cluster.embedded`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tiered.cli.overrides import Overrides
from tiered.cli.process import describe_exit, stop_process, tie_to_us
from tiered.cluster.connection import connect
from tiered.cluster.embedded import EmbeddedServer
from tiered.cluster.keys import Keys
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings

BOOKS_BYTES: Final = 64 << 20
"""The ledger, the directory and the server itself, on top of the blocks and of what its allocator rounds up."""


def partitions_asked(overrides: Overrides, environ: Mapping[str, str]) -> int:
    """``redis.partitions`` as the coordinator will have it. What it will refuse it says itself; then 1."""
    said = overrides.coordinator.get("redis.partitions") or environ.get("TIERED_COORDINATOR_REDIS__PARTITIONS")
    try:
        return RedisSettings.model_validate({"partitions": said or 1}).partitions
    except ValidationError:
        return 1


class LocalServer:
    """An embedded server that dies with us. After :meth:`spawn` it answers at :attr:`url`."""

    name = "server"

    def __init__(self, directory: Path, *, capacity_bytes: int, namespace: str, partitions: int = 1) -> None:
        self.url = ""
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._keys = Keys(namespace, partitions=partitions)
        self._server: EmbeddedServer | None = None

    def spawn(self) -> None:
        """Start it and wait until it answers; the same directory means the same address.

        It comes up empty each time, so the bound of the shared tier is told again.
        """
        self._server = EmbeddedServer.start(
            self._directory,
            maxmemory_bytes=self._capacity_bytes + self._capacity_bytes // 4 + BOOKS_BYTES,
            popen_kwargs={"preexec_fn": tie_to_us()},
        )
        self.url = self._server.url
        try:
            self._tell_capacity()
        except BaseException:
            self._server.kill()
            raise

    @property
    def pid(self) -> int:
        return 0 if self._server is None else self._server.process.pid

    @property
    def alive(self) -> bool:
        return self._server is not None and self._server.process.poll() is None

    @property
    def ready(self) -> bool:
        return self.alive  # spawn returns only when it answers

    @property
    def ending(self) -> str:
        code = None if self._server is None else self._server.process.poll()
        return "" if code is None else describe_exit(code)

    def stop(self, *, grace_s: float) -> None:
        if self._server is not None:
            stop_process(self._server.process, grace_s=grace_s)

    def _tell_capacity(self) -> None:
        settings = RedisSettings(url=self.url)
        with closing(connect(settings, timeout_s=settings.control_timeout_s)) as client:
            Tenants(client, self._keys).set_capacity(self._capacity_bytes)
