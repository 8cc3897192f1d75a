"""The one page that answers "how is the cluster?": tier tiles, tenants, nodes.

Owns the layout. It draws once and then only changes texts and rows, from a plain view it is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nicegui import ui

from coordinator.dashboard.snapshot import DashboardView, Row, Tile

_REFRESH_S: Final = 1.0

_STYLE: Final = """
:root { --line: #e2e6ec; --soft: #66707f; --page: #f6f7f9; --card: #fff; --ink: #1a2230; }
.body--dark { --line: #2b323d; --soft: #97a1b0; --page: #11151b; --card: #1a2028; --ink: #e6eaf0; }
body { background: var(--page); color: var(--ink); }
.nicegui-content { padding: 0; }
.t-soft { color: var(--soft); }
.t-card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.t-tiles { display: grid; gap: 12px; width: 100%;
           grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.t-value { font-size: 1.6rem; font-weight: 600; line-height: 1.2; font-variant-numeric: tabular-nums; }
.t-table { background: transparent; color: inherit; width: 100%; }
.t-table td, .t-table th { font-variant-numeric: tabular-nums; border-color: var(--line) !important; }
.t-table thead th { color: var(--soft); font-weight: 500; }
.t-table .q-table__top, .t-table .q-table__bottom { display: none; }
"""

_TENANT_COLUMNS: Final[list[dict[str, object]]] = [
    {"name": "tenant", "label": "Tenant", "field": "tenant", "align": "left", "sortable": True},
    {"name": "asked", "label": "Tokens asked", "field": "asked", "sortable": True},
    {"name": "hot_share", "label": "Hot", "field": "hot_share", "sortable": True},
    {"name": "peer_share", "label": "Peer", "field": "peer_share", "sortable": True},
    {"name": "redis_share", "label": "Redis", "field": "redis_share", "sortable": True},
    {"name": "missed_share", "label": "Missed", "field": "missed_share", "sortable": True},
    {"name": "hot_bytes", "label": "Hot bytes", "field": "hot_bytes", "sortable": True},
    {"name": "redis_bytes", "label": "Redis bytes", "field": "redis_bytes", "sortable": True},
]

_NODE_COLUMNS: Final[list[dict[str, object]]] = [
    {"name": "node", "label": "Node", "field": "node", "align": "left", "sortable": True},
    {"name": "state", "label": "State", "field": "state", "align": "left", "sortable": True},
    {"name": "epoch", "label": "Epoch", "field": "epoch", "sortable": True},
    {"name": "lease", "label": "Lease left", "field": "lease_left_s", "sortable": True},
    {"name": "pool", "label": "Pool blocks used", "field": "pool_used", "sortable": True},
    {"name": "engines", "label": "Engines", "field": "engines", "sortable": True},
    {"name": "peer", "label": "Peer address", "field": "peer", "align": "left"},
]


def overview_page(view: Callable[[], DashboardView]) -> None:
    """Draw for one visitor, and keep it current for as long as the visitor stays."""
    ui.add_css(_STYLE)
    first = view()
    with ui.column().classes("w-full max-w-7xl mx-auto p-3 sm:p-6 gap-4"):
        with ui.row().classes("w-full items-center justify-between gap-2"):
            ui.label("Tiered").classes("text-xl font-semibold")
            with ui.row().classes("items-center gap-4"):
                state = ui.label(first.state)
                ui.link("API", "/docs").classes("t-soft")
                ui.link("Metrics", "/metrics").classes("t-soft")
        warning = ui.label().classes("w-full rounded-lg p-3 bg-amber-100 text-amber-900")
        with ui.element("div").classes("t-tiles"):
            tiles = [_TileCard(tile) for tile in first.tiles]
        tenants = _Table("Tenants", _TENANT_COLUMNS, key="tenant", empty="No tenant has asked for anything yet.")
        tenants.describe("tenant", "{{ props.row.tenant }}", note="{{ props.row.named ? '' : 'default policy' }}")
        tenants.describe("asked", "{{ props.row.asked_text }}")
        for column in ("hot_share", "peer_share", "redis_share", "missed_share"):
            tenants.describe(column, "{{ props.row.asked ? props.row.%s.toFixed(1) + '%%' : '-' }}" % column)  # noqa: UP031 - braces are Vue's
        tenants.describe("hot_bytes", "{{ props.row.hot_text }}", note="{{ props.row.hot_limit }}")
        tenants.describe("redis_bytes", "{{ props.row.redis_text }}", note="{{ props.row.redis_limit }}")
        nodes = _Table(
            "Nodes",
            _NODE_COLUMNS,
            key="node",
            empty="No worker has joined. Start one with: tiered-worker --redis-url redis://HOST:PORT",
        )
        nodes.describe(
            "state",
            "<q-badge :color=\"props.row.alive ? 'positive' : 'negative'\">{{ props.row.state }}</q-badge>",
        )
        nodes.describe("lease", "{{ props.row.lease }}")
        nodes.describe("pool", "{{ props.row.pool }}")

    def refresh() -> None:
        now = view()
        state.set_text(now.state)
        warning.set_text(now.warning)
        warning.set_visibility(bool(now.warning))
        for card, tile in zip(tiles, now.tiles, strict=True):
            card.show(tile)
        tenants.show(now.tenants)
        nodes.show(now.nodes)

    refresh()
    ui.timer(_REFRESH_S, refresh)


class _TileCard:
    def __init__(self, tile: Tile) -> None:
        with ui.column().classes("t-card p-4 gap-1"):
            ui.label(tile.label).classes("t-soft text-sm")
            self._value = ui.label().classes("t-value")
            self._detail = ui.label().classes("t-soft text-xs")
            self._bar = ui.linear_progress(show_value=False, size="4px").props("rounded instant-feedback")
        self.show(tile)

    def show(self, tile: Tile) -> None:
        self._value.set_text(tile.value)
        self._detail.set_text(tile.detail)
        self._bar.set_visibility(tile.filled is not None)
        self._bar.set_value(tile.filled or 0.0)


class _Table:
    """A table that changes its rows and nothing else, and says what to do while it has none."""

    def __init__(self, title: str, columns: list[dict[str, object]], *, key: str, empty: str) -> None:
        with ui.column().classes("t-card w-full p-4 gap-2"):
            ui.label(title).classes("text-base font-semibold")
            self._empty = ui.label(empty).classes("t-soft")
            with ui.element("div").classes("w-full overflow-x-auto"):
                self._table = ui.table(rows=[], columns=columns, row_key=key, pagination=0)
            self._table.classes("t-table").props("flat dense")

    def describe(self, column: str, template: str, *, note: str = "") -> None:
        """Show a column's value by a Vue template, with a soft second line."""
        second = f'<div class="t-soft text-xs">{note}</div>' if note else ""
        self._table.add_slot(f"body-cell-{column}", f'<q-td :props="props">{template}{second}</q-td>')

    def show(self, rows: tuple[Row, ...]) -> None:
        if list(rows) != self._table.rows:
            self._table.rows = list(rows)
        self._empty.set_visibility(not rows)
        self._table.set_visibility(bool(rows))
