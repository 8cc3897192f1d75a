"""The server in a thread of the test, on a free port, over a real or a scripted model; every wait is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.tiny_llm import CONTEXT_TOKENS, EOS, LONGEST_TOKEN, byte_tokenizer
from tests.support.worker_process import until
from tiered.connectors.transformers.steering import Abandoned, Steering
from tiered.listening import listen
from tiered.serving.engine import CacheState, Model
from tiered.serving.keys import Keys
from tiered.serving.prompts import Tokenizer
from tiered.serving.sampling import Sampling
from tiered.serving.server import Server
from tiered.serving.settings import Settings
from tiered.types import NO_HINTS, Hints, Source, TenantId

NAME = "tiny"
START_S = 30.0
STOP_S = 15.0


@dataclass(slots=True)
class Asked:
    """What a scripted model was asked, and how far it came."""

    prompt: Sequence[int]
    tenant: TenantId
    max_new_tokens: int
    hints: Hints = NO_HINTS
    n_tokens: int = 0
    ended: str = ""


@dataclass(slots=True)
class ScriptedGenerator:
    """Says what it is told to, byte by byte, and waits where a test wants it to.

    script: from a prompt's bytes to the answer's tokens. gate: while it is closed no further token is chosen.
    pause_after: tokens of an answer after which it closes by itself. failing: raised by the next answer. hits: what
    each prompt finds.
    """

    script: Callable[[bytes], Sequence[int]] = lambda prompt: [*b"hello", EOS]
    hits: dict[Source, int] = field(default_factory=dict)
    failing: Exception | None = None
    pause_after: int | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def generate(
        self,
        prompt: Sequence[int],
        *,
        tenant: TenantId,
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        steering: Steering,
        keep_answer: bool,
        hints: Hints,
    ) -> object:
        asked = Asked(list(prompt), tenant, max_new_tokens, hints)
        self.asked.append(asked)
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        for token in [*self.script(bytes(each for each in prompt if each < 256))][:max_new_tokens]:
            while not self.gate.wait(0.01):
                if not steering.wanted():
                    asked.ended = "abandoned"
                    raise Abandoned
            asked.n_tokens += 1
            if asked.n_tokens == self.pause_after:
                self.gate.clear()
            if not steering.on_token(token, self.hits) or token in stop_tokens:
                break
        asked.ended = "ended"
        return None


def scripted_model(generator: ScriptedGenerator, *, template: bool = True) -> Model:
    inner = byte_tokenizer() if template else byte_tokenizer(template=None)
    return Model(
        generator=generator,
        tokenizer=Tokenizer(inner, n_vocab=264, chars_max=CONTEXT_TOKENS * LONGEST_TOKEN),
        stop_tokens=frozenset({EOS}),
        context_tokens=CONTEXT_TOKENS,
        defaults=Sampling(),
        cache=lambda: CacheState("none", attached=False),
        close=lambda: None,
    )


class Served:
    """A running server and a client of it."""

    def __init__(self, load: Callable[[], Model], settings: Settings, keys: Keys | None) -> None:
        self._listener = listen(settings.server.host, settings.server.port, group="server")
        self.port: int = self._listener.getsockname()[1]
        self.http = httpx.Client(base_url=self.url, timeout=30.0)
        self.error: BaseException | None = None
        self._load = load
        self._settings = settings
        self._keys = keys
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server: Server | None = None
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)
        self._thread.start()
        until(lambda: self.server is not None or not self._thread.is_alive(), "the server is built")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait_ready(self) -> Served:
        assert self.ready.wait(START_S)
        return self

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        body = {"model": NAME, "messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: object = "hi", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": NAME, "prompt": prompt, **fields})

    def metric(self, name: str, **labels: str) -> float:
        assert self.server is not None
        value = self.server.serving.metrics.registry.get_sample_value(name, labels)
        return 0.0 if value is None else value

    def stop(self) -> None:
        """As the first SIGTERM does; it is not waited for."""
        assert self._loop is not None
        assert self.server is not None
        self._loop.call_soon_threadsafe(self.server.stop)

    def end(self) -> None:
        if self.running:
            self.stop()
        self._thread.join(STOP_S)
        assert not self.running
        self.http.close()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self.server = Server(self._settings, name=NAME, load=self._load, keys=self._keys)
            with self._listener:
                await self.server.serve(self._listener, on_ready=lambda url: self.ready.set(), with_signals=False)

        try:
            asyncio.run(serve())
        except BaseException as error:
            self.error = error


def settings_of(**groups: dict[str, Any]) -> Settings:
    """On a free port, with a short grace."""
    server = {"port": 0, "grace_s": 0.0} | groups.pop("server", {})
    return Settings.model_validate({"server": server, **groups})


@contextmanager
def served(load: Callable[[], Model], *, keys: Keys | None = None, **groups: dict[str, Any]) -> Iterator[Served]:
    """Ready, and stopped at the end."""
    running = Served(load, settings_of(**groups), keys)
    try:
        yield running.wait_ready()
    finally:
        running.end()


@contextmanager
def scripted(
    generator: ScriptedGenerator | None = None, *, keys: Keys | None = None, **groups: dict[str, Any]
) -> Iterator[tuple[Served, ScriptedGenerator]]:
    generator = generator or ScriptedGenerator()
    with served(lambda: scripted_model(generator), keys=keys, **groups) as running:
        try:
            yield running, generator
        finally:
            generator.gate.set()
