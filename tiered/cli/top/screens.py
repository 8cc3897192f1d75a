"""The screens over the first: a tenant or a node that was opened, and the keys."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from tiered.cli.top.details import detail_text
from tiered.cli.top.picture import Picture
from tiered.cli.top.sample import Subject

HELP: Final = """\
1 2 3      overview, tenants, nodes; Tab goes to the next
up down    move in a table; also j, k, PgUp, PgDn, Home, End
left right what does not fit a narrow terminal
Enter      open the tenant or node at the cursor; Esc goes back
< >        sort by the column to the left or right
r          the other way round
/          only names that hold what is typed; Esc shows all again
p          pause, and go on
q Ctrl-C   quit

now        between the coordinator's last two answers
borrowed   held beyond what is reserved; others may ask it back
lent       reserved and not used, so others may use it meanwhile
caused     blocks of others that left a pool for this tenant
suffered   blocks of this tenant that left a pool for others
/n         a limit on each node; without it, over all nodes
saved      prefill spared, at the speed engines had then; of the
           workers that run now"""


class DetailScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.back", "Back")]

    def __init__(self, subject: Subject, picture: Picture) -> None:
        super().__init__()
        self.subject = subject
        self._picture = picture

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Static(id="notice", markup=False)
        with VerticalScroll():
            yield Static(id="detail", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.show(self._picture)

    def on_resize(self) -> None:
        self.show(self._picture)

    def show(self, picture: Picture) -> None:
        self._picture = picture
        self.query_one("#detail", Static).update(detail_text(picture, self.subject, self.size.width))


class HelpScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll {
        width: 78; max-width: 100%; height: auto; max-height: 100%; border: round $primary; padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,enter,q", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = "tiered top"
            scroll.border_subtitle = "Esc goes back"
            yield Static(Text(HELP), id="help")
