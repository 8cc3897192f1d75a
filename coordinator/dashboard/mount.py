"""Puts the dashboard under ``/`` of the API's own application; the API's paths come first.

Owns what a visitor sees of the cluster: as much as its token may see, and nothing any more once that is over. Who the
visitor is, the gate has found out.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from nicegui import ui
from starlette.requests import Request
from starlette.routing import Match, Mount
from starlette.types import Scope

from coordinator.dashboard.pages.overview import overview_page
from coordinator.dashboard.snapshot import DashboardView, dashboard_view
from coordinator.server.caller import Caller
from coordinator.server.credentials import Credentials
from coordinator.server.gate import LOGIN, OPEN
from coordinator.view.keeper import ViewKeeper
from coordinator.view.snapshot import ClusterView
from coordinator.view.visible import view_of_tenant


def mount_dashboard(app: FastAPI, keeper: ViewKeeper, credentials: Credentials) -> None:
    """Call once per process: the page registry behind it is global. Everything it serves is bundled."""

    def root() -> None:
        request = ui.context.client.request
        assert request is not None  # this page is drawn for a request
        overview_page(_view_for(request, keeper, credentials, log_in=lambda: ui.navigate.to(LOGIN)))

    ui.run_with(
        app,
        root=root,
        title="Tiered",
        favicon="🧊",
        dark=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    mounted = app.router.routes.pop()
    assert isinstance(mounted, Mount)  # which run_with has just put there
    app.router.routes.append(_BelowTheApi(mounted.path, app=mounted.app))


class _BelowTheApi(Mount):
    """The dashboard draws itself under any path it is given. Those of the API are not its own: a wrong one, or a
    wrong method, is the API's to refuse, as JSON."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope["path"]
        if path.startswith("/v1/") or path in OPEN or path == "/metrics":
            return Match.NONE, {}
        return super().matches(scope)


def _view_for(
    request: Request, keeper: ViewKeeper, credentials: Credentials, *, log_in: Callable[[], None]
) -> Callable[[], DashboardView]:
    """The view as this visitor may see it, each time it is asked for; it never waits for Redis.

    A page stays open for hours, so each time it is asked whether its visitor's token still holds.
    """
    caller = request.state.caller
    assert isinstance(caller, Caller)
    proof = credentials.proof(caller, request.headers)

    def view() -> DashboardView:
        if not credentials.still_holds(proof):
            log_in()
            return dashboard_view(ClusterView(reason="Your session has ended."), age_s=0.0)
        seen = keeper.view if caller.tenant is None else view_of_tenant(keeper.view, caller.tenant)
        return dashboard_view(seen, age_s=keeper.age_s())

    return view
