"""``tiered why`` and ``tiered evictions``: what they ask, what they print, and what they refuse in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tiered.cli import evictions, why
from tiered.cli.api import CoordinatorClient
from tiered.cli.main import main

HASH = "ab" * 32
EVENT = {
    "at": "2026-01-02T03:04:05.678901Z",
    "where": "w1",
    "what": "evicted",
    "block": HASH,
    "tenant": "acme",
    "tier": "hot",
    "blocks": 1,
    "sentence": "evicted: lru chose it first",
    "detail": {"used": 1},
}
BLOCK: dict[str, Any] = {
    "hash": HASH,
    "nodes": [
        {
            "node": "w1",
            "epoch": 3,
            "state": "ready",
            "announced": True,
            "tenants": ["acme", "beta"],
            "hits": 1234,
            "pins": 1,
            "depth": 7,
            "idle_uses": 9,
        },
        {
            "node": "w2",
            "epoch": 4,
            "state": "absent",
            "announced": True,
            "tenants": [],
            "hits": 0,
            "pins": 0,
            "depth": 0,
            "idle_uses": 0,
        },
    ],
    "redis": {"bytes": 2048, "tenants": ["acme"], "depth": 7, "idle_s": 1.25, "pinned_for_s": 60.0},
    "ended_owners": [{"node": "w3", "epoch": 2, "reason": "its lease has lapsed"}],
    "silent": [{"who": "w4", "reason": "w4 at 10.0.0.1:1: refused"}],
    "history": [EVENT],
    "forgotten": 0,
    "note": "Every node remembers its newest events only.",
}
SCOPE: dict[str, Any] = {
    "model": "m",
    "weights_version": "1",
    "tp_rank": 0,
    "pp_rank": 0,
    "block_tokens": 2,
    "blocks": 5,
    "covered_blocks": 3,
    "tiers": {"hot": 2, "redis": 2, "nowhere": 2},
    "runs": [
        {"first_block": 0, "blocks": 2, "nodes": ["w1", "w2"], "n_nodes": 3, "redis": True},
        {"first_block": 2, "blocks": 1, "nodes": [], "n_nodes": 0, "redis": True},
        {"first_block": 3, "blocks": 2, "nodes": [], "n_nodes": 0, "redis": False},
    ],
    "n_runs": 3,
    "hashes": ["0" * 64, "1" * 64, "2" * 64, "3" * 64, "4" * 64],
}
NOT_FOUND = httpx.Response(404, json={"error": {"field": "hash", "message": "nobody has block x now"}})


class Coordinator:
    """Answers by path, and keeps what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Callable[[httpx.Request], httpx.Response]) -> None:
        self.asked: list[httpx.Request] = []

        def handler(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            return answers(request)

        def connect(option: str | None) -> CoordinatorClient:
            return CoordinatorClient("http://127.0.0.1:9", transport=httpx.MockTransport(handler))

        monkeypatch.setattr(why, "connect", connect)
        monkeypatch.setattr(evictions, "connect", connect)


def answering(body: object) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, json=body)


def test_a_block_is_told_with_its_places_its_history_and_who_was_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = Coordinator(monkeypatch, answering(BLOCK))
    monkeypatch.setenv("TZ", "UTC")
    assert main(["why", HASH]) == 0
    assert coordinator.asked[0].url.path == f"/v1/blocks/{HASH}/why"
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        f"block {HASH}",
        "now:",
        "  w1: ready, of acme, beta, depth 7, hits: 1,234, pins: 1, unused for 9 uses",
        "  w2: absent, though the directory says that it has it",
        "  redis: 2 KiB, of acme, depth 7, unused for 1.2 s, pinned for 60 s more",
        "  w3, epoch 2: does not count, its lease has lapsed",
    ]
    assert lines[6] == "what happened, oldest first:"
    assert lines[7].endswith("w1          evicted: lru chose it first")
    assert lines[8:] == [
        "no answer from w4: w4 at 10.0.0.1:1: refused",
        "Every node remembers its newest events only.",
    ]


def test_json_is_the_answer_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Coordinator(monkeypatch, answering(BLOCK))
    assert main(["why", HASH, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["history"][0]["detail"] == {"used": 1}
    assert said["nodes"] == BLOCK["nodes"]


def test_a_block_that_nobody_knows_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Coordinator(monkeypatch, lambda request: NOT_FOUND)
    assert main(["why", HASH]) == 2
    assert capsys.readouterr().err == "tiered: hash: nobody has block x now\n"


def test_a_prompt_is_told_run_by_run_and_then_why_its_first_missing_block_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def answers(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/prefixes":
            return httpx.Response(200, json={"scopes": [SCOPE], "lag_s": 0.1})
        return httpx.Response(200, json=BLOCK | {"nodes": [], "redis": None, "ended_owners": [], "silent": []})

    coordinator = Coordinator(monkeypatch, answers)
    file = tmp_path / "prompt.json"
    file.write_text("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]")
    assert main(["why", "--prompt", str(file), "--tenant", "acme", "--model", "m"]) == 0
    assert json.loads(coordinator.asked[0].content) == {"tenant": "acme", "tokens": list(range(1, 11)), "model": "m"}
    assert coordinator.asked[1].url.path == f"/v1/blocks/{'3' * 64}/why"
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "m 1, rank tp 0 pp 0:",
        "  blocks 0-1        w1, w2, 1 more nodes, redis",
        "  block 2           redis",
        "  blocks 3-4        nowhere",
        "why block 3, the first that is nowhere, is missing:",
        f"block {HASH}",
        "now:",
        "  nowhere",
    ]
    assert lines[9].endswith("evicted: lru chose it first")


@pytest.mark.parametrize(
    ("scope", "last"),
    [
        (SCOPE, f"  {'3' * 64}: nobody remembers it; it was never stored, or too long ago"),
        (SCOPE | {"covered_blocks": 5}, "every block is somewhere"),
        (
            SCOPE | {"blocks": 0, "covered_blocks": 0, "runs": [], "hashes": []},
            "the prompt fills no block, and only full blocks are kept",
        ),
    ],
)
def test_a_prompt_of_which_nothing_is_known_to_be_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, scope: object, last: str
) -> None:
    def answers(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/prefixes":
            return httpx.Response(200, json={"scopes": [scope], "lag_s": None})
        return NOT_FOUND

    Coordinator(monkeypatch, answers)
    file = tmp_path / "prompt"
    file.write_text("1 2 3\n4, 5")
    assert main(["why", "--prompt", str(file), "--tenant", "acme"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.parametrize(
    ("argv", "content", "sentence"),
    [
        ([], "", "why: name one block by its hash, or a prompt by --prompt FILE"),
        ([HASH, "--prompt", "FILE", "--tenant", "a"], "1", "why: name one block by its hash, or"),
        (["xyz"], "", "hash: 'xyz' is not 64 hexadecimal digits"),
        (["--prompt", "FILE"], "1", "--tenant: say whose prompt it is"),
        (["--prompt", "FILE", "--tenant", "a"], "Hello, world", "token ids are read here, text is not"),
        (["--prompt", "FILE", "--tenant", "a"], "[1, -2]", "--prompt: -2 in FILE is no token id"),
        (["--prompt", "FILE", "--tenant", "a"], None, "--prompt: cannot read FILE: No such file"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str], content: str | None, sentence: str
) -> None:
    file = tmp_path / "prompt"
    if content is not None:
        file.write_text(content)
    assert main(["why", *(str(file) if word == "FILE" else word for word in argv)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err.replace(str(file), "FILE")


def test_evictions_are_listed_with_the_newest_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest_first = [EVENT | {"sentence": "second"}, EVENT | {"sentence": "first", "block": None}]
    silent = [{"who": "w4", "reason": "away"}]
    coordinator = Coordinator(monkeypatch, answering({"events": newest_first, "after": "c", "silent": silent}))
    argv = ["evictions", "--tenant", "acme", "--node", "w1", "--what", "evicted", "--what", "refused", "--limit", "7"]
    assert main(argv) == 0
    assert dict(coordinator.asked[0].url.params.multi_items()[0:1]) == {"limit": "7"}
    assert coordinator.asked[0].url.params.get_list("what") == ["evicted", "refused"]
    assert (coordinator.asked[0].url.params["tenant"], coordinator.asked[0].url.params["node"]) == ("acme", "w1")
    said = capsys.readouterr()
    first, second = said.out.splitlines()
    assert first.endswith("w1          -                 first")
    assert second.endswith(f"w1          {HASH[:16]}  second")
    assert said.err == "no answer from w4: away\n"


def test_nothing_to_list_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Coordinator(monkeypatch, answering({"events": [], "after": "c", "silent": []}))
    assert main(["evictions"]) == 0
    assert capsys.readouterr() == ("", "nothing of this kind is remembered\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_who_follows_is_shown_what_came_since_each_time_until_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    n_asked = 0

    def answers(request: httpx.Request) -> httpx.Response:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 4:
            raise KeyboardInterrupt
        body = {"events": [EVENT | {"sentence": f"event {n_asked}"}], "after": f"c{n_asked}"}
        return httpx.Response(200, json=body | {"silent": [{"who": "w4", "reason": "away"}]})

    monkeypatch.setattr(evictions, "POLL_S", 0.0)
    coordinator = Coordinator(monkeypatch, answers)
    assert main(["evictions", "--follow", *(["--json"] if as_json else [])]) == 130
    assert [request.url.params.get("after") for request in coordinator.asked] == [None, "c1", "c2", "c3"]
    said = capsys.readouterr()
    lines = said.out.splitlines()
    if as_json:
        assert [json.loads(line)["sentence"] for line in lines] == ["event 1", "event 2", "event 3"]
    else:
        assert [line[-7:] for line in lines] == ["event 1", "event 2", "event 3"]
    assert said.err == "no answer from w4: away\n"


def test_who_follows_asks_again_at_once_while_a_node_has_more_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full is what one node tells, not what all of them tell together."""
    full = evictions.LIMIT_MAX
    whose = [
        [],
        ["w1"] * full,
        ["w1", "w2"] * (full - 1),
        ["w2"] * full + ["w1"],
        ["redis"] * full,
        ["w1"],
    ]
    slept_before: list[int] = []

    def answers(request: httpx.Request) -> httpx.Response:
        n_asked = len(coordinator.asked)
        if n_asked > len(whose):
            raise KeyboardInterrupt
        events = [EVENT | {"where": where} for where in whose[n_asked - 1]]
        return httpx.Response(200, json={"events": events, "after": f"c{n_asked}", "silent": []})

    coordinator = Coordinator(monkeypatch, answers)
    monkeypatch.setattr(evictions.time, "sleep", lambda _: slept_before.append(len(coordinator.asked) + 1))
    assert main(["evictions", "--follow", "--limit", "1"]) == 130
    assert slept_before == [2, 4, 6, 7]
    assert [request.url.params["limit"] for request in coordinator.asked] == ["1"] + ["500"] * 6
