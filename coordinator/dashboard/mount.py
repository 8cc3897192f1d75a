"""Puts the dashboard under ``/`` of the API's own application; the API's paths come first."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from coordinator.dashboard.pages.overview import overview_page
from coordinator.dashboard.snapshot import DashboardView, dashboard_view
from coordinator.view.keeper import ViewKeeper


def mount_dashboard(app: FastAPI, keeper: ViewKeeper) -> None:
    """Call once per process: the page registry behind it is global. Everything it serves is bundled."""

    def view() -> DashboardView:
        return dashboard_view(keeper.view, age_s=keeper.age_s())

    ui.run_with(
        app,
        root=lambda: overview_page(view),
        title="Tiered",
        favicon="🧊",
        dark=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
