"""Three clients of the node's worker, one for each of SGLang's threads: a client runs one request at a time, and a
question must not wait for a batch that is being copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tiered.client.port import CacheClient
from tiered.client.remote import RemoteClient
from tiered.errors import TierError
from tiered.hashing.scope import ModelScope
from tiered.log import get_logger

PURPOSES: Final = ("query", "read", "write")

_log = get_logger("tiered.sglang")


@dataclass(frozen=True, slots=True)
class Clients:
    query: CacheClient
    read: CacheClient
    write: CacheClient

    def close(self) -> None:
        for client in (self.query, self.read, self.write):
            client.close()


Attach: TypeAlias = Callable[[str, ModelScope], Clients]
"""attach(socket path, scope). Errors: LayoutMismatch."""


def attach_to_worker(socket_path: str, scope: ModelScope) -> Clients:
    """Attached at once where a worker answers; else without a cache until one does.

    Errors: LayoutMismatch.
    """
    try:
        first = RemoteClient.attach(socket_path, scope, engine=f"sglang {PURPOSES[0]}")
    except TierError as error:
        _log.warning("no worker yet; going on without a cache", socket=socket_path, error=str(error))
        return Clients(*(RemoteClient.attach_later(socket_path, scope, engine=f"sglang {p}") for p in PURPOSES))
    others = (RemoteClient.attach_later(socket_path, scope, engine=f"sglang {p}") for p in PURPOSES[1:])
    return Clients(first, *others)
