"""Which lives of nodes are asked to drain, and what came of it.

A request is of one life: the next one of that node knows nothing of it, and takes it away.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys
from tiered.types import DrainProgress, Epoch, NodeId


class DrainRequest(msgspec.Struct, frozen=True):
    """outcome: None until the node has left."""

    epoch: int
    outcome: DrainProgress | None = None


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(DrainRequest)


class Drains:
    """The shared record of requests. Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def ask(self, node: NodeId, epoch: Epoch) -> None:
        self._put(node, DrainRequest(epoch))

    def ended(self, node: NodeId, epoch: Epoch, outcome: DrainProgress) -> None:
        """The node has left, or is about to."""
        self._put(node, DrainRequest(epoch, outcome))

    def cancel(self, node: NodeId) -> bool:
        """False if nothing was asked of it."""
        removed: int = command(self._client, "HDEL", self._keys.drains(), node)
        return removed == 1

    def asked(self, node: NodeId) -> DrainRequest | None:
        """What is asked of the node; what does not decode, such as a later version's, asks nothing."""
        text: bytes | None = command(self._client, "HGET", self._keys.drains(), node)
        return None if text is None else _decoded(text)

    def all(self) -> dict[NodeId, DrainRequest]:
        texts: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.drains())
        return {NodeId(node.decode()): found for node, text in texts.items() if (found := _decoded(text)) is not None}

    def _put(self, node: NodeId, request: DrainRequest) -> None:
        command(self._client, "HSET", self._keys.drains(), node, _ENCODER.encode(request))


def _decoded(text: bytes) -> DrainRequest | None:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError:
        return None
