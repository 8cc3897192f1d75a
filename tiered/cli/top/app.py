"""The screen of ``tiered top``: which view is shown, what keys do, and news of the cluster as it comes.

It is thin: numbers are :mod:`~tiered.cli.top.flow`'s, alerts the coordinator's, words the views'.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import ContentSwitcher, Footer, Input, Static

from tiered.cli.bodies import Node, Tenant
from tiered.cli.top.columns import NODES, TENANTS, NodeRow, TenantRow, node_rows, tenant_rows
from tiered.cli.top.feed import Crash, Failure, Feed, News
from tiered.cli.top.overview import overview
from tiered.cli.top.picture import failed, first_picture, looked, seen
from tiered.cli.top.sample import Detail, Sample, Source, Subject
from tiered.cli.top.screens import DetailScreen, HelpScreen
from tiered.cli.top.table import LiveTable
from tiered.cli.top.words import cut, duration

VIEWS: Final = ("overview", "tenants", "nodes")

_INTERRUPTED: Final = 130


class TopApp(App[None]):
    CSS = """
    Screen { layout: vertical; background: $background; }
    #status { height: 1; text-style: reverse; }
    #notice { height: auto; display: none; text-style: bold; color: $text-warning; }
    #notice.said { display: block; }
    #filter { height: 1; border: none; padding: 0 1; display: none; dock: bottom; margin-bottom: 1; }
    #filter.asked { display: block; }
    ContentSwitcher { height: 1fr; }
    #overview, #detail { height: auto; }
    """
    TITLE = "tiered top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view('overview')", "Overview"),
        Binding("2", "view('tenants')", "Tenants"),
        Binding("3", "view('nodes')", "Nodes"),
        Binding("tab", "next_view", "Next view", show=False, priority=True),
        Binding("slash", "filter", "Find", key_display="/"),
        Binding("escape", "all_names", "All names", show=False),
        Binding("p", "pause", "Pause"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
    ]

    class Told(Message):
        def __init__(self, news: News) -> None:
            super().__init__()
            self.news = news

    def __init__(
        self,
        source: Source,
        first: Sample,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        catch_signals: bool = False,
    ) -> None:
        """first: what the cluster has answered already, so that the first screen is not empty. Where NO_COLOR is set,
        no colour is written at all."""
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self._clock = clock
        self._every_s = every_s
        self._catch_signals = catch_signals
        self._paused = False
        self.picture = first_picture(first, now=clock())
        self.feed = Feed(source, every_s, lambda news: self.post_message(self.Told(news)), clock=clock)

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Static(id="notice", markup=False)
        with ContentSwitcher(initial="overview-view"):
            with VerticalScroll(id="overview-view"):
                yield Static(id="overview", markup=False)
            yield LiveTable[TenantRow](TENANTS, nothing="no tenant is named or was seen", id="tenants-view")
            yield LiveTable[NodeRow](
                NODES, nothing="no worker has joined; start one with `tiered-worker`", id="nodes-view"
            )
        yield Input(placeholder="names that hold ...", id="filter", select_on_focus=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        if self._catch_signals:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.exit)
        self.query_one("#overview-view").focus()
        self.feed.start()
        self._draw()

    def on_unmount(self) -> None:
        self.feed.stop()

    def on_resize(self) -> None:
        self._draw()

    def on_top_app_told(self, told: Told) -> None:
        news, now = told.news, self._clock()
        match news:
            case Sample():
                self.picture = seen(self.picture, news, now=now)
            case Failure(reason=reason, subject=None):
                self.picture = failed(self.picture, reason, now=now)
            case Detail(subject=subject) if subject == self._open_subject():
                self.picture = looked(self.picture, news)
            case Failure(reason=reason, subject=subject) if subject == self._open_subject():
                self.picture = looked(self.picture, None, reason)
            case Crash(error=error):
                raise error
        self._draw()

    def on_live_table_opened(self, opened: LiveTable.Opened) -> None:
        kind: type[Tenant] | type[Node] = Tenant if opened.table.id == "tenants-view" else Node
        subject = Subject(kind, opened.name)
        self.picture = looked(self.picture, None)
        self.push_screen(DetailScreen(subject, self.picture), callback=lambda _: self.feed.look_at(None))
        self.feed.look_at(subject)
        self.call_after_refresh(self._draw)

    def on_input_changed(self, changed: Input.Changed) -> None:
        for table in self.query(LiveTable):
            table.wanted = changed.value.strip()
        self._draw()

    def on_input_submitted(self) -> None:
        self._focus_view()

    def on_input_blurred(self) -> None:
        """A filter nobody types in, and that hides nothing, goes away."""
        if self._is_drawn:
            self._settle_filter()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Views and filters belong to the first screen alone."""
        return len(self.screen_stack) == 1 or action not in ("view", "next_view", "filter", "all_names")

    def action_view(self, view: str) -> None:
        self.screen_stack[0].query_one(ContentSwitcher).current = f"{view}-view"
        self._focus_view()
        self._draw()

    def action_next_view(self) -> None:
        self.action_view(VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)])

    def action_filter(self) -> None:
        if self.view == "overview":
            self.action_view("tenants")
        field = self.query_one("#filter", Input)
        field.add_class("asked")
        field.focus()

    def action_all_names(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._focus_view()
        self._settle_filter()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.feed.pause(self._paused)
        self._draw()

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_interrupt(self) -> None:
        self.exit(return_code=_INTERRUPTED)

    async def action_back(self) -> None:
        if isinstance(self.screen, DetailScreen):
            self.screen.dismiss()

    @property
    def view(self) -> str:
        current = self.screen_stack[0].query_one(ContentSwitcher).current
        return (current or "overview-view").removesuffix("-view")

    @property
    def _is_drawn(self) -> bool:
        """False while everything is being closed."""
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#overview"))

    def _open_subject(self) -> Subject | None:
        opened = [screen.subject for screen in self.screen_stack if isinstance(screen, DetailScreen)]
        return opened[-1] if opened else None

    def _focus_view(self) -> None:
        self.screen_stack[0].query_one(f"#{self.view}-view").focus()

    def _settle_filter(self) -> None:
        field = self.screen_stack[0].query_one("#filter", Input)
        field.set_class(bool(field.value.strip()) or field.has_focus, "asked")

    def _draw(self) -> None:
        """Everything that is in sight, from the picture alone."""
        if not self._is_drawn:
            return
        width = self.size.width
        self.screen_stack[0].query_one("#overview", Static).update(overview(self.picture, width - 2))
        self.screen_stack[0].query_one("#tenants-view", LiveTable).show_rows(tenant_rows(self.picture))
        self.screen_stack[0].query_one("#nodes-view", LiveTable).show_rows(node_rows(self.picture))
        for screen in self.screen_stack:
            if isinstance(screen, DetailScreen) and screen.is_mounted:
                screen.show(self.picture)
        for screen in self.screen_stack:
            for status in screen.query("#status").results(Static):
                status.update(self._status(width))
            for notice in screen.query("#notice").results(Static):
                notice.update(self._notice())
                notice.set_class(bool(self.picture.failure), "said")

    def _status(self, width: int) -> Text:
        """One line: where, which view, how many nodes, how current."""
        nodes, view = self.picture.sample.nodes, self.view
        opened = self._open_subject()
        place = f"{view}: {opened.name}" if opened else view
        stale = bool(self.picture.failure) or self.picture.sample.stats.stale
        state = "PAUSED" if self._paused else "STALE" if stale else f"every {self._every_s:g} s"
        table = next((t for t in self.screen_stack[0].query(LiveTable) if t.id == f"{view}-view"), None)
        shown = f", {len(table.rows)} of {len(table.all_rows)} shown" if table is not None and table.wanted else ""
        left = f" tiered top  {place}{shown}  {self.picture.sample.url.partition('//')[2]}"
        right = f"{sum(node.alive for node in nodes)} of {len(nodes)} nodes  {state} "
        room = max(0, width - len(right) - 1)
        return Text(f"{cut(left, room):<{room}} {right}", no_wrap=True)

    def _notice(self) -> str:
        if not self.picture.failure:
            return ""
        return (
            f"STALE, {duration(self.picture.age_s)} old: {self.picture.failure}; "
            f"asking again every {self._every_s:g} s"
        )
