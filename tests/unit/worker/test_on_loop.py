"""Decisions for threads, made on the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

import worker.on_loop
from tiered.errors import TierTimeout, TierUnavailable
from worker.on_loop import on_loop


def test_a_thread_gets_its_answer_and_its_error_from_the_loop() -> None:
    def fail() -> int:
        raise KeyError("no such block")

    async def host() -> tuple[int, bool]:
        loop, here = asyncio.get_running_loop(), threading.get_ident()
        answer = await asyncio.to_thread(on_loop, loop, threading.get_ident)
        with pytest.raises(KeyError, match="no such block"):
            await asyncio.to_thread(on_loop, loop, fail)
        return answer, answer == here

    assert asyncio.run(host())[1]


def test_a_loop_that_has_ended_is_unavailable() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(TierUnavailable, match="the worker has stopped"):
        on_loop(loop, lambda: 1)


def test_a_loop_that_does_not_answer_costs_a_bounded_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.on_loop, "LOOP_ANSWER_S", 0.05)
    loop = asyncio.new_event_loop()  # nobody runs it
    try:
        with pytest.raises(TierTimeout, match=r"did not answer within 0\.05 s"):
            on_loop(loop, lambda: 1)
    finally:
        loop.close()
