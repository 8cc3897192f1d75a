"""The screen of ``tiered top`` under a pilot: keys, sorting, opening, finding, sizes, and a coordinator that goes."""

from __future__ import annotations

import re
import time

import msgspec
import pytest
from textual.pilot import Pilot

from tests.support.fake_api import FakeApi, fake_api
from tests.support.terminal import SMALL, WIDE, drive, keep_screenshot, screen_lines, screen_text, shows
from tests.unit.cli.top.builders import sample
from tests.unit.cli.top.crowd import N_NODES, N_TENANTS, Crowd
from tiered.cli.bodies import Alert, Node, Tenant
from tiered.cli.top.app import TopApp
from tiered.cli.top.sample import Cluster, Detail, Sample, Subject
from tiered.cli.top.table import LiveTable

OFTEN_S = 0.05
NEVER_S = 3600.0


def crowd_app(crowd: Crowd, *, every_s: float = NEVER_S) -> TopApp:
    return TopApp(crowd, crowd.sample(), every_s=every_s)


def table(app: TopApp, view: str) -> LiveTable:  # type: ignore[type-arg]
    return app.screen_stack[0].query_one(f"#{view}-view", LiveTable)


def names(app: TopApp, view: str) -> list[str]:
    return [row.name for row in table(app, view).rows]


@pytest.mark.parametrize("size", [SMALL, WIDE, (60, 12)])
def test_every_screen_fits_and_every_key_is_named_at_the_bottom(size: tuple[int, int]) -> None:
    crowd = Crowd(lost={3})
    app = crowd_app(crowd)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        for key, name in (("1", "overview"), ("2", "tenants"), ("3", "nodes")):
            await pilot.press(key)
            await pilot.pause()
            lines = screen_lines(app)
            assert len(lines) == size[1]
            assert max(map(len, lines)) <= size[0]
            assert f"tiered top  {name}" in lines[0]
            if size[0] >= 80:
                keep_screenshot(app, f"{name}-{size[0]}x{size[1]}")
                for shown in ("1 Overview", "2 Tenants", "3 Nodes", "/ Find", "p Pause", "? Help", "q Quit"):
                    assert shown in lines[-1]
        await pilot.press("question_mark")
        assert "what does not fit a narrow terminal" in " ".join(screen_text(app).split())
        if size == SMALL:
            keep_screenshot(app, "help-80x24")
        await pilot.press("escape")
        await pilot.press("enter")
        await shows(pilot, lambda: "asking" not in screen_text(app), "the node's details")

    drive(app, steps, size=size)


def test_the_overview_has_tiers_nodes_leader_savings_and_alerts() -> None:
    crowd = Crowd(lost={3})

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(pilot, lambda: app.picture.flow.seconds > 0, "rates")
        text = screen_text(app)
        total = app.picture.sample.stats.tokens
        assert f"{total.asked:,}" in text
        assert total.asked == total.hot + total.peer + total.redis + total.missed
        assert re.search(r"hot +\S+/s +50\.0% █+░+ +[\d,]+ +50\.0%", text)
        [saved] = [line for line in screen_lines(app) if line.startswith("saved")]
        assert re.search(r"1 min 30 s prefill +\d+ min \d+ s of workers here now", saved)  # 90 s a turn
        assert "768 MiB of 1 GiB" in text
        assert "49 alive, 1 lost, 49 engines attached" in text
        assert "leader  coordinator-1" in text
        assert "!! Worker node-03 is lost" in text

    drive(crowd_app(crowd, every_s=OFTEN_S), steps)


def test_columns_sort_the_table_and_the_other_way_round() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await pilot.press("less_than_sign")  # from asked/s to the name
        assert names(app, "tenants")[:2] == ["tenant-0000", "tenant-0001"]
        assert "▲tenant" in screen_lines(app)[1]
        await pilot.press("r")
        assert names(app, "tenants")[:2] == ["tenant-0999", "tenant-0998"]
        for _ in range(4):
            await pilot.press("greater_than_sign")
        assert "▼hot" in screen_lines(app)[1]
        held = [row.tenant.hot.used_bytes for row in table(app, "tenants").rows]
        assert held == sorted(held, reverse=True)
        assert len(held) == N_TENANTS

    drive(crowd_app(Crowd()), steps)


def test_a_column_out_of_sight_comes_into_sight_when_it_is_sorted_by() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        assert "suffered" not in screen_lines(app)[1]
        for _ in range(15):
            await pilot.press("greater_than_sign")
        await pilot.pause()
        assert "▼suffered" in screen_lines(app)[1]
        assert "tenant-0999" in screen_lines(app)[2]  # the name stays in place

    drive(crowd_app(Crowd()), steps)


def test_the_cursor_reaches_the_last_of_a_thousand_and_stays_with_its_row() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "less_than_sign", "end")
        await pilot.pause()
        assert table(app, "tenants").cursor_name == "tenant-0999"
        assert "> tenant-0999" in screen_text(app)
        await pilot.press("r")
        await pilot.pause()
        assert table(app, "tenants").cursor_name == "tenant-0999"
        assert "> tenant-0999" in screen_lines(app)[2]
        await pilot.press("pagedown", "down", "up", "pageup", "home", "up")
        assert table(app, "tenants").cursor_name == "tenant-0999"

    drive(crowd_app(Crowd()), steps)


def test_a_tenant_opens_with_its_places_and_its_evictions_and_closes_again() -> None:
    crowd = Crowd()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "down", "enter")
        await shows(pilot, lambda: "hot on node-02" in screen_text(app), "its bytes by node")
        text = screen_text(app)
        assert "tenants: tenant-0998" in text
        assert "for others; caused 998 of others'" in text
        assert "so that tenant-0002 could have" in " ".join(text.split())
        keep_screenshot(app, "tenant-80x24")
        assert crowd.looked_at[0] == Subject(Tenant, "tenant-0998")
        await pilot.press("2", "slash")  # of the first screen alone
        assert "tenants: tenant-0998" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert table(app, "tenants").cursor_name == "tenant-0998"

    drive(crowd_app(crowd), steps)


def test_a_node_opens_too() -> None:
    crowd = Crowd(lost={1})

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "down", "enter")
        await shows(pilot, lambda: "tenant-0001" in screen_text(app), "whose bytes it holds")
        assert "node-01, LOST, epoch 1796011161225: its lease has lapsed" in screen_text(app)
        assert crowd.looked_at[0] == Subject(Node, "node-01")
        keep_screenshot(app, "node-80x24")

    drive(crowd_app(crowd), steps)


def test_what_is_typed_after_a_slash_narrows_the_tenants() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "0", "4", "2")  # from the overview it goes to the tenants
        await pilot.pause()
        assert app.view == "tenants"
        found = names(app, "tenants")
        assert len(found) == 11
        assert all("042" in name for name in found)
        assert "11 of 1000 shown" in screen_lines(app)[0]
        keep_screenshot(app, "filter-80x24")
        await pilot.press("q")  # a letter like others while one types
        await pilot.pause()
        assert app.is_running
        assert names(app, "tenants") == []
        assert "no name holds '042q'" in screen_text(app)
        await pilot.press("enter", "backspace", "slash", "backspace", "enter", "enter")
        await shows(pilot, lambda: "hot on node-02" in screen_text(app), "the first of those found opens")
        assert "tenants: tenant-0429" in screen_text(app)
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert len(names(app, "tenants")) == N_TENANTS
        assert "names that hold" not in screen_text(app)

    drive(crowd_app(Crowd()), steps)


def test_tab_goes_round_the_views() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        seen = []
        for _ in range(3):
            await pilot.press("tab")
            seen.append(app.view)
        assert seen == ["tenants", "nodes", "overview"]

    drive(crowd_app(Crowd()), steps)


def test_a_terminal_that_is_resized_is_filled_again() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "end")
        for size in ((200, 50), (40, 10), (80, 24), (20, 3)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            lines = screen_lines(app)
            assert len(lines) == size[1]
            assert max(map(len, lines)) <= size[0]
            if size[1] > 5:
                assert f"> {table(app, 'tenants').cursor_name}" in screen_text(app)

    drive(crowd_app(Crowd()), steps)


def test_the_last_numbers_stay_and_are_called_stale_until_the_coordinator_is_back() -> None:
    crowd = Crowd()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(pilot, lambda: crowd.turn > 2, "it is asked again and again")
        crowd.gone = True
        await shows(pilot, lambda: "STALE" in screen_lines(app)[0], "the age is said")
        notice = " ".join(" ".join(screen_lines(app)[1:3]).split())
        assert "nothing answers at http://127.0.0.1:8080 (Connection refused)" in notice
        assert "tiered up" not in notice
        kept = app.picture.sample.stats.tokens.asked
        assert f"{kept:,}" in screen_text(app)
        keep_screenshot(app, "stale-80x24")
        await pilot.press("2", "enter")
        await shows(pilot, lambda: "not known: nothing answers" in screen_text(app), "details are not known either")
        assert "STALE" in screen_lines(app)[0]
        await pilot.press("escape")
        crowd.gone = False
        await shows(pilot, lambda: "STALE" not in screen_text(app), "it came back by itself")
        assert app.picture.sample.stats.tokens.asked > kept

    drive(crowd_app(crowd, every_s=OFTEN_S), steps)


def test_a_replica_that_cannot_read_redis_does_not_take_the_numbers_away() -> None:
    class Reborn(Crowd):
        def sample(self) -> Sample:
            return sample(0.0, stats={"stale": True, "age_s": 1e6}) if self.gone else super().sample()

    crowd = Reborn()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        crowd.gone = True
        await shows(pilot, lambda: "cannot read Redis" in " ".join(screen_text(app).split()), "it is said")
        assert len(names(app, "tenants")) == N_TENANTS
        before = app.picture.sample.stats.tokens.asked
        crowd.gone = False
        await shows(pilot, lambda: app.picture.failure == "", "it reads again")
        turns = app.picture.flow.seconds
        assert app.picture.flow.tokens.asked < before * turns  # not the whole life as "now"

    drive(crowd_app(crowd, every_s=OFTEN_S), steps)


def test_a_paused_screen_stands_still_and_goes_on() -> None:
    crowd = Crowd()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(pilot, lambda: crowd.turn > 2, "it goes")
        await pilot.press("p")
        await pilot.pause()
        assert "PAUSED" in screen_lines(app)[0]
        await shows(pilot, lambda: app.picture.sample.at == crowd.turn, "what was on its way has come")
        stood, until = crowd.turn, time.monotonic() + 5 * OFTEN_S
        await shows(pilot, lambda: time.monotonic() > until, "five intervals have passed")
        assert crowd.turn == stood
        await pilot.press("2", "enter")  # what is opened is asked for all the same
        await shows(pilot, lambda: "hot on node-02" in screen_text(app), "details")
        await pilot.press("escape", "p")
        await shows(pilot, lambda: crowd.turn > stood, "it goes on")

    drive(crowd_app(crowd, every_s=OFTEN_S), steps)


def test_q_ends_well_and_ctrl_c_as_an_interrupt() -> None:
    async def quits(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "enter", "q")

    async def interrupts(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "ctrl+c")

    assert drive(crowd_app(Crowd()), quits) == 0
    assert drive(crowd_app(Crowd()), interrupts) == 130


def test_help_opens_once_and_any_way_out_closes_it() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        for way_out in ("escape", "question_mark", "q"):
            await pilot.press("question_mark")
            assert "what does not fit" in screen_text(app)
            await pilot.press(way_out)
            assert "what does not fit" not in screen_text(app)
        assert app.is_running

    drive(crowd_app(Crowd()), steps)


def test_without_colour_nothing_is_coloured_and_the_cursor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("3", "down", "down", "down")
        await pilot.pause()
        coloured = {
            segment.style.color
            for y in range(SMALL[1])
            for segment in app.screen._compositor.render_strips()[y].apply_filter(
                app._filters[-1], app.screen.background_colors[1]
            )
            if segment.style is not None and segment.style.color is not None
        }
        assert {colour.name for colour in coloured} <= {"default"}
        assert re.search("> node-03 +LOST", screen_text(app))

    drive(crowd_app(Crowd(lost={3})), steps)


def test_an_empty_cluster_says_what_to_do() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "-  No worker has joined; start one" in screen_text(app)
        await pilot.press("3", "enter", "down", "end", "pageup", "r")
        assert "no worker has joined; start one with `tiered-worker`" in screen_text(app)
        await pilot.press("2", "enter", "end")
        assert "no tenant is named or was seen" in screen_text(app)

    crowd = Crowd(n_tenants=0, n_nodes=0)
    said = [Alert("note", "workers", "No worker has joined; start one with `tiered-worker`.")]
    drive(TopApp(crowd, sample(0.0, alerts=said), every_s=NEVER_S), steps)


def test_an_older_coordinator_is_watched_without_alerts() -> None:
    first = Crowd().sample()
    old = msgspec.structs.replace(first.stats, saved_prefill_s=None)
    with fake_api(FakeApi(stats=old, tenants=first.tenants, nodes=first.nodes, alerts=None)) as served:
        cluster = Cluster(lambda: [served.url])

        async def steps(app: TopApp, pilot: Pilot[None]) -> None:
            await shows(pilot, lambda: served.asked.count("/v1/alerts") > 2, "it goes on")
            assert "alerts need a newer coordinator" in screen_text(app)
            assert "50 alive, 0 lost" in screen_text(app)
            assert "STALE" not in screen_text(app)

        drive(TopApp(cluster, cluster.sample(), every_s=OFTEN_S), steps)
        cluster.close()


def test_a_first_look_at_a_replica_that_cannot_read_redis_is_called_stale() -> None:
    crowd = Crowd()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "STALE" in screen_lines(app)[0]

    drive(TopApp(crowd, sample(0.0, stats={"stale": True, "age_s": 1.0}), every_s=NEVER_S), steps)


def test_a_bug_of_the_feed_is_seen_and_not_swallowed() -> None:
    class Broken(Crowd):
        def detail(self, subject: Subject) -> Detail:
            raise KeyError("a bug")

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("2", "enter")
        await shows(pilot, lambda: not app.is_running, "it ends")

    with pytest.raises(KeyError, match="a bug"):
        drive(crowd_app(Broken()), steps)


def test_names_with_brackets_are_shown_as_they_are() -> None:
    """Names are no markup, whoever chose them; a refused one could not be told from a style."""
    crowd = Crowd()
    app = TopApp(crowd, sample(0.0, stats={"leader": "[bold red]host[/]"}), every_s=NEVER_S)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        assert "leader  [bold red]host[/]" in screen_text(app)

    drive(app, steps)


def test_a_thousand_tenants_over_http_are_drawn_fast_enough() -> None:
    """From the answer of the API to the screen: far below the shortest interval."""
    crowd = Crowd()
    first = crowd.sample()
    api = FakeApi(stats=first.stats, tenants=first.tenants, nodes=first.nodes)
    with fake_api(api) as served:
        cluster = Cluster(lambda: [served.url])
        app = TopApp(cluster, cluster.sample(), every_s=NEVER_S)

        async def steps(app: TopApp, pilot: Pilot[None]) -> None:
            assert len(names(app, "tenants")) == N_TENANTS
            assert len(names(app, "nodes")) == N_NODES
            await pilot.press("2")
            began = time.process_time()
            for _ in range(5):
                app.post_message(TopApp.Told(crowd.sample()))
                await pilot.pause()
            assert (time.process_time() - began) / 5 < 0.5

        drive(app, steps)
        cluster.close()
