"""Twelve real conversations, turn by turn, cut into small blocks: the sampled curve beside the exact one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.unit.curve.builders import ACME, ratio_at
from tests.unit.simulate.builders import request
from tiered.curve.sampler import Sampler
from tiered.simulate.curves import lru_curve
from tiered.simulate.trace import Request
from tiered.types import BlockHash

_FIXTURE: Final = Path(__file__).parents[2] / "fixtures" / "tau_airline" / "conversations.jsonl"
_BLOCK_BYTES: Final = 4


def prompts() -> Iterator[list[bytes]]:
    """What the engine is asked at each assistant's turn, all conversations a turn after each other."""
    talks = [json.loads(line)["messages"] for line in _FIXTURE.read_text(encoding="utf-8").splitlines()]
    for turn in range(1, max(map(len, talks))):
        for messages in talks:
            if turn < len(messages) and messages[turn]["role"] == "assistant":
                text = "".join(json.dumps(message) for message in messages[:turn]).encode()
                yield [text[at : at + _BLOCK_BYTES] for at in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES)]


def chained(blocks: list[bytes], salt: bytes) -> list[BlockHash]:
    link, hashes = salt, []
    for block in blocks:
        link = hashlib.sha256(link + block).digest()
        hashes.append(BlockHash(link))
    return hashes


@pytest.mark.parametrize("salt", [b"", b"1", b"2"])
def test_the_sampled_curve_of_real_conversations_is_near_the_exact_one(salt: bytes) -> None:
    ids: dict[BlockHash, int] = {}
    requests: list[Request] = []
    sampler = Sampler(16)
    for prompt in prompts():
        hashes = chained(prompt, salt)
        sampler.looked_up(ACME, hashes, prompt_tokens=16 * len(hashes), now=0.0)
        requests.append(request(*(ids.setdefault(each, len(ids)) for each in hashes)))
    exact, curve = lru_curve(requests), sampler.curves(now=0.0)[ACME]
    errors = [
        abs(ratio_at(curve, len(ids) * share / 100) - exact.hits_at(len(ids) * share // 100) / exact.accesses)
        for share in range(1, 101)
    ]
    assert curve.sampled_blocks > 400
    assert sum(errors) / len(errors) <= 0.035  # from some 500 sampled blocks; large tenants have 4,096
