"""The engine: one thread that loads the model and then answers one job after another.

Owns the thread, the queue in front of it, and how it stops. It knows no HTTP: jobs come in, events go out through
each job's ``emit``. An error in one answer is logged and ends that answer alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tiered.connectors.transformers.steering import Abandoned, Steering
from tiered.log import get_logger
from tiered.serving.answer import Answer, Failed, Job, Trouble
from tiered.serving.metrics import Metrics
from tiered.serving.prompts import Tokenizer
from tiered.serving.queue import FairQueue
from tiered.serving.sampling import Sampler, Sampling
from tiered.tracing import span
from tiered.types import Hints, Source, TenantId

_RETRY_S_MAX: Final = 60

_log = get_logger("tiered.serving")


class Generates(Protocol):
    """What is asked of CachedGenerator."""

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
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class CacheState:
    """kind: ``worker``, ``local`` or ``none``; node: the worker's while attached."""

    kind: str
    attached: bool
    node: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is ready to answer, with all that belongs to it. defaults: where a request says nothing."""

    generator: Generates
    tokenizer: Tokenizer
    stop_tokens: frozenset[int]
    context_tokens: int
    defaults: Sampling
    cache: Callable[[], CacheState]
    close: Callable[[], None]


class Engine:
    """load runs in the engine's thread; what it raises is handed to ``start``'s on_loaded."""

    def __init__(
        self, load: Callable[[], Model], metrics: Metrics, *, queue_max: int, keep_answers: bool = True
    ) -> None:
        self._load = load
        self._metrics = metrics
        self._keep_answers = keep_answers
        self._changed = threading.Condition()
        self._queue: FairQueue[Job] = FairQueue(queue_max)
        self._running: Job | None = None
        self._stopped = False
        self._mean_s = 1.0
        """Of an answer, recent ones most."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._on_loaded: Callable[[Exception | None], None] = lambda error: None
        self.model: Model | None = None

    def start(self, on_loaded: Callable[[Exception | None], None]) -> None:
        """on_loaded is called from the engine's thread, once: with None, or with why there is no model."""
        self._on_loaded = on_loaded
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        with self._changed:
            return len(self._queue)

    @property
    def busy(self) -> bool:
        with self._changed:
            return self._running is not None or len(self._queue) > 0

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def retry_after_s(self) -> int:
        """When there may be room again: about half of the queue from now."""
        with self._changed:
            return min(_RETRY_S_MAX, max(1, math.ceil(self._mean_s * (len(self._queue) + 1) / 2)))

    def submit(self, jobs: Sequence[Job]) -> bool:
        """All of one request's, or none: False when the queue is full, or the engine has stopped."""
        with self._changed:
            if self._stopped:
                return False
            admission = self._queue.add(jobs)
            self._changed.notify()
        for displaced in admission.displaced:
            displaced.emit(Failed(Trouble.DISPLACED))
        return admission.admitted

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody wants the answers: those that wait are forgotten, one under way ends at its next token."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
                self._queue.remove(job)

    def stop(self) -> None:
        """Now: what waits or runs is answered with STOPPING; the thread ends at its next token."""
        with self._changed:
            self._stopped = True
            left = self._queue.clear()
            if self._running is not None and not self._running.cancelled:
                self._running.cancelled = True
                left.append(self._running)
            self._changed.notify()
        for job in left:
            job.emit(Failed(Trouble.STOPPING))

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The engine's thread.

    def _run(self) -> None:
        try:
            model = self._load()
        except Exception as error:
            self._on_loaded(error)
            return
        self.model = model
        self._on_loaded(None)
        try:
            while (job := self._next()) is not None:
                began = time.monotonic()
                try:
                    self._answer(model, job)
                except Exception:  # before the model was asked, or after it: others wait for this thread
                    _log.exception("an answer failed", request=job.request_id, tenant=job.tenant)
                    job.emit(Failed(Trouble.BUG))
                with self._changed:
                    self._running = None
                    self._mean_s += 0.2 * (time.monotonic() - began - self._mean_s)
        finally:
            model.close()

    def _next(self) -> Job | None:
        with self._changed:
            while not self._stopped:
                self._running = self._queue.take()
                if self._running is not None:
                    return self._running
                self._changed.wait()
        return None

    def _answer(self, model: Model, job: Job) -> None:
        began = time.monotonic()
        self._metrics.queue_s.observe(began - job.asked_at)
        answer = Answer(job, model.tokenizer.decode, model.stop_tokens)
        told_at = 0.0

        def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
            nonlocal told_at
            now = time.monotonic()
            if told_at:
                self._metrics.token_s.observe(now - told_at)
            else:
                self._metrics.ttft_s.observe(now - job.asked_at)
                self._metrics.count_prompt(len(job.prompt), hit_tokens)
            told_at = now
            self._metrics.completion_tokens.inc()
            return not job.cancelled and answer.add(token, hit_tokens)

        def wanted() -> bool:
            """Once it has ended its asker may leave: an answer is kept for who goes on with it."""
            return not self._stopped and (answer.finish is not None or not job.cancelled)

        steering = Steering(choose=Sampler(job.sampling).choose, on_token=on_token, wanted=wanted)
        try:
            # That the asker left is no error; it is said below.
            with span("serve.answer", tenant=job.tenant, n_prompt_tokens=len(job.prompt)), suppress(Abandoned):
                model.generator.generate(
                    job.prompt,
                    tenant=job.tenant,
                    max_new_tokens=job.max_new_tokens,
                    stop_tokens=model.stop_tokens,
                    steering=steering,
                    keep_answer=self._keep_answers,
                    hints=job.hints,
                )
        except Exception:
            _log.exception("an answer failed", request=job.request_id, tenant=job.tenant)
            if answer.finish is None:
                job.emit(Failed(Trouble.BUG))
        _log.info(
            "answered",
            request=job.request_id,
            tenant=job.tenant,
            prompt_tokens=len(job.prompt),
            completion_tokens=answer.n_tokens,
            **{f"{source}_tokens": n for source, n in answer.hit_tokens.items()},
            finish=str(answer.finish or ("cancelled" if job.cancelled else "failed")),
            waited_s=round(began - job.asked_at, 3),
            took_s=round(time.monotonic() - began, 3),
        )
