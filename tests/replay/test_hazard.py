"""The hazard policy on real traces: never far below LRU, as good as an independent description of it, and with hints.

Floors, in percent of all blocks, from a cold start and with one setting for all; see docs/adr/0010-hazard-policy.md.
Traces and sizes are those of ``test_reference.py``; where they are absent these tests skip.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from tests.replay.test_reference import CASES, LRU
from tests.replay.traces import SHARES, TRACES, requests_of, room
from tiered.simulate.replay import Setup, hints_of_trace, replay
from tiered.simulate.trace import Request, read_trace
from tiered.types import Continues, Hints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BELOW_LRU_AT_MOST = 0.5
BELOW_DESCRIPTION_AT_MOST = 0.7

DESCRIPTION = {
    "mooncake_conversation_A": (7.36, 16.11, 22.52, 30.76, 34.11),
    "mooncake_synthetic": (4.35, 15.50, 26.48, 49.17, 61.74),
    "ragpulse_A": (30.95, 31.30, 31.30, 31.30, 31.30),
    "tau_airline_A": (56.74, 88.93, 94.23, 94.27, 94.27),
    "weka_A": (21.88, 82.35, 93.33, 96.11, 96.35),
}
"""What an independent program of the same policy reaches; how ties fall makes tenths of a point."""

FLOORS = {
    ("mooncake_conversation_A", 1): 7.0,
    ("mooncake_conversation_A", 5): 15.2,
    ("mooncake_conversation_A", 10): 22.0,
    ("mooncake_synthetic", 10): 26.5,
    ("mooncake_synthetic", 25): 48.0,
    ("weka_A", 1): 21.5,
    ("weka_A", 5): 82.3,
}


def floor_of(name: str, share: int) -> float:
    cell = SHARES.index(share)
    return max(
        LRU[name][cell] - BELOW_LRU_AT_MOST,
        DESCRIPTION[name][cell] - BELOW_DESCRIPTION_AT_MOST,
        FLOORS.get((name, share), 0.0),
    )


@pytest.mark.parametrize(("name", "share"), CASES)
def test_hazard_reaches_its_floor(name: str, share: int) -> None:
    requests = requests_of(name)
    outcome = replay(requests, Setup("hazard", room(requests, share)))
    assert outcome.total.hit_ratio >= floor_of(name, share)


def mixed_sessions(*, n: int, seed: int, span_s: float, window_s: float, block_tokens: int) -> list[Request]:
    """So many recorded sessions, each begun at a random time; they share no blocks."""
    path = TRACES / "weka_sessions_A.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    sessions: defaultdict[str, list[Request]] = defaultdict(list)
    for request in read_trace(path, block_tokens=block_tokens):
        sessions[request.fields["session_id"]].append(request)
    rnd = random.Random(seed)
    mixed = []
    for session in sorted(rnd.sample(sorted(sessions), n)):
        start_s = rnd.uniform(0, span_s)
        for request in sessions[session]:
            arrival_s = start_s + request.arrival_s
            if arrival_s < window_s:
                mixed.append((int(1_000 * arrival_s), session, request))
    mixed.sort(key=lambda entry: entry[:2])
    return [replace(request, arrival_s=ms / 1e3) for ms, _, request in mixed]


@pytest.mark.timeout(600)
def test_where_lru_thrashes_hazard_keeps_some_sessions_whole() -> None:
    requests = mixed_sessions(n=400, seed=1, span_s=3_600, window_s=7_200, block_tokens=256)
    assert replay(requests, Setup("hazard", 13_007)).total.hit_ratio >= 42.5  # LRU: 23.8


# Hints.


def goes_on(requests: Sequence[Request]) -> list[bool]:
    """For each request whether the trace has its next turn.

    That is a later request of whose known blocks this one used the last one last, and which has at least half of this
    one's blocks and more than one. Known is what any earlier request had.
    """
    used_by: dict[int, int] = {}
    answers = [False] * len(requests)
    for number, request in enumerate(requests):
        n_known = next((i for i, block in enumerate(request.blocks) if block not in used_by), len(request.blocks))
        if n_known > 1:
            before = used_by[request.blocks[n_known - 1]]
            answers[before] = answers[before] or 2 * n_known >= len(requests[before].blocks)
        used_by.update(dict.fromkeys(request.blocks, number))
    return answers


def told(truth: Sequence[bool], *, right: float) -> list[bool]:
    rnd = random.Random(1)
    return [answer if rnd.random() < right else not answer for answer in truth]


SPEAKERS: dict[str, tuple[Callable[[Sequence[bool]], list[bool]], float]] = {
    "always right": (list, 28.0),
    "right three times in four": (lambda truth: told(truth, right=0.75), 18.5),
    "always yes": (lambda truth: [True] * len(truth), 15.0),
    "always wrong": (lambda truth: [not answer for answer in truth], 28.0),
}


@pytest.mark.parametrize("speaker", list(SPEAKERS))
def test_a_hint_is_worth_what_it_has_been(speaker: str) -> None:
    says, floor = SPEAKERS[speaker]
    requests = requests_of("mooncake_conversation_A")
    words = [Continues.YES if word else Continues.NO for word in says(goes_on(requests))]

    def hints_of(number: int, request: Request) -> Hints:
        return msgspec.structs.replace(hints_of_trace(request), continues=words[number])

    outcome = replay(requests, Setup("hazard", room(requests, 5), hints_of=hints_of))
    assert outcome.total.hit_ratio >= floor
