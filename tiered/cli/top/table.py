"""A table of live rows that draws only the lines in sight: a thousand tenants cost what twenty do.

Owns the cursor, the sorting, and the first column, which stays in place while the others are moved sideways. A cursor
that was moved down stays with its row however the order changes; one at the top stays there. It knows columns and
rows, not what they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tiered.cli.top.columns import Form, Row, Sorting
from tiered.cli.top.words import cut

_MARK, _NO_MARK = "> ", "  "
"""Before a row's name: the cursor is seen without colour too."""

_HEADER_LINES = 1


class LiveTable(ScrollView, Generic[Row], can_focus=True):
    DEFAULT_CSS = """
    LiveTable { height: 1fr; scrollbar-size: 1 1; }
    LiveTable > .table--header { text-style: bold underline; }
    LiveTable > .table--cursor { text-style: reverse; }
    LiveTable > .table--bad { color: $text-error; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--header", "table--cursor", "table--bad"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "edge(-1)", "First", show=False),
        Binding("end", "edge(1)", "Last", show=False),
        Binding("enter", "open", "Open"),
        Binding("less_than_sign", "sort_beside(-1)", "Sort", key_display="<>"),
        Binding("greater_than_sign", "sort_beside(1)", "Sort", show=False),
        Binding("r", "reverse", "Flip"),
    ]

    sorting: reactive[Sorting] = reactive(Sorting(0, True), init=False)
    wanted: reactive[str] = reactive("", init=False)

    class Opened(Message):
        """Somebody wants to see more of one row."""

        def __init__(self, table: LiveTable[Any], name: str) -> None:
            super().__init__()
            self.table, self.name = table, name

        @property
        def control(self) -> LiveTable[Any]:
            return self.table

    def __init__(self, form: Form[Row], *, nothing: str, id: str) -> None:
        """nothing: what to say where there are no rows at all."""
        super().__init__(id=id)
        self._form, self._nothing = form, nothing
        self._rows: Sequence[Row] = ()
        self._arranged: list[Row] = []
        self._at: str | None = None
        self._stays_on_top = True
        self.set_reactive(LiveTable.sorting, form.first)

    @property
    def rows(self) -> Sequence[Row]:
        """Those in the table, in the order on the screen."""
        return self._arranged

    @property
    def all_rows(self) -> Sequence[Row]:
        """Those that a filter hides too."""
        return self._rows

    @property
    def cursor_name(self) -> str | None:
        """Of the row at the cursor."""
        return self._at

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._arrange()

    def watch_sorting(self) -> None:
        self._arrange()
        self._scroll_to_column()

    def watch_wanted(self) -> None:
        self._arrange()

    def action_move(self, step: int) -> None:
        if self._arranged:
            self._go(self._cursor() + step)

    def action_page(self, step: int) -> None:
        self.action_move(step * max(1, self._lines_in_sight() - 1))

    def action_edge(self, side: int) -> None:
        self._go(0 if side < 0 else len(self._arranged) - 1)

    def action_open(self) -> None:
        if self._at is not None:
            self.post_message(self.Opened(self, self._at))

    def action_sort_beside(self, step: int) -> None:
        self.sorting = self._form.beside(self.sorting, step)

    def action_reverse(self) -> None:
        self.sorting = Sorting(self.sorting.index, not self.sorting.rising)

    def on_click(self, event: events.Click) -> None:
        """A row moves the cursor there, and opens if it was there already; a title sorts by its column."""
        if event.y < _HEADER_LINES:
            self._sort_by_title_at(event.x)
            return
        index = self.scroll_offset.y + event.y - _HEADER_LINES
        if index < len(self._arranged):
            was = self._at
            self._go(index)
            if was == self._at:
                self.action_open()

    def on_resize(self) -> None:
        self._scroll_to_cursor()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y < _HEADER_LINES:
            return self._header().crop_extend(0, width, self.rich_style)
        index = self.scroll_offset.y + y - _HEADER_LINES
        if index < len(self._arranged):
            return self._line(self._arranged[index]).crop_extend(0, width, self.rich_style)
        if y == _HEADER_LINES and not self._arranged:
            said = f"no name holds {self.wanted!r}" if self._rows else self._nothing
            return Strip([Segment(_NO_MARK + said, self.rich_style)]).crop_extend(0, width, self.rich_style)
        return Strip.blank(width, self.rich_style)

    def _arrange(self) -> None:
        before = self._cursor()
        self._arranged = self._form.arranged(self._rows, self.sorting, self.wanted)
        names = [self._form.name(row) for row in self._arranged]
        if not names:
            self._at = None
        elif self._stays_on_top:
            self._at = names[0]
        elif self._at not in names:  # gone, or filtered out: the cursor stays where it was on the screen
            self._at = names[min(before, len(names) - 1)]
        width = self._name_width() + sum(column.width + 1 for column in self._form.columns[1:])
        self.virtual_size = Size(width, len(self._arranged) + _HEADER_LINES)
        self._scroll_to_cursor()
        self.refresh()

    def _cursor(self) -> int:
        for index, row in enumerate(self._arranged):
            if self._form.name(row) == self._at:
                return index
        return 0

    def _go(self, index: int) -> None:
        if self._arranged:
            index = max(0, min(index, len(self._arranged) - 1))
            self._stays_on_top = index == 0
            self._at = self._form.name(self._arranged[index])
            self._scroll_to_cursor()
            self.refresh()

    def _lines_in_sight(self) -> int:
        return max(1, self.scrollable_content_region.height - _HEADER_LINES)

    def _scroll_to_cursor(self) -> None:
        cursor, top, lines = self._cursor(), self.scroll_offset.y, self._lines_in_sight()
        if cursor < top:
            self.scroll_to(y=cursor, animate=False)
        elif cursor >= top + lines:
            self.scroll_to(y=cursor - lines + 1, animate=False)

    def _scroll_to_column(self) -> None:
        """Bring what is sorted by into sight."""
        if self.sorting.index == 0:
            return
        end = sum(column.width + 1 for column in self._form.columns[1 : self.sorting.index + 1])
        start = end - self._form.columns[self.sorting.index].width - 1
        room = max(1, self.scrollable_content_region.width - self._name_width())
        if start < self.scroll_offset.x:
            self.scroll_to(x=start, animate=False)
        elif end > self.scroll_offset.x + room:
            self.scroll_to(x=end - room, animate=False)

    def _sort_by_title_at(self, x: int) -> None:
        index, end = 0, self._name_width() - self.scroll_offset.x
        if x >= self._name_width():
            while x >= end and index < len(self._form.columns) - 1:
                index += 1
                end += self._form.columns[index].width + 1
        if index == self.sorting.index:
            self.action_reverse()
        else:
            self.sorting = self._form.beside(Sorting(index, True), 0)

    def _name_width(self) -> int:
        return len(_MARK) + self._form.columns[0].width

    def _header(self) -> Strip:
        titles = []
        for index, column in enumerate(self._form.columns):
            sign = ("▲" if self.sorting.rising else "▼") if index == self.sorting.index else ""
            titles.append(sign + column.title)
        return self._strip(_NO_MARK, titles, self.get_component_rich_style("table--header"))

    def _line(self, row: Row) -> Strip:
        is_here = self._form.name(row) == self._at
        style = self.rich_style
        if self._form.is_bad(row):
            style += self.get_component_rich_style("table--bad", partial=True)
        if is_here and self.has_focus:
            style += self.get_component_rich_style("table--cursor", partial=True)
        return self._strip(_MARK if is_here else _NO_MARK, [c.cell(row) for c in self._form.columns], style)

    def _strip(self, mark: str, cells: Sequence[str], style: Style) -> Strip:
        name = mark + f"{cut(cells[0], self._form.columns[0].width):<{self._form.columns[0].width}}"
        rest = "".join(
            " " + (f"{cut(cell, c.width):<{c.width}}" if c.left else f"{cut(cell, c.width):>{c.width}}")
            for c, cell in zip(self._form.columns[1:], cells[1:], strict=True)
        )
        return Strip([Segment(name + rest[self.scroll_offset.x :], style)])
