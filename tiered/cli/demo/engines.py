"""The demo's side of an engine process: start it, ask it, end it; every wait is bounded."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tiered.cli.demo.messages import (
    REPLIES,
    Answer,
    Encode,
    Encoded,
    Generate,
    Ready,
    Refused,
    Reply,
    Request,
    to_line,
)
from tiered.cli.process import stop_process, tie_to_us
from tiered.errors import ConfigError, TierTimeout, TierUnavailable

START_S: Final = 180.0
"""Importing torch and transformers from a cold disk, four processes at once on a small machine."""

ANSWER_S: Final = 120.0
"""A prompt of the demo takes a few seconds on two cores; far beyond this it hangs, which the demo must notice."""

R = TypeVar("R")


class EngineProcess:
    """One inference process. ``socket_path`` is its worker's, or None for an engine without any cache."""

    def __init__(self, name: str, model: Path, socket_path: Path | None, *, threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        argv = [sys.executable, "-m", "tiered.cli.demo.engine", "--model", str(model), "--threads", str(threads)]
        if socket_path is not None:
            argv += ["--socket", str(socket_path)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
                preexec_fn=tie_to_us(),
            )
        self._unread = b""

    def wait_ready(self) -> Ready:
        """Errors: ConfigError with the engine's own sentence when it could not start."""
        reply = self._receive(START_S)
        if isinstance(reply, Refused):
            raise ConfigError(f"{self.name}: {reply.message}")
        return _expect(reply, Ready)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return _expect(self._ask(Encode(messages)), Encoded).tokens

    def generate(self, prompt: list[int], *, tenant: str, max_new_tokens: int) -> Answer:
        """Errors: TierTimeout when the engine hangs, TierUnavailable when it died."""
        return _expect(self._ask(Generate(tenant, prompt, max_new_tokens)), Answer)

    def stop(self) -> None:
        stop_process(self._process, grace_s=2.0)

    def _ask(self, request: Request) -> Reply:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(to_line(request))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TierUnavailable(f"{self.name} has died; see {self._log}") from None
        return self._receive(ANSWER_S)

    def _receive(self, timeout_s: float) -> Reply:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TierTimeout(f"{self.name} gave no answer within {timeout_s:g} s; see {self._log}")
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise TierUnavailable(f"{self.name} has died; see {self._log}")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return REPLIES.decode(line)


def _expect(reply: Reply, kind: type[R]) -> R:
    if not isinstance(reply, kind):
        raise TierUnavailable(f"expected {kind.__name__}, got {msgspec.json.encode(reply).decode()}")
    return reply
