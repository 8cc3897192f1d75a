"""``/v1/nodes/{node}/drain``: empty a node in order before it goes.

A request is of the node's present life. The worker sees it within half a second, admits nothing new, moves what no
other place has to Redis, and leaves the cluster.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from coordinator.server.auth import CHANGE, WHOLE_CLUSTER
from coordinator.server.errors import ApiError, responses
from coordinator.server.nodes import DrainBody, drain_body
from coordinator.server.services import Services, ServicesDep
from tiered.types import NodeId, NodeView

router = APIRouter(prefix="/v1/nodes/{node}/drain", tags=["nodes"])

Name = Annotated[str, Path(alias="node", description="The node's name.")]


@router.post("", status_code=202, responses=responses(401, 404, 503), **CHANGE)
def drain_node(name: Name, services: ServicesDep) -> DrainBody:
    """Ask the node to drain; asked again while it does, nothing changes."""
    services.keeper.refresh()  # it may have joined a moment ago
    node = _alive(name, services)
    request = services.drains.asked(NodeId(name))
    if request is None or request.epoch != node.epoch:
        services.drains.ask(NodeId(name), node.epoch)
    return drain_body(node.stats.drain)


@router.get("", responses=responses(404, 503), **WHOLE_CLUSTER)
def get_drain(name: Name, services: ServicesDep) -> DrainBody:
    """How far it is; of a node that was drained and has left, what came of it."""
    request = services.drains.asked(NodeId(name))
    node = _listed(name, services)
    if request is not None and request.outcome is not None and (node is None or node.epoch == request.epoch):
        return drain_body(request.outcome)
    return drain_body(_alive(name, services).stats.drain)


@router.delete("", status_code=204, responses=responses(401, 404, 503), **CHANGE)
def call_off(name: Name, services: ServicesDep) -> Response:
    """Call the drain off: the node admits blocks again, and joins again if it had left and its process still runs."""
    if not services.drains.cancel(NodeId(name)):
        raise ApiError(404, f"nothing was asked of node {name!r}", field="node")
    return Response(status_code=204)


def _listed(name: str, services: Services) -> NodeView | None:
    return next((node for node in services.keeper.view.nodes if node.info.node == name), None)


def _alive(name: str, services: Services) -> NodeView:
    node = _listed(name, services)
    if node is None or not node.alive:
        raise ApiError(404, f"no node {name!r} is alive; {_hint(name, services)}", field="node")
    return node


def _hint(name: str, services: Services) -> str:
    request = services.drains.asked(NodeId(name))
    if request is not None and request.outcome is not None:
        return f"it was drained and has left; tiered drain {name} --cancel calls it back while its process runs"
    return "`tiered nodes` lists those that are"
