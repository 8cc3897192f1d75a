"""The worker beside us, from the engine's side: there, or not, and attached to again by itself.

Owns the one connection, its loss, and the thread that makes the next; what is asked over it is the client's to know.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tiered.client.folder import WorkersFolder
from tiered.client.link import Link, open_link
from tiered.errors import ProtocolError, TieredError
from tiered.hashing.scope import ModelScope
from tiered.log import get_logger
from tiered.types import BlockId
from tiered.wire.messages import EngineRequest, Failure
from tiered.wire.numbers import unpack_ids

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 5.0
"""Between attempts to attach again: doubled from the first to the last."""

_log = get_logger("tiered.client")
R = TypeVar("R")
T = TypeVar("T")


class Worker:
    """At a socket, or at one of a folder's. ``link`` is None while there is none.

    The caller holds ``lock`` around each call, and around those that have to find the same worker.
    """

    def __init__(
        self,
        socket_path: str,
        scope: ModelScope,
        *,
        engine: str,
        folder: WorkersFolder | None,
        attach_timeout_s: float,
        call_timeout_s: float,
    ) -> None:
        self.lock = threading.Lock()
        self.link: Link | None = None
        self._path = socket_path
        self._scope = scope
        self._engine = engine
        self._folder = folder
        self._attach_timeout_s = attach_timeout_s
        self._call_timeout_s = call_timeout_s
        self._attachments = itertools.count(1)
        self._closed = threading.Event()
        self._lacks_thread = False

    def attach(self) -> None:
        """Now. Errors: LayoutMismatch; TierUnavailable or TierTimeout when no worker answers there."""
        self.link = self._open_link()

    def attach_later(self, *, first_s: float = 0.0) -> None:
        """Until it works, in a thread of its own: no request ever waits for a worker to come back.

        Where no thread is to be had now, the next call tries again to start it.
        """
        thread = threading.Thread(target=self._attach_again, args=(first_s,), name="attach-again", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._lacks_thread:
                _log.warning("not attached: going on without a cache", socket=self._path, reason=str(error))
            self._lacks_thread = True
        else:
            self._lacks_thread = False

    def close(self) -> None:
        """For good."""
        self._closed.set()
        with self.lock:
            if self.link is not None or self._lacks_thread:  # else the thread that attaches again sees to it
                self._part()

    @property
    def attachment(self) -> int:
        """As the link counts it; 0 while there is no worker."""
        return 0 if self.link is None else self.link.attachment

    def call(
        self, request: EngineRequest, expected: type[R], read: Callable[[R], T], *, timeout_s: float | None = None
    ) -> T | None:
        """What ``read`` makes of the reply, or None when there is no worker that answers.

        A refusal is logged, and None. A reply that makes no sense (``read`` raises ValueError) loses the worker.
        timeout_s: where the request names a wait of its own.
        """
        if self.link is None:
            if self._lacks_thread:
                self.attach_later()
            return None
        asked = type(request).__name__
        try:
            reply = self.link.connection.call(
                request, timeout_s=self._call_timeout_s if timeout_s is None else timeout_s
            )
            if isinstance(reply, expected):
                return read(reply)
            if not isinstance(reply, Failure):
                raise ValueError(f"unexpected {type(reply).__name__}")
            _log.warning("refused by the worker", request=asked, reason=reply.message)
        except TieredError as error:
            self._lose(error)
        except ValueError as error:
            self._lose(ProtocolError(f"the reply to {asked} makes no sense: {error}"))
        return None

    def block_ids(self, packed: bytes) -> list[BlockId]:
        """ValueError for an id that lies outside the pool: reading there would read something else."""
        block_ids = unpack_ids(packed)
        if self.link is not None and block_ids and max(block_ids) >= self.link.pool.n_blocks:
            raise ValueError(f"block {max(block_ids)} of a pool of {self.link.pool.n_blocks}")
        return block_ids

    def _lose(self, error: TieredError) -> None:
        _log.warning("worker lost; going on without a cache", socket=self._path, error=str(error))
        self._detach()
        self.attach_later(first_s=RETRY_FIRST_S)

    def _detach(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def _part(self) -> None:
        self._detach()
        if self._folder is not None:
            self._folder.leave()

    def _attach_again(self, wait_s: float) -> None:
        said = ""
        while not self._closed.wait(wait_s):
            wait_s = min(max(2 * wait_s, RETRY_FIRST_S), RETRY_MAX_S)
            try:
                link = self._open_link()
            except (TieredError, OSError) as error:
                if str(error) != said:  # a worker that is away is said once, and so is one of another model
                    _log.warning("not attached; going on without a cache", socket=self._path, reason=str(error))
                    said = str(error)
                continue
            with self.lock:
                self.link = link
                if self._closed.is_set():
                    break
            _log.info("attached", socket=self._path, node=link.node)
            return
        with self.lock:
            self._part()

    def _open_link(self) -> Link:
        def open_at(path: str) -> Link:
            return open_link(
                path,
                self._scope,
                engine=self._engine,
                attachment=next(self._attachments),
                connect_timeout_s=self._call_timeout_s,
                timeout_s=self._attach_timeout_s,
            )

        return open_at(self._path) if self._folder is None else self._folder.attach(open_at)
