"""Asks the nodes themselves: one question to many at once, each answered within a deadline, or the reason why not.

Owns the connections and their bounds. What is asked, and what an answer means, is the caller's business. A node that
cannot be reached costs its part of the answer and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiered.errors import TieredError, TierUnavailable
from tiered.types import NodeView
from tiered.wire.connection import Connection, connect_tcp
from tiered.wire.framing import PEER_REPLIES
from tiered.wire.handshake import PeerRefused, introduce, left_until
from tiered.wire.messages import Explain, Explained, Failure, PeerReply, Recent

ANSWER_S: Final = 2.0
"""Of one node, its connection made and proven within it."""

ROUND_S: Final = 3.0
"""Of all nodes together."""

REST_S: Final = 2.0
"""A node that gave no answer is not asked again for this long: who looks at a page must not wait for it each time."""

THREADS: Final = 16
IDLE_PER_NODE_MAX: Final = 2
IDLE_MAX: Final = 256

OWN_NAME: Final = "coordinator"


@dataclass(frozen=True, slots=True)
class Heard:
    """told: None where the node gave no answer; reason says why."""

    node: NodeView
    told: Explained | None
    reason: str = ""


class _Address(NamedTuple):
    """Of one life of a node: another life's connections are of no use."""

    node: str
    epoch: int
    host: str
    port: int


class NodesClient:
    """Any number of threads may ask at once; together they use THREADS threads and IDLE_MAX kept connections."""

    def __init__(self, secret: str, *, answer_s: float = ANSWER_S, round_s: float = ROUND_S) -> None:
        self._secret = secret
        self._answer_s = answer_s
        self._round_s = round_s
        self._threads = ThreadPoolExecutor(THREADS, "ask-node")
        self._resting: dict[_Address, tuple[float, str]] = {}
        self._idle: dict[_Address, list[Connection[PeerReply]]] = {}
        self._n_idle = 0
        self._lock = threading.Lock()

    def ask(self, nodes: Sequence[NodeView], question: Callable[[NodeView], Explain | Recent]) -> list[Heard]:
        """One answer for each node, in order. Raises nothing."""
        asked: list[Future[Explained]] = [self._threads.submit(self._ask, node, question(node)) for node in nodes]
        wait(asked, timeout=self._round_s)
        return [self._heard(node, future) for node, future in zip(nodes, asked, strict=True)]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._close_idle()

    def _heard(self, node: NodeView, future: Future[Explained]) -> Heard:
        if not future.done():
            future.cancel()
            return Heard(node, None, f"no answer within {self._round_s:g} s")
        if future.cancelled():
            return Heard(node, None, "this coordinator is stopping")
        error = future.exception()
        if error is None:
            return Heard(node, future.result())
        if not isinstance(error, TieredError):
            raise error
        return Heard(node, None, str(error))

    def _ask(self, node: NodeView, message: Explain | Recent) -> Explained:
        """Errors: TieredError."""
        address = _Address(node.info.node, node.epoch, node.info.peer_host, node.info.peer_port)
        now = time.monotonic()
        rests_until, reason = self._resting.get(address, (0.0, ""))
        if now < rests_until:
            raise TierUnavailable(reason)
        try:
            told = self._talk(address, message, now + self._answer_s)
        except TieredError as error:
            with self._lock:
                self._resting = {each: rest for each, rest in self._resting.items() if rest[0] > now}
                self._resting[address] = (time.monotonic() + REST_S, str(error))
            raise
        return told

    def _talk(self, address: _Address, message: Explain | Recent, ends_at: float) -> Explained:
        kept = self._borrow(address)
        if kept is not None:
            try:
                return self._call(address, kept, message, ends_at)
            except TierUnavailable:
                pass  # it lay idle until the node closed it: only a fresh one says how things are
        return self._call(address, self._connect(address, ends_at), message, ends_at)

    def _call(
        self, address: _Address, connection: Connection[PeerReply], message: Explain | Recent, ends_at: float
    ) -> Explained:
        reply = connection.call(message, timeout_s=left_until(ends_at, connection.name))
        if not isinstance(reply, Explained):
            connection.close()
            raise TierUnavailable(f"{connection.name}: {_said(reply)}")
        self._give_back(address, connection)
        return reply

    def _connect(self, address: _Address, ends_at: float) -> Connection[PeerReply]:
        name = f"{address.node} at {address.host}:{address.port}"
        sock = connect_tcp(address.host, address.port, timeout_s=left_until(ends_at, name))
        connection: Connection[PeerReply] = Connection(sock, PEER_REPLIES, name=name)
        try:
            introduce(
                connection,
                secret=self._secret,
                asking=OWN_NAME,
                serving=address.node,
                epoch=address.epoch,
                ends_at=ends_at,
            )
        except PeerRefused as error:
            if error.reason != "secret":
                raise
            raise TierUnavailable(
                f"{name}: it does not share this coordinator's cluster.secret; set the same as the workers'"
            ) from error
        return connection

    def _borrow(self, address: _Address) -> Connection[PeerReply] | None:
        with self._lock:
            idle = self._idle.get(address)
            if not idle:
                return None
            self._n_idle -= 1
            return idle.pop()

    def _give_back(self, address: _Address, connection: Connection[PeerReply]) -> None:
        with self._lock:
            if self._n_idle >= IDLE_MAX:  # mostly of lives that have ended
                self._close_idle()
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_PER_NODE_MAX:
                idle.append(connection)
                self._n_idle += 1
                return
        connection.close()

    def _close_idle(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        self._n_idle = 0


def _said(reply: object) -> str:
    return reply.message if isinstance(reply, Failure) else f"unexpected {type(reply).__name__}"
