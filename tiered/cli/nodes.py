"""``tiered nodes``: the workers, their leases and their pools."""

from __future__ import annotations

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Node
from tiered.cli.output import JsonFlag, human_bytes, human_count, print_json, print_table
from tiered.types import DrainState

_COLUMNS = (
    "node",
    "state",
    "epoch",
    "hot",
    "capacity",
    "free blocks",
    "engines",
    "peer",
    "metrics",
    "socket",
)


def nodes_command(coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """List the workers that have joined, alive or not."""
    with connect(coordinator) as client:
        nodes = client.nodes()
    if json:
        print_json({"nodes": nodes})
    elif nodes:
        print_table("", _COLUMNS, [node_row(node) for node in nodes])
    else:
        print("no worker has joined this cluster yet")


def node_row(node: Node) -> list[str]:
    state = f"alive, {node.lease_left_s:.0f} s left" if node.alive else "lapsed"
    if node.alive and node.drain.state is not DrainState.NONE:
        state = f"{node.drain.state.value}, {human_count(node.drain.left_blocks)} blocks left"
    return [
        node.node,
        state,
        str(node.epoch),
        human_bytes(node.hot_bytes),
        human_bytes(node.capacity_bytes),
        f"{human_count(node.free_blocks)} of {human_count(node.pool_blocks)}",
        str(node.engines),
        node.peer,
        str(node.metrics_port),
        node.socket_path,
    ]
