"""``tiered stats --watch``: what each form prints, that it goes on while the coordinator is away, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from tests.unit.cli.top.builders import counts, node, sample, tenant
from tiered.cli.main import main
from tiered.cli.stats_watch import Form, json_line, screen_lines, text_line, watch
from tiered.cli.top.picture import Picture, failed, first_picture, seen
from tiered.cli.top.sample import Sample
from tiered.errors import ConfigError

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AWAY = "coordinator: nothing answers at http://h:1 (refused); start a cluster with `tiered up`"

BEFORE = sample(
    10.0, tenants=[tenant("red", counts(hot=10, missed=10)), tenant("blue", counts(peer=9_000))], nodes=[node("a")]
)
AFTER = sample(
    12.0, tenants=[tenant("red", counts(hot=30, missed=10)), tenant("blue", counts(peer=9_000))], nodes=[node("a")]
)


def after() -> Picture:
    return seen(first_picture(BEFORE, now=10.0), AFTER, now=12.0)


class Scripted:
    """Answers in order, and is interrupted at the end as by Ctrl-C."""

    def __init__(self, *answers: Sample | str) -> None:
        self._answers: Iterator[Sample | str] = iter(answers)

    def totals(self) -> Sample:
        answer = next(self._answers, None)
        if answer is None:
            raise KeyboardInterrupt
        if isinstance(answer, str):
            raise ConfigError(answer)
        return answer


def watched(cluster: Scripted, form: Form) -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(cluster, every_s=2.0, form=form, clock=lambda: 12.0, wait=lambda seconds: None)


def test_a_json_line_has_the_stats_and_what_was_counted_since_the_line_before() -> None:
    first, second = (json.loads(json_line(each, at=AT)) for each in (first_picture(BEFORE, now=10.0), after()))
    assert first["last"] is None
    assert second["at"] == "2026-01-02T03:04:05Z"
    assert second["last"] == {"seconds": 2.0, "tokens": msgspec.to_builtins(counts(hot=20))}
    assert second["stats"] == msgspec.to_builtins(AFTER.stats)
    assert "\n" not in json_line(after(), at=AT)


def test_a_text_line_is_one_line_with_rates_and_totals() -> None:
    line = text_line(after(), at=AT)
    assert "asked 10/s, hot 100.0%, peer 0.0%, redis 0.0%, missed 0.0%; since start 9,040" in line
    assert line.endswith("hit 99.9%; 1 of 1 nodes alive")
    assert "asked -" in text_line(first_picture(BEFORE, now=10.0), at=AT)


def test_the_screen_has_the_sum_first_and_then_the_busiest_of_late() -> None:
    lines = screen_lines(after(), every_s=2.0, width=200, height=24)
    assert [line.split()[0] for line in lines[1:]] == ["tenant", "all", "red", "blue"]
    assert lines[3].split() == ["red", "10", "40", "30", "0", "0", "10", "75.0%"]


def test_on_80_columns_the_hit_ratio_is_there_and_counts_are_short() -> None:
    large = sample(1.0, tenants=[tenant("umbrella-research", counts(hot=1_234_567, peer=89_000, missed=123_456))])
    lines = screen_lines(first_picture(large, now=1.0), every_s=2.0, width=79, height=24)
    assert lines[1].split() == ["tenant", "asked/s", "asked", "hot", "peer", "redis", "missed", "hit"]
    assert lines[3].split() == ["umbrella-research", "-", "1.45M", "1.23M", "89k", "0", "123k", "91.5%"]


@pytest.mark.parametrize(("width", "height"), [(80, 23), (20, 3), (1, 1)])
def test_the_screen_never_exceeds_the_terminal(width: int, height: int) -> None:
    crowd = sample(1.0, tenants=[tenant(f"tenant-{i}", counts(hot=i)) for i in range(1_000)])
    lines = screen_lines(first_picture(crowd, now=1.0), every_s=2.0, width=width, height=height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    if height > 4:
        assert lines[-1] == "and 981 more"


def test_numbers_that_are_old_are_called_stale() -> None:
    gone = failed(after(), "nothing answers", now=72.0)
    assert screen_lines(gone, every_s=2.0, width=80, height=9)[1].startswith("STALE, 1 min 0 s old: nothing")


def test_an_outage_is_said_once_on_standard_error_and_no_line_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    watched(Scripted(BEFORE, AWAY, AWAY, AFTER), Form.JSON)
    out, err = capsys.readouterr()
    assert [json.loads(line)["last"] is None for line in out.splitlines()] == [True, False]
    assert err == "tiered: nothing answers at http://h:1 (refused); asking again\n"


def test_a_coordinator_that_loses_redis_is_an_outage_too(capsys: pytest.CaptureFixture[str]) -> None:
    stale = replace(AFTER, stats=msgspec.structs.replace(AFTER.stats, stale=True))
    watched(Scripted(BEFORE, stale, stale, AFTER), Form.LINES)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == f"tiered: the coordinator at {AFTER.url} cannot read Redis; asking again\n"


def test_old_numbers_that_are_all_there_is_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    stale = replace(BEFORE, stats=msgspec.structs.replace(BEFORE.stats, stale=True, age_s=70.0))
    watched(Scripted(stale), Form.LINES)
    assert capsys.readouterr().out.endswith("; STALE, 1 min 10 s old\n")


def test_a_screen_is_drawn_in_place_and_keeps_what_was(capsys: pytest.CaptureFixture[str]) -> None:
    watched(Scripted(BEFORE, AWAY), Form.SCREEN)
    out, err = capsys.readouterr()
    assert out.count("\x1b[H") == 2
    assert out.count("all ") == 2
    assert "STALE" in out
    assert err == ""


def test_nobody_to_ask_from_the_start_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="nothing answers"):
        watch(Scripted(AWAY), every_s=2.0, form=Form.LINES)


def test_every_without_watch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--every", "2"]) == 2
    assert "--every: it says how often to print; give it with --watch" in capsys.readouterr().err
    assert main(["stats", "--watch", "--every", "0"]) == 2
    assert "--every" in capsys.readouterr().err


def test_top_without_a_terminal_is_refused_and_points_to_watch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "`tiered stats --watch`" in err
