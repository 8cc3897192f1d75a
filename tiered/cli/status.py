"""``tiered status``: the whole cluster on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.cli.api import CoordinatorOption, connect
from tiered.cli.bodies import Stats
from tiered.cli.cluster_file import read_cluster_file
from tiered.cli.output import JsonFlag, human_bytes, human_count, human_share, print_json, print_lines


def status_command(coordinator: CoordinatorOption = None, json: JsonFlag = False) -> None:
    """Show the coordinator, the nodes, what the tiers hold, and where tokens were found."""
    with connect(coordinator) as client:
        stats = client.stats()
        others = other_coordinators(client.url)
        if json:
            print_json({"coordinator": client.url, "coordinators": [client.url, *others], "stats": stats})
        else:
            print_lines([*coordinator_lines(client.url, others, stats), *status_lines(stats)])


def other_coordinators(url: str) -> list[str]:
    """Of this machine's cluster, the replicas beside the one that was asked; none if that is of another cluster."""
    state = read_cluster_file()
    if state is None or url not in state.coordinators:
        return []
    return [other for other in state.coordinators if other != url]


def coordinator_lines(url: str, others: Sequence[str], stats: Stats) -> list[tuple[str, str]]:
    """The one that was asked, and whether it leads; then its replicas, and which replica leads if it is another."""
    leads = " (leads)" if stats.is_leader else ""
    lines = [("coordinator", url + leads), *(("coordinator", other) for other in others)]
    if stats.leader is not None and not stats.is_leader:
        lines.append(("leader", stats.leader))
    return lines


def status_lines(stats: Stats) -> list[tuple[str, str]]:
    """The screen as names and values."""
    hot, redis, tokens = stats.tiers.hot, stats.tiers.redis, stats.tokens
    lines = [
        ("nodes", f"{stats.nodes.alive} of {stats.nodes.known} alive"),
        (
            "hot tier",
            f"{human_bytes(hot.bytes)} of {human_bytes(hot.capacity_bytes)} "
            f"({human_share(hot.bytes, hot.capacity_bytes)}), {human_count(hot.blocks)} blocks",
        ),
        (
            "redis tier",
            f"{human_bytes(redis.bytes)}, {human_count(redis.blocks)} blocks, "
            f"{human_bytes(redis.pending_bytes)} on the way",
        ),
        ("tokens asked", human_count(tokens.asked)),
    ]
    for name in ("hot", "peer", "redis", "missed"):
        count: int = getattr(tokens, name)
        lines.append((f"  {name}", f"{human_count(count)} ({human_share(count, tokens.asked)})"))
    if stats.stale:
        lines.append(("warning", "the coordinator cannot read Redis; these are the last numbers it saw"))
    return lines
