"""``tiered capacity``: what it asks, what it prints, and what it refuses in one sentence."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tiered.cli import capacity
from tiered.cli.api import CoordinatorClient
from tiered.cli.main import main

GIB = 1 << 30
REDIS_MORE = {
    "tier": "redis",
    "more_bytes": 10 * GIB,
    "bytes": 50 * GIB,
    "hit_ratio": 0.56,
    "hot_hit_ratio": 0.2,
    "points": 6.0,
    "hot_points": 0.0,
    "tokens_per_hour": 1_200_000.0,
    "prefill_s_per_hour": 240.0,
}
ACME: dict[str, Any] = {
    "tenant": "acme",
    "nodes": 2,
    "since_s": 4_000.0,
    "sampled_blocks": 4_096,
    "seen_bytes": 100 * GIB,
    "asked_tokens_per_hour": 20_000_000.0,
    "prefill_tokens_per_s": 5_000.0,
    "hot": {"used_bytes": 8 * GIB, "blocks": 4_096, "limit_bytes": None},
    "redis": {"used_bytes": 40 * GIB, "blocks": 20_480, "limit_bytes": 40 * GIB},
    "room_bytes": 48 * GIB,
    "measured": {"hit_ratio": 0.49, "hot_hit_ratio": 0.19},
    "predicted": {"hit_ratio": 0.5, "hot_hit_ratio": 0.2},
    "curve": [{"bytes": 0, "hit_ratio": 0.0}, {"bytes": 100 * GIB, "hit_ratio": 0.7}],
    "what_if": [REDIS_MORE],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers with acme's curve; keeps what was asked."""
    paths: list[str] = []
    answer(monkeypatch, [ACME], paths)
    return paths


def answer(monkeypatch: pytest.MonkeyPatch, tenants: list[dict[str, Any]], paths: list[str]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return httpx.Response(200, json={"tenants": tenants, "stale": False, "age_s": 0.1})

    def connected(url: str | None) -> CoordinatorClient:
        return CoordinatorClient("http://127.0.0.1:9", transport=httpx.MockTransport(handler))

    monkeypatch.setattr(capacity, "connect", connected)


def test_the_sentence_says_what_the_memory_asked_about_would_buy(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", "acme", "--more", "10GiB", "--tier", "redis"]) == 0
    assert asked == ["/v1/capacity?tenant=acme&more_bytes=10GiB&tier=redis"]
    out = capsys.readouterr().out
    assert (
        "+10 GiB of Redis for acme: about +6.0 points, 1.2 M tokens an hour, 4 minutes of prefill an hour less to "
        "compute\n"
    ) in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("acme")]
    assert " ".join(row) == "acme 8 GiB 40 GiB of 40 GiB 49.0% 50.0% Redis +10 GiB 56.0% +6.0 +1,200,000"


def test_without_a_question_all_tenants_are_asked_for_and_the_best_change_is_said(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = {**REDIS_MORE, "more_bytes": 40 * GIB, "points": 9.0}
    hot = {**REDIS_MORE, "tier": "hot", "more_bytes": GIB, "points": 1.0, "hot_points": 3.0}
    answer(monkeypatch, [{**ACME, "what_if": [dear, hot]}], asked)
    assert main(["capacity"]) == 0
    assert asked == ["/v1/capacity?"]
    assert "+1 GiB of hot tier for acme: about +1.0 points" in capsys.readouterr().out


def test_less_memory_costs_and_the_sentence_turns_round(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    less = {**REDIS_MORE, "more_bytes": -GIB, "points": -2.0, "tokens_per_hour": -4e5, "prefill_s_per_hour": None}
    answer(monkeypatch, [{**ACME, "what_if": [less]}], asked)
    assert main(["capacity", "acme", "--more", "-1GiB"]) == 0
    assert asked == ["/v1/capacity?tenant=acme&more_bytes=-1GiB"]
    assert "-1 GiB of Redis for acme: about -2.0 points, 400.0 k tokens an hour more to compute" in (
        capsys.readouterr().out
    )


def test_a_prediction_far_from_the_measurement_comes_with_a_warning(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, [{**ACME, "measured": {"hit_ratio": 0.2, "hot_hit_ratio": 0.1}}], asked)
    assert main(["capacity"]) == 0
    assert "acme: the curve says 50.0% for now, 20.0% is measured; it was drawn for 67 minutes" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ([], "no tenant has looked anything up yet"),
        ([{"tenant": "acme", "nodes": 0}], "acme: no node has seen it look anything up of late"),
        ([{**ACME, "what_if": [], "measured": None}], "acme: nothing of it is in any tier"),
        ([{**ACME, "what_if": [{**REDIS_MORE, "points": 0.0}]}], "+10 GiB of Redis for acme: no change to speak of"),
    ],
)
def test_what_cannot_be_said_is_said_to_be_so(
    tenants: list[dict[str, Any]],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(monkeypatch, tenants, [])
    assert main(["capacity"]) == 0
    assert said in capsys.readouterr().out


def test_json_is_the_answer_itself(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"tenants": [ACME], "stale": False, "age_s": 0.1, "left_out": 0}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tier", "disk", "--more", "1GiB"], "--tier: 'disk' is neither of hot, redis"),
        (["--tier", "hot"], "--tier: says where --more SIZE goes"),
        (["--more", "much"], "--more: 'much' is not a size"),
        (["--more", "0"], "--more: 0 bytes change nothing"),
    ],
)
def test_a_bad_question_is_refused_before_anybody_is_asked(
    argv: list[str], said: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", *argv]) == 2
    assert said in capsys.readouterr().err
    assert asked == []
