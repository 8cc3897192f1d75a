"""``/v1/nodes``: the workers that have joined, and how to reach them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.server.services import ServicesDep
from coordinator.view.snapshot import peer_address
from tiered.types import NodeView

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class NodeBody(BaseModel):
    node: str
    epoch: int = Field(description="Grows at every join; messages of an older epoch are refused.")
    alive: bool
    lease_left_s: float
    peer: str = Field(description="host:port that serves blocks to other workers.")
    metrics_port: int
    socket_path: str
    capacity_bytes: int
    pool_blocks: int
    free_blocks: int
    block_bytes: int
    engines: int = Field(description="Engines attached to the worker.")
    layout: str
    hot_bytes: int
    version: str


class NodesBody(BaseModel):
    nodes: list[NodeBody]


@router.get("")
def list_nodes(services: ServicesDep) -> NodesBody:
    """Every listed node, alive or not; one whose lease lapsed stays listed until it is swept."""
    return NodesBody(nodes=[node_body(node) for node in services.keeper.view.nodes])


def node_body(node: NodeView) -> NodeBody:
    info, stats = node.info, node.stats
    return NodeBody(
        node=info.node,
        epoch=node.epoch,
        alive=node.alive,
        lease_left_s=round(node.lease_left_s, 3),
        peer=peer_address(node),
        metrics_port=info.metrics_port,
        socket_path=info.socket_path,
        capacity_bytes=info.capacity_bytes,
        pool_blocks=stats.pool_blocks,
        free_blocks=stats.free_blocks,
        block_bytes=stats.block_bytes,
        engines=stats.engines,
        layout=stats.layout,
        hot_bytes=sum(tenant.hot_bytes for tenant in stats.tenants.values()),
        version=info.version,
    )
