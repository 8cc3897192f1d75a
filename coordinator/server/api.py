"""Puts the resources together into one FastAPI application; owns nothing but its composition."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from coordinator.metrics import Sources, build_registry
from coordinator.server import (
    access,
    blocks,
    capacity,
    clear,
    drain,
    evictions,
    health,
    history,
    leader,
    login,
    nodes,
    pins,
    prefixes,
    route,
    tenants,
    usage,
)
from coordinator.server.auth import caller_of
from coordinator.server.body_limit import BodyLimit
from coordinator.server.document import install_document
from coordinator.server.errors import install_error_handlers
from coordinator.server.gate import Gate
from coordinator.server.services import Services
from tiered import __version__


def build_api(services: Services) -> FastAPI:
    app = FastAPI(
        title="Tiered coordinator",
        version=__version__,
        summary="Tenants, nodes and usage of one KV cache cluster.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.metrics = build_registry(
        Sources(
            view=lambda: services.keeper.view,
            age_s=services.keeper.age_s,
            findings=services.findings,
            quiet_findings=services.quiet_findings,
            mirror=services.mirror_facts,
            standing=services.standing,
            lost=services.lost_nodes,
        )
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(Gate, credentials=services.credentials)
    install_error_handlers(app)
    for resource in (
        tenants,
        pins,
        access,
        nodes,
        drain,
        usage,
        history,
        capacity,
        prefixes,
        route,
        blocks,
        clear,
        evictions,
        leader,
    ):
        app.include_router(resource.router, dependencies=[Depends(caller_of)])
    app.include_router(health.router)
    app.include_router(login.router)
    install_document(app)
    return app
