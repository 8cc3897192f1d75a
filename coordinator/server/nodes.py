"""``/v1/nodes``: the workers that have joined, and how to reach them."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from coordinator.server.auth import ViewDep
from coordinator.view.snapshot import peer_address
from tiered.types import DrainProgress, DrainState, NodeView

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class DrainBody(BaseModel):
    """How far a node is on its way out. Blocks: those that were in no other place."""

    state: DrainState
    left_blocks: int = Field(description="Still to be moved to Redis.")
    moved_blocks: int
    stuck_blocks: int = Field(description="Of those left, how many Redis did not take when last asked.")


class SourceRateBody(BaseModel):
    """A fetch of n bytes takes latency_s + n / bytes_per_s; bytes_per_s 0: never measured."""

    latency_s: float
    bytes_per_s: float


class RatesBody(BaseModel):
    """What the node has measured of its sources and its engines."""

    peers: SourceRateBody
    redis: SourceRateBody
    prefill_tokens_per_s: float = Field(description="Of the attached engines; 0 while none has said.")
    waiting_s: float = Field(description="For how long the fetches that wait now keep the movers busy.")


class TrafficBody(BaseModel):
    """Payload bytes of this life of the node; zeros to a tenant's token."""

    peer_received_bytes: int
    peer_sent_bytes: int
    redis_read_bytes: int
    redis_written_bytes: int
    breaker_open: int = Field(description="1 while the node leaves Redis alone after repeated failures.")


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
    free_blocks: int = Field(description="To a tenant's token: all that the tenant does not hold.")
    block_bytes: int
    engines: int = Field(description="Engines attached to the worker; 0 to a tenant's token.")
    layout: str
    scopes: list[str] = Field(description="Of the attached engines, each as JSON; none to a tenant's token.")
    pid: int
    hot_bytes: int
    version: str
    drain: DrainBody
    rates: RatesBody
    traffic: TrafficBody


class NodesBody(BaseModel):
    nodes: list[NodeBody]


@router.get("")
def list_nodes(view: ViewDep) -> NodesBody:
    """Every listed node, alive or not; one whose lease lapsed stays listed until it is swept."""
    return NodesBody(nodes=[node_body(node) for node in view.nodes])


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
        scopes=list(stats.scopes),
        pid=info.pid,
        hot_bytes=sum(tenant.hot_bytes for tenant in stats.tenants.values()),
        version=info.version,
        drain=drain_body(stats.drain),
        rates=RatesBody.model_validate(msgspec.to_builtins(stats.rates)),
        traffic=TrafficBody(**msgspec.structs.asdict(stats.traffic)),
    )


def drain_body(progress: DrainProgress) -> DrainBody:
    return DrainBody(**msgspec.structs.asdict(progress))
