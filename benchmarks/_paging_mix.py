"""The synthetic multi-tenant mix of the paging benchmark, and a scheduler that holds it in blocks or contiguously.

Lengths are log-normal, since the shared conversations say nothing about many tenants at once: a chat tenant with
prompts of median 300 tokens (sigma 1.0), a document tenant of median 2,500 (sigma 0.8), three chat requests to one
document; answers of median 200 (sigma 0.7) for both. Requests come in bursts: the gaps between bursts are
exponential with a mean of 20 steps, a burst has a geometric number of requests, 6.7 on average. Nothing is shared
between prompts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

MAX_TOKENS = 8_192
BURST_GAP_STEPS = 20


@dataclass(frozen=True, slots=True)
class Request:
    arrives_at_step: int
    prompt_tokens: int
    answer_tokens: int


def make_mix(n_requests: int, *, seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    requests: list[Request] = []
    step = 0.0
    while len(requests) < n_requests:
        step += random.exponential(BURST_GAP_STEPS)
        for _ in range(random.geometric(0.15)):
            is_document = random.random() < 0.25
            median, sigma = (2_500, 0.8) if is_document else (300, 1.0)
            answer = int(np.clip(random.lognormal(np.log(200), 0.7), 1, MAX_TOKENS // 2))
            prompt = int(np.clip(random.lognormal(np.log(median), sigma), 1, MAX_TOKENS - answer))
            requests.append(Request(int(step), prompt, answer))
    return requests[:n_requests]


@dataclass(frozen=True, slots=True)
class Held:
    """Means over the steps in which somebody waited for memory. wasted_share: of the tokens' room that was taken."""

    sequences: float
    wasted_tokens: float
    wasted_share: float
    preempted: int
    steps: int


@dataclass(slots=True)
class _Running:
    request: Request
    tokens: int
    units: int


def hold(requests: list[Request], *, capacity_tokens: int, unit_tokens: int) -> Held:
    """One token a step for every sequence that is held; first come, first served.

    unit_tokens: memory is taken in units of this, as a sequence grows: a block, or MAX_TOKENS for contiguous memory,
    of which every sequence takes one. When no unit is left, the youngest sequence gives up its own and starts again.
    """
    units_left = capacity_tokens // unit_tokens
    coming, waiting = deque(requests), deque[Request]()
    running: list[_Running] = []
    samples: list[tuple[int, int, int]] = []
    step = preempted = 0
    while coming or waiting or running:
        while coming and coming[0].arrives_at_step <= step:
            waiting.append(coming.popleft())
        while waiting and (units := -(-(waiting[0].prompt_tokens + 1) // unit_tokens)) <= units_left:
            units_left -= units
            request = waiting.popleft()
            running.append(_Running(request, request.prompt_tokens + 1, units))
        if waiting and running:
            samples.append((len(running), sum(r.tokens for r in running), sum(r.units for r in running)))
        done = [r for r in running if r.tokens == r.request.prompt_tokens + r.request.answer_tokens]
        units_left += sum(r.units for r in done)
        running = [r for r in running if r.tokens < r.request.prompt_tokens + r.request.answer_tokens]
        index = 0
        while index < len(running):
            grows = running[index]
            if grows.tokens == grows.units * unit_tokens:
                if not units_left:
                    youngest = running.pop()
                    units_left += youngest.units
                    waiting.appendleft(youngest.request)
                    preempted += 1
                    continue
                units_left -= 1
                grows.units += 1
            grows.tokens += 1
            index += 1
        step += 1
    if not samples:
        raise ValueError(f"capacity_tokens: nobody ever waited for a place among {capacity_tokens}; ask for more")
    sequences, used, units = (sum(column) / len(samples) for column in zip(*samples, strict=True))
    taken = units * unit_tokens
    return Held(sequences, taken - used, (taken - used) / taken, preempted, step)
