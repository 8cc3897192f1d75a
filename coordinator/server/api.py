"""Puts the resources together into one FastAPI application; owns nothing but its composition."""

from __future__ import annotations

from fastapi import FastAPI

from coordinator.metrics import build_registry
from coordinator.server import health, nodes, pins, tenants, usage
from coordinator.server.body_limit import BodyLimit
from coordinator.server.errors import install_error_handlers
from coordinator.server.services import Services
from tiered import __version__


def build_api(services: Services) -> FastAPI:
    app = FastAPI(
        title="Tiered coordinator",
        version=__version__,
        summary="Tenants, nodes and usage of one KV cache cluster.",
    )
    app.state.services = services
    app.state.metrics = build_registry(lambda: services.keeper.view, services.findings)
    app.add_middleware(BodyLimit)
    install_error_handlers(app)
    for resource in (tenants, pins, nodes, usage, health):
        app.include_router(resource.router)
    return app
