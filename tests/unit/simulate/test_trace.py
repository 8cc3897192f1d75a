"""Reading traces: every format, and a sentence with the line for what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tiered.errors import ConfigError
from tiered.simulate.trace import read_trace


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_runs_and_ids_name_the_same_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"timestamp": 0, "hash_ids": [4, 5, 6, 9], "block_size": 16},
        {"timestamp": 1500, "hash_runs": [[4, 3], [9, 1]], "block_size": 16},
    )
    first, second = read_trace(path)
    assert list(first.blocks) == list(second.blocks) == [4, 5, 6, 9]
    assert second.arrival_s == 1.5


def test_gzip_is_seen_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(b'{"timestamp": 1, "hash_ids": [1]}\n'))
    assert [list(request.blocks) for request in read_trace(path)] == [[1]]


def test_a_coarse_block_is_named_by_its_last_fine_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"timestamp": 0, "hash_ids": [1, 2, 3, 4, 5], "block_size": 64})
    (request,) = read_trace(path, block_tokens=128)
    assert list(request.blocks) == [2, 4]
    assert request.block_tokens == 128


def test_a_size_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"timestamp": 0, "hash_ids": [1], "block_size": 64})
    with pytest.raises(ConfigError, match=r"--block-size: 100 is no multiple of the trace's own 64"):
        list(read_trace(path, block_tokens=100))


@pytest.mark.parametrize(
    "line",
    ["not json", '{"hash_ids": [1]}', '{"timestamp": 0}', '{"timestamp": 0, "hash_ids": ["x"]}', "[1, 2]", '{"tim'],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"t\.jsonl, line 2: "):
        list(read_trace(path))


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_trace(tmp_path / "missing.jsonl"))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b'{"timestamp": 0, "hash_ids": [1]}\n' * 100)[:40])
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_trace(torn))


def test_limit_stops_early(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *({"timestamp": i, "hash_ids": [i]} for i in range(5)))
    assert len(list(read_trace(path, limit=2))) == 2
