"""Words, columns and order of ``tiered top``: short, aligned, never wider than there is room."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.top.builders import MIB, counts, node, sample, tenant
from tests.unit.cli.top.crowd import Crowd
from tiered.cli.bodies import Alert, Node, Tenant
from tiered.cli.explained import Event
from tiered.cli.top.columns import NODES, TENANTS, Sorting, node_rows, tenant_rows
from tiered.cli.top.details import detail_text
from tiered.cli.top.overview import overview
from tiered.cli.top.picture import failed, first_picture, looked, seen
from tiered.cli.top.sample import TOO_OLD, Detail, Subject
from tiered.cli.top.words import bar, brief, bytes_per_second, cut, duration, per_second, short


@given(st.floats(0, 1e18), st.floats(0, 1e18), st.integers(0, 100))
def test_a_bar_has_its_width_and_only_the_whole_fills_it(part: float, whole: float, width: int) -> None:
    drawn = bar(part, whole, width)
    assert len(drawn) == width
    if 0 < part < whole and width > 1:
        assert "█" in drawn
        assert "░" in drawn


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9.94, "9.9"), (12.6, "13"), (9_999, "9999"), (10_000, "10k"), (999_499, "999k"), (2.5e9, "2.5G")],
)
def test_a_count_is_short(count: float, text: str) -> None:
    assert short(count) == text


@given(st.floats(0, 9e14))
def test_a_count_is_never_longer_than_its_column(count: float) -> None:
    assert len(short(count)) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (3_599.9, "1 h 0 min"),
        (7_260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_no_rate_is_a_dash_and_a_failure_loses_its_advice() -> None:
    assert (per_second(None), bytes_per_second(None), bytes_per_second(3 * MIB)) == ("-", "-", "3 MiB/s")
    assert brief("coordinator: nothing answers; start one") == "nothing answers"
    assert (cut("abcdef", 4), cut("abcd", 4), cut("abc", 0)) == ("abc…", "abcd", "…")


def test_equal_rows_are_in_the_order_of_their_names_both_ways() -> None:
    rows = tenant_rows(first_picture(sample(1.0, tenants=[tenant("b"), tenant("c"), tenant("a")]), now=1.0))
    for rising in (True, False):
        assert [row.name for row in TENANTS.arranged(rows, Sorting(4, rising))] == ["a", "b", "c"]


def test_a_limit_that_is_not_set_is_the_largest() -> None:
    bounded = msgspec.structs.replace(
        tenant("z"), policy=msgspec.structs.replace(tenant("z").policy, hot_limit_bytes=1 << 60)
    )
    rows = tenant_rows(first_picture(sample(1.0, tenants=[bounded, tenant("a")]), now=1.0))
    limit = next(i for i, column in enumerate(TENANTS.columns) if column.title == "limit")
    assert [row.name for row in TENANTS.arranged(rows, Sorting(limit, rising=False))] == ["a", "z"]


@pytest.mark.parametrize(
    ("total", "each", "n_nodes", "shown"),
    [
        (None, None, 3, "none"),
        (20 * MIB, None, 3, "20 MiB"),
        (None, 8 * MIB, 3, "8 MiB/n"),
        (20 * MIB, 8 * MIB, 2, "8 MiB/n"),
        (20 * MIB, 8 * MIB, 3, "20 MiB"),
        (20 * MIB, 8 * MIB, 0, "20 MiB"),
    ],
)
def test_of_two_hot_limits_the_lower_is_shown_and_sorted_by(
    total: int | None, each: int | None, n_nodes: int, shown: str
) -> None:
    made = tenant("z")
    policy = msgspec.structs.replace(made.policy, hot_total_limit_bytes=total, hot_limit_bytes=each)
    nodes = [node(f"n{i}") for i in range(n_nodes)] + [node("lost", alive=False)]
    at_17_mib = msgspec.structs.replace(
        tenant("a"), policy=msgspec.structs.replace(tenant("a").policy, hot_total_limit_bytes=17 * MIB)
    )
    bounded = msgspec.structs.replace(made, policy=policy)
    rows = tenant_rows(first_picture(sample(1.0, tenants=[bounded, at_17_mib], nodes=nodes), now=1.0))
    index, column = next((i, each) for i, each in enumerate(TENANTS.columns) if each.title == "limit")
    first, second = TENANTS.arranged(rows, Sorting(index, rising=True))
    by_name = {row.name: row for row in rows}
    assert column.cell(by_name["z"]) == shown
    assert [first.name, second.name] == (["z", "a"] if (total, n_nodes) == (20 * MIB, 2) else ["a", "z"])


def test_what_happened_on_another_day_has_its_date() -> None:
    def times(at: datetime) -> str:
        event = Event(at, "a", "evicted", None, "red", "hot", 1, "evicted: gone", {})
        subject = Subject(Node, "a")
        picture = looked(first_picture(sample(1.0, nodes=[node("a")]), now=1.0), Detail(subject, [], [event], []))
        return detail_text(picture, subject, 80).plain.splitlines()[-1].partition(" a ")[0]

    now = datetime.now().astimezone()
    assert times(now) == f"{now:%H:%M:%S}"
    assert times(now - timedelta(days=1)) == f"{now - timedelta(days=1):%Y-%m-%d %H:%M:%S}"


def test_every_column_of_every_row_can_be_shown_and_sorted_by_before_and_after_the_first_interval() -> None:
    crowd = Crowd(lost={3}, n_tenants=20, n_nodes=8)
    first = first_picture(crowd.sample(), now=1.0)
    for picture in (first, seen(first, crowd.sample(), now=2.0)):
        for index in range(len(TENANTS.columns)):
            assert len(TENANTS.arranged(tenant_rows(picture), Sorting(index, rising=True))) == 20
        for index in range(len(NODES.columns)):
            assert len(NODES.arranged(node_rows(picture), Sorting(index, rising=True))) == 8
        for tenants_row in tenant_rows(picture):
            assert [c.title for c in TENANTS.columns if len(c.cell(tenants_row)) > c.width] == []
        for nodes_row in node_rows(picture):
            assert [c.title for c in NODES.columns if len(c.cell(nodes_row)) > c.width] == []


def test_sorting_goes_round_at_both_ends() -> None:
    assert TENANTS.beside(Sorting(0, True), -1).index == len(TENANTS.columns) - 1
    assert TENANTS.beside(Sorting(len(TENANTS.columns) - 1, True), 1) == Sorting(0, rising=True)


@pytest.mark.parametrize("width", [60, 78, 79, 120, 198])
def test_no_line_of_the_overview_is_wider_than_the_screen(width: int) -> None:
    crowd = Crowd(lost=set(range(9)))
    picture = seen(first_picture(crowd.sample(), now=1.0), crowd.sample(), now=2.0)
    big = counts(hot=10**11, peer=10**10, redis=1, missed=10**11)
    for each in (picture, first_picture(sample(1.0, stats={"tokens": big}), now=1.0)):
        lines = overview(each, width).plain.splitlines()
        assert max(map(len, lines)) <= max(width, 78), max(lines, key=len)


def alerts_shown(*alerts: Alert, now: float = 1.0) -> list[str]:
    """From the title on, at the width of a small terminal; asked for half a second after the numbers were read."""
    first = sample(0.5, nodes=[node("a")], stats={"age_s": 0.5}, alerts=alerts)
    return last_section(overview(failed(first_picture(first, now=1.0), "gone", now=now), 78).plain)


def last_section(text: str) -> list[str]:
    return [line.rstrip() for line in text.rpartition("\n\n")[2].splitlines()]


def test_alerts_are_shown_in_the_coordinator_s_words_and_order_with_a_sign_for_each_level() -> None:
    assert alerts_shown() == ["alerts  none"]
    assert alerts_shown(
        Alert("alarm", "lost", "Worker a is lost.", "a", 2.0),
        Alert("warning", "refused", "2 blocks were refused room."),
        Alert("note", "left", "b was drained and left.", "b", 61.0),
        Alert("emergency", "new", "A newer coordinator has more levels."),
    ) == [
        "alerts  4",
        "!! Worker a is lost. (2.0 s ago)",
        "!  2 blocks were refused room.",
        "-  b was drained and left. (1 min 1 s ago)",
        "!  A newer coordinator has more levels.",
    ]


def test_an_alert_grows_older_while_nobody_answers() -> None:
    assert alerts_shown(Alert("alarm", "lost", "Worker a is lost.", "a", 2.0), now=31.0)[1].endswith("(32.0 s ago)")


def test_alerts_that_are_not_known_are_not_none() -> None:
    old = replace(sample(1.0, nodes=[node("a")]), alerts_failure=TOO_OLD)
    lines = last_section(overview(first_picture(old, now=1.0), 78).plain)
    assert lines == ["alerts  not known", f"!  {TOO_OLD}"]


def test_a_coordinator_too_old_to_say_what_is_saved_is_a_dash_and_not_nothing() -> None:
    def saved(**stats: object) -> str:
        text = overview(first_picture(sample(1.0, nodes=[node("a")], stats=stats), now=1.0), 78).plain
        return next(line for line in text.splitlines() if line.startswith("saved"))

    assert saved().split() == ["saved", "-", "prefill", "-", "speed", "not", "measured"]
    assert "0.0 s speed not measured" in saved(saved_prefill_s=0.0)
    assert "1 min 30 s" in saved(saved_prefill_s=90.0)


def test_a_subject_that_is_gone_is_said_to_be() -> None:
    picture = first_picture(sample(1.0, tenants=[tenant("red", counts(hot=1))], nodes=[node("a")]), now=1.0)
    assert "tenant blue is no longer listed" in detail_text(picture, Subject(Tenant, "blue"), 80).plain
    assert "node b is no longer listed" in detail_text(picture, Subject(Node, "b"), 80).plain


def test_the_details_of_another_subject_are_not_shown_for_this_one() -> None:
    crowd = Crowd(n_tenants=3, n_nodes=3)
    picture = first_picture(crowd.sample(), now=1.0)
    other = looked(picture, crowd.detail(Subject(Tenant, "tenant-0002")))
    assert detail_text(other, Subject(Tenant, "tenant-0001"), 80).plain.endswith("asking ...")
    assert "hot on node-02" in detail_text(other, Subject(Tenant, "tenant-0002"), 80).plain


def test_no_other_command_waits_for_the_screen_to_be_imported() -> None:
    code = "import sys, tiered.cli.main; print(sorted(m for m in sys.modules if m.partition('.')[0] == 'textual'))"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert outcome.stdout == "[]\n"
