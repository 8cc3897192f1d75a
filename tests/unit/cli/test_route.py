"""``tiered route`` and ``tiered prefixes``: what they ask, what they print, and what they make of a wrong file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tiered.cli import prefixes, route
from tiered.cli.api import CoordinatorClient
from tiered.cli.main import main

HASH = "ab" * 32
NODE = {
    "node": "w1",
    "peer": "10.0.0.1",
    "hot_blocks": 512,
    "peer_blocks": 0,
    "redis_blocks": 1_000,
    "computed_tokens": 5,
    "expected_ttft_s": 0.0123,
    "uncached_ttft_s": None,
    "waiting_s": 0.0,
    "assumed": ["peers"],
}
ROUTE = {
    "model": "test",
    "block_tokens": 16,
    "blocks": 1_512,
    "nodes": [NODE],
    "not_eligible": [{"node": "w2", "reason": "its lease has lapsed"}],
    "unmeasured": ["prefill"],
    "lag_s": None,
    "age_s": 0.1,
}
COVERAGE = {
    "model": "test",
    "weights_version": "1",
    "tp_rank": 0,
    "pp_rank": 0,
    "block_tokens": 16,
    "blocks": 10,
    "covered_blocks": 9,
    "tiers": {"hot": 9, "redis": 1, "nowhere": 1},
    "runs": [
        {"first_block": 0, "blocks": 9, "nodes": ["a", "b", "c", "d", "e"], "n_nodes": 7, "redis": False},
        {"first_block": 9, "blocks": 1, "nodes": [], "n_nodes": 0, "redis": True},
    ],
    "n_runs": 3,
    "hashes": [HASH],
}
USED = {"prefixes": [{"tenant": "acme", "hash": HASH, "blocks": 3, "hits": 1_234, "nodes": ["w1"]}]}

Ask = Callable[..., tuple[int, str, list[Any]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command against a coordinator that gives one answer; exit code, output, what was asked."""

    def run(answer: object, *argv: str) -> tuple[int, str, list[Any]]:
        asked: list[Any] = []

        def answering(request: httpx.Request) -> httpx.Response:
            asked.append(json.loads(request.content) if request.content else request.url.query.decode())
            return httpx.Response(200, json=answer)

        def connect(_: str | None) -> CoordinatorClient:
            return CoordinatorClient("http://coordinator", transport=httpx.MockTransport(answering))

        monkeypatch.setattr(route, "connect", connect)
        monkeypatch.setattr(prefixes, "connect", connect)
        code = main(argv)
        said = capsys.readouterr()
        return code, said.out + said.err, asked

    return run


@pytest.mark.parametrize("text", ["[1, 2, 3]", "1 2 3", "1,2,\n3\n", " 1\t2 , 3 "])
def test_tokens_are_read_from_lists_and_from_plain_numbers(ask: Ask, tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompt"
    file.write_text(text)
    code, _, asked = ask(ROUTE, "route", "--tenant", "acme", "--tokens", str(file), "--limit", "3")
    assert (code, asked) == (0, [{"tenant": "acme", "tokens": [1, 2, 3], "limit": 3}])


def test_hashes_and_the_model_are_passed_on(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "hashes"
    file.write_text(f"{HASH}\n{HASH.upper()}\n")
    _, _, asked = ask(ROUTE, "route", "--tenant", "acme", "--hashes", str(file), "--model", "test")
    assert asked == [{"tenant": "acme", "hashes": [HASH, HASH.upper()], "model": "test", "limit": 20}]


def test_a_prompt_may_come_from_standard_input(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"7 8")))
    _, _, asked = ask(ROUTE, "route", "--tenant", "acme", "--tokens", "-")
    assert asked[0]["tokens"] == [7, 8]


def test_the_table_has_the_nodes_and_below_it_what_is_missing(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_text("1")
    _, said, _ = ask(ROUTE, "route", "--tenant", "acme", "--tokens", str(file))
    assert "1,512 blocks of 16 tokens, model test" in said
    assert "12.3 ms" in said
    assert "w2: not eligible, its lease has lapsed" in said
    assert "not measured anywhere yet: prefill" in said
    _, said, _ = ask(ROUTE, "route", "--tenant", "acme", "--tokens", str(file), "--json")
    assert json.loads(said)["nodes"][0]["redis_blocks"] == 1_000


def test_prefixes_alone_are_those_used_most(ask: Ask) -> None:
    _, said, asked = ask(USED, "prefixes", "--limit", "5")
    assert asked == ["limit=5"]
    assert "1,234" in said
    assert "no prefix has been used again yet" in ask({"prefixes": []}, "prefixes")[1]


def test_prefixes_of_a_prompt_are_its_runs(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_text("1")
    answer = {"scopes": [COVERAGE], "lag_s": 0.1}
    _, said, asked = ask(answer, "prefixes", "--tenant", "acme", "--tokens", str(file))
    assert asked[0]["tokens"] == [1]
    lines = said.splitlines()
    assert lines[0].startswith(
        "test 1, rank tp 0 pp 0: 10 blocks, the first 9 somewhere; 9 hot, 1 in Redis, 1 nowhere"
    )
    assert [line.split() for line in lines[2:4]] == [
        ["0-8", "a,", "b,", "c,", "d", "and", "3", "more", "-"],
        ["9", "-", "yes"],
    ]
    assert lines[4] == "and 1 more runs"


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--tokens", "1 -2", "'-2'"),
        ("--tokens", "[1, 2.5]", "2.5"),
        ("--tokens", "[true]", "True"),
        ("--tokens", "4294967296", "'4294967296'"),
        ("--tokens", "9" * 5_000, "no token id"),
        ("--tokens", "[1, 2", "not a JSON list"),
        ("--tokens", "٣", "no token id"),
        ("--hashes", "abcd", "no block hash"),
        ("--hashes", "[5]", "no block hash"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_the_flag(
    ask: Ask, tmp_path: Path, flag: str, text: str, words: str
) -> None:
    file = tmp_path / "prompt"
    file.write_text(text)
    for command in ("route", "prefixes"):
        code, said, asked = ask(ROUTE, command, "--tenant", "acme", flag, str(file))
        assert (code, asked) == (2, [])
        assert said.startswith(f"tiered: {flag}: ")
        assert words in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["route", "--tenant", "acme"], "--tokens"),
        (["route", "--tokens", "x", "--hashes", "y", "--tenant", "acme"], "--tokens"),
        (["route", "--tokens", "x"], "--tenant"),
        (["route", "--tenant", "acme", "--tokens", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (["route", "--tenant", "acme", "--tokens", "/"], "cannot read /"),
        (["route", "--tenant", "acme", "--tokens", "x", "--limit", "0"], "limit"),
        (["prefixes", "--tenant", "acme"], "--tokens"),
        (["prefixes", "--model", "m"], "--tokens"),
    ],
)
def test_wrong_flags_are_one_sentence(ask: Ask, argv: list[str], words: str) -> None:
    code, said, asked = ask(ROUTE, *argv)
    assert (code, asked) == (2, [])
    assert words in said
    assert "Traceback" not in said
