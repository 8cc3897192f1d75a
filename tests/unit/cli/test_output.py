"""What the command prints: sizes for people, raw numbers for programs, a sign of life for slow work."""

from __future__ import annotations

import io
import json
import re
import threading
import time

import pytest

from tiered.cli import output
from tiered.cli.output import human_bytes, human_share, print_json, print_lines, print_table, progress
from tiered.types import TokenCounts

DEADLINE_S = 10.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "none"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (256 << 20, "256 MiB"),
        (1_288_490_189, "1.2 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_human_bytes_chooses_the_unit_a_person_would(count: int | None, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "-"),
        (0, 5, "0.0%"),
        (1, 3, "33.3%"),
        (5, 5, "100.0%"),
        (99_996, 100_000, "99.9%"),
        (1, 100_000, "<0.1%"),
        (6, 4, "150.0%"),
    ],
)
def test_a_share_is_all_or_nothing_only_where_it_is(part: int, whole: int, text: str) -> None:
    assert human_share(part, whole) == text


def test_json_turns_records_into_objects_with_raw_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"tokens": TokenCounts(asked=3, hot=1, missed=2)})
    assert json.loads(capsys.readouterr().out) == {
        "tokens": {"asked": 3, "hot": 1, "peer": 0, "redis": 0, "missed": 2}
    }


def test_a_table_in_a_pipe_keeps_long_values_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/run/" + "x" * 90 + ".sock"
    print_table("", ("node", "socket"), [["worker-1", path]])
    assert path in capsys.readouterr().out


def test_square_brackets_in_values_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", ("peer",), [["[bold]"]])
    print_lines([("peer", "[::1]:80")])
    out = capsys.readouterr().out
    assert "[bold]" in out
    assert "[::1]:80" in out


def test_short_work_is_not_worth_a_line() -> None:
    stream = io.StringIO()
    with progress("counting", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_slow_work_says_so_once_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SILENT_S", 0.01)
    stream = io.StringIO()
    with progress("counting", stream=stream):
        _until(lambda: stream.getvalue() != "")
    assert re.fullmatch(r"counting \.\.\.\ncounting: done after \d+ s\n", stream.getvalue())


def test_slow_work_shows_a_clock_on_a_terminal_and_clears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SILENT_S", 0.01)
    stream = Terminal()
    with progress("counting", stream=stream):
        _until(lambda: "counting ..." in stream.getvalue())
    assert stream.getvalue().endswith("\r\x1b[K")


def test_failed_work_leaves_no_thread_and_is_not_called_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SILENT_S", 0.01)
    stream = io.StringIO()

    def fail() -> None:
        with progress("counting", stream=stream):
            _until(lambda: stream.getvalue() != "")
            raise RuntimeError("lost count")

    with pytest.raises(RuntimeError):
        fail()
    assert "done" not in stream.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing was printed"
        time.sleep(0.001)
