"""The one place that knows every part of the server: builds them, starts them, stops them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI

from tiered import tracing
from tiered.addresses import is_loopback
from tiered.listening import listen, url_of
from tiered.log import get_logger
from tiered.serving.api import build_api
from tiered.serving.callers import Callers
from tiered.serving.engine import Engine, Model
from tiered.serving.keys import Keys
from tiered.serving.metrics import Metrics
from tiered.serving.services import Serving
from tiered.serving.settings import Settings

_LAST_WORDS_S: Final = 3
"""For replies that are under way when all answers have ended or were cut."""

_LAST_STEP_S: Final = 5.0
"""For the engine to end its step and give its cache back."""

_LOOK_S: Final = 0.05

_log = get_logger("tiered.serving")


def run(settings: Settings, *, name: str, load: Callable[[], Model], on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; on_ready gets our URL once the model is loaded.

    Errors: ConfigError for keys that cannot be read, a port that is taken, or what ``load`` raises.
    """
    keys = None
    if settings.auth.keys_file is not None:
        keys = Keys(settings.auth.keys_file, clock=time.monotonic)
    exporter = tracing.start(settings.tracing, service="tiered-serve", instance=name)
    with listen(settings.server.host, settings.server.port, group="server") as listener:
        server = Server(settings, name=name, load=load, keys=keys)
        asyncio.run(server.serve(listener, on_ready=on_ready))
    exporter.stop()
    _log.info("stopped")
    if server.engine.alive:
        # In the middle of a long step, or of loading. The interpreter's own end would abort under its feet.
        sys.stdout.flush()
        os._exit(0)


class Server:
    """All parts, built and not yet running."""

    def __init__(self, settings: Settings, *, name: str, load: Callable[[], Model], keys: Keys | None) -> None:
        metrics = Metrics()
        self._settings = settings
        self._keys = keys
        self.engine = Engine(load, metrics, queue_max=settings.limits.queue, keep_answers=settings.cache.keep_answers)
        callers = Callers(keys, is_local=is_loopback(settings.server.host))
        self.serving = Serving(settings, name, self.engine, callers, metrics)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: Exception | None = None
        self.http = _Http(build_api(self.serving))

    async def serve(
        self, listener: socket.socket, *, on_ready: Callable[[str], None], with_signals: bool = True
    ) -> None:
        """Until :meth:`stop`. Errors: what the loading of the model raised."""
        loop = asyncio.get_running_loop()

        def on_loaded(error: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # stopped meanwhile: the loop has ended
                loop.call_soon_threadsafe(self._loaded, error, lambda: on_ready(url_of(listener)))

        with self._signals(loop) if with_signals else contextlib.nullcontext():
            running = asyncio.create_task(self.http.serve([listener]))
            self.engine.start(on_loaded)
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
                await self._drain()
            finally:
                stop.cancel()
                self.engine.stop()
                self.http.should_exit = True
                await running
                await asyncio.to_thread(self.engine.join, _LAST_STEP_S)
                self.serving.tokenizing.shutdown(wait=False, cancel_futures=True)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take nothing on, let what was accepted end within the grace; the second time, cut it."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _drain(self) -> None:
        self.serving.is_stopping = True
        if self._failure is not None:
            return
        _log.info("stopping", waiting=self.engine.n_waiting, grace_s=self._settings.server.grace_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.server.grace_s):
                while self.engine.busy and not self._hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), _LOOK_S)

    def _loaded(self, error: Exception | None, tell: Callable[[], None]) -> None:
        if error is not None:
            self._failure = error
            self._stop.set()
        elif not self._stop.is_set():
            tell()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        ours = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self._on_hangup}
        for number, handler in ours.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in ours:
                loop.remove_signal_handler(number)

    def _on_hangup(self) -> None:
        if self._keys is not None:
            self._keys.read_again()


class _Http(uvicorn.Server):
    """uvicorn without hands on the process: signals are the server's."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # unlike httptools it bounds what a client may send as headers: 64 KiB
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LAST_WORDS_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
