"""``tiered simulate`` and ``tiered plan`` as commands: rows, sweeps, shares, and one sentence for a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiered.cli.main import main
from tiered.core.core import CacheCore, CoreOptions
from tiered.simulate import replay
from tiered.simulate.trace import Request
from tiered.types import HINT_CHARS_MAX, Hints

ROWS = [
    {"timestamp": 1000 * i, "hash_ids": [i % 7, 100 + i % 7, 1000 + i], "block_size": 16, "who": f"w{i % 2}"}
    for i in range(60)
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_row_has_what_programs_read(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = run_json(capsys, "simulate", trace, "--hot-blocks", "50%", "--tenant-field", "who")
    assert (row["policy"], row["hot_blocks"], row["redis_blocks"], row["workers"]) == ("lru", 37, 0, 1)
    assert row["accesses"] == 180
    assert row["hit_ratio"] == round(100 * row["hot_hits"] / 180, 2) > 0
    assert row["peer_hits"] == row["redis_hits"] == row["moved_blocks"] == 0
    assert row["moved_bytes"] is None
    assert sorted(row["tenants"]) == ["w0", "w1"]
    for key in ("accesses", "hot_hits"):
        assert sum(tenant[key] for tenant in row["tenants"].values()) == row[key]
    assert sum(row["evicted"].values()) == row["evictions"] > 0


def test_every_option_with_several_values_is_swept(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["--policy", "lru", "--policy", "fifo", "--workers", "1", "--workers", "2", "--routing", "affinity"]
    sweep += ["--routing", "round-robin", "--write-policy", "on_reuse", "--write-policy", "on_evict"]
    sweep += ["--redis-blocks", "9", "--hot-blocks", "8", "--hot-blocks", "16", "--hot-blocks", "8"]
    rows = run_json(capsys, "simulate", trace, *sweep, "--block-bytes", "10")
    keys = ("policy", "workers", "routing", "write_policy", "hot_blocks")
    assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows) == 32
    assert all(row["moved_bytes"] == 10 * row["moved_blocks"] for row in rows)
    written = {(row["write_policy"], row["redis_writes"]) for row in rows if row["workers"] == 1}
    assert max(n for policy, n in written if policy == "on_reuse") < max(n for policy, n in written)


def test_the_ceiling_is_a_row_for_each_total_size(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "simulate", trace, "--hot-blocks", "8", "--workers", "1", "--workers", "2", "--ceiling")
    assert [(row["policy"], row["hot_blocks"]) for row in rows[2:]] == [("min", 8), ("min", 16)]
    assert rows[2]["hot_hits"] >= rows[0]["hot_hits"]


def test_tenants_of_a_file_are_held_to_their_bounds(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('field = "who"\n[tenants.w0]\nhot_limit = 3\n')
    (row,) = run_json(capsys, "simulate", trace, "--hot-blocks", "30", "--tenants", str(file))
    assert row["tenants"]["w0"]["evicted"]["limit"] == 90 - row["tenants"]["w0"]["hot_hits"] - 3
    assert row["tenants"]["w1"]["evicted"]["limit"] == 0


def test_blocks_in_any_order_are_a_comparison(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    orders = ("leaf-first", "tail-first", "plain")
    rows = [run_json(capsys, "simulate", trace, "--hot-blocks", "12", "--order", order)[0] for order in orders]
    assert [row["order"] for row in rows] == list(orders)
    assert rows[0]["hot_hits"] == rows[1]["hot_hits"]


def test_the_table_names_the_trace_and_shows_what_differs(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", trace, "--hot-blocks", "4", "--hot-blocks", "8", "--tenant-field", "who"]) == 0
    first, head, *lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert first == "t.jsonl: 60 requests, 74 unique blocks of 16 tokens"
    assert "tenant" in head
    assert "workers" not in head
    assert [line.split()[2] for line in lines if "w0" in line] == ["w0", "w0"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--workers", "0"], "--workers: 0 is not at least 1"),
        (["--hot-blocks", "0"], "--hot-blocks: '0' is not a number of blocks from 1 on"),
        (["--limit", "0"], "--limit: 0 is not at least 1"),
        (["--block-size", "24"], "--block-size: 24 is no multiple of the trace's own 16"),
        (["--block-size", "512"], "no request as long as one block of 512 tokens"),
        (["--order", "sideways"], "--order: 'sideways' is unknown; known orders: leaf-first"),
        (["--order", "plain", "--redis-blocks", "5"], "--order: plain has one pool"),
        (["--tenants", "nowhere.toml"], "--tenants: cannot read nowhere.toml"),
        (["--tenants", "x.toml", "--tenant-field", "who"], "give one of the two"),
        (["--policy", "magic"], "'magic' is unknown; known policies: arc"),
    ],
)
def test_a_mistake_is_one_sentence(
    trace: str, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", trace, *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


def test_a_malformed_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n{nonsense\n")
    assert main(["simulate", str(path)]) == 2
    assert "bad.jsonl, line 2: " in capsys.readouterr().err


@pytest.mark.parametrize("command", [["simulate"], ["plan", "--policy", "lfu", "--kv-bytes-per-token", "1"]])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api_ms", "fast"),
        ("api_ms", -1),
        pytest.param("api_ms", 10**400, id="api_ms-huge"),
        ("output_length", -1),
        pytest.param("output_length", 10**400, id="output_length-huge"),
    ],
)
def test_a_time_or_a_length_that_is_none_is_named_with_its_line(
    tmp_path: Path, command: list[str], field: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROWS[0], ROWS[1] | {field: value})))
    assert main([*command, str(path)]) == 2
    captured = capsys.readouterr()
    assert "bad.jsonl, line 2: " in captured.err
    assert field in captured.err
    assert captured.err.count("\n") == 1


def test_texts_too_long_for_a_label_stay_kinds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds: set[tuple[str, ...]] = set()
    hints_of_trace = replay.hints_of_trace

    def seen(request: Request) -> Hints:
        hints = hints_of_trace(request)
        kinds.add(hints.labels)
        return hints

    monkeypatch.setattr(replay, "hints_of_trace", seen)
    path = tmp_path / "long.jsonl"
    long = [dict.fromkeys(replay.LABEL_FIELDS, f"{'x' * 999} {i % 2}") for i in range(len(ROWS))]
    path.write_text("".join(json.dumps(row | more) + "\n" for row, more in zip(ROWS, long, strict=True)))
    for policy in ("lru", "hazard"):
        run_json(capsys, "simulate", str(path), "--policy", policy)
    assert len(kinds) == 2
    for labels in kinds:
        assert [label.partition("=")[0] for label in labels] == list(replay.LABEL_FIELDS)
        assert max(len(label) for label in labels) <= HINT_CHARS_MAX


def test_no_pool_is_made_larger_than_the_blocks_there_are(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def core(options: CoreOptions, n_blocks: int) -> CacheCore:
        assert n_blocks <= 2 * 74
        return CacheCore(options, n_blocks)

    monkeypatch.setattr(replay, "CacheCore", core)
    sizes = ["--kv-bytes-per-token", "1", "--size", "1TiB", "--size", "50%"]
    plan = run_json(capsys, "plan", trace, "--policy", "lfu", *sizes)
    assert [step["blocks"] for step in plan["lines"][0]["steps"]] == [37, (1 << 40) // 16]

    file = tmp_path / "tenants.toml"
    file.write_text('field = "who"\n[default]\nhot_reserved = "50%"\n')  # private: each has blocks of its own
    hot = ["--hot-blocks", str(1 << 32), "--hot-blocks", str(2 * 74), "--hot-blocks", "74"]
    for policy in ("lru", "s3fifo"):
        rows = run_json(capsys, "simulate", trace, "--policy", policy, *hot, "--tenants", str(file))
        assert [row["hot_blocks"] for row in rows] == [1 << 32, 148, 74]
        assert rows[0]["tenants"] == rows[1]["tenants"]
        assert rows[0]["evictions"] == 0 < rows[2]["evictions"]


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_a_limit_is_that_of_the_pool_asked_for_however_small_the_pool_is_made(
    trace: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('field = "who"\n[default]\nhot_limit = "1%"\n[tenants.w1]\nhot_limit = 3\n')
    argv = ["simulate", trace, "--policy", policy, "--hot-blocks", "1000", "--tenants", str(file)]
    capped = run_json(capsys, *argv)
    made: list[int] = []

    def core(options: CoreOptions, n_blocks: int) -> CacheCore:
        made.append(n_blocks)
        return CacheCore(options, 1000)

    monkeypatch.setattr(replay, "CacheCore", core)
    assert run_json(capsys, *argv) == capped
    assert made[0] < 1000, "it was made smaller before"
    assert capped[0]["tenants"]["w0"]["evicted"]["limit"] > 0


def test_a_plan_says_what_each_size_buys_and_where_it_ends(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = run_json(capsys, "plan", trace, "--kv-bytes-per-token", "65536", "--tenant-field", "who")
    assert plan["exact"] is True
    assert plan["block_bytes"] == 1 << 20
    assert [line["tenant"] for line in plan["lines"]] == ["all", "w0", "w1"]
    for line in plan["lines"]:
        ratios = [step["hit_ratio"] for step in line["steps"]]
        assert ratios == sorted(ratios)
        assert line["steps"][-1]["hit_ratio"] == line["best_ratio"] > 0
        assert line["knee_bytes"] == line["knee_blocks"] << 20
    assert main(["plan", trace, "--model-layout", "2,1,8,float16"]) == 0
    assert "nothing is gained" in capsys.readouterr().out


def test_a_plan_with_another_policy_is_replayed_at_the_sizes_asked_for(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--size", "32MiB", "--size", "10%", "--redis", "5"]
    plan = run_json(capsys, "plan", trace, "--kv-bytes-per-token", "65536", "--policy", "arc", *sizes)
    assert plan["exact"] is False
    assert [step["blocks"] for step in plan["lines"][0]["steps"]] == [7, 32]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "--kv-bytes-per-token: say how large a token's KV is"),
        (["--kv-bytes-per-token", "1", "--model-layout", "1,1,1,uint8"], "and not by both"),
        (["--kv-bytes-per-token", "0"], "--kv-bytes-per-token: 0 is not at least 1 byte"),
        (["--model-layout", "32,8,128"], "--model-layout: '32,8,128' is not layers,KV heads,head size,dtype"),
        (["--model-layout", "32,8,128,int3"], "known dtypes: float32"),
        (["--kv-bytes-per-token", "9", "--size", "big"], "--size: 'big' is not a size"),
        (["--kv-bytes-per-token", "9", "--size", "9"], "--size: 9 does not hold one block of 144 B"),
    ],
)
def test_a_mistake_in_a_plan_is_one_sentence(
    trace: str, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", trace, *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
