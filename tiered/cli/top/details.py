"""A tenant or a node that somebody has opened, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from rich.text import Text

from tiered.cli.bodies import Node, Tenant, UsageRow
from tiered.cli.explained import Event
from tiered.cli.output import human_bytes, human_count
from tiered.cli.tenants import redis_limit
from tiered.cli.top.columns import node_state
from tiered.cli.top.flow import found
from tiered.cli.top.picture import Picture
from tiered.cli.top.sample import REDIS, Subject
from tiered.cli.top.words import NOTHING, bytes_per_second, cut, per_second, share
from tiered.types import DrainState, SourceRate

_PLACES_MAX = 100
"""Places or tenants listed; beyond them a line says how many more there are."""


def detail_text(picture: Picture, subject: Subject, width: int) -> Text:
    """What is known of it by now; what is still being asked says so."""
    if subject.kind is Tenant:
        tenant = next((each for each in picture.sample.tenants if each.policy.tenant == subject.name), None)
        known = _gone(subject) if tenant is None else _tenant_lines(picture, tenant)
    else:
        node = next((each for each in picture.sample.nodes if each.node == subject.name), None)
        known = _gone(subject) if node is None else _node_lines(picture, node)
    return Text("\n").join([*known, Text(""), *_asked_lines(picture, subject, width)])


def _gone(subject: Subject) -> list[Text]:
    what = "tenant" if subject.kind is Tenant else "node"
    return [Text(f"{what} {subject.name} is no longer listed")]


def _tenant_lines(picture: Picture, tenant: Tenant) -> list[Text]:
    flow, policy, tokens = picture.flow.of_tenant(tenant.policy.tenant), tenant.policy, tenant.tokens
    pressure, recent = tenant.pressure, flow.pressure
    total = policy.hot_total_limit_bytes
    limits = [] if policy.hot_limit_bytes is None else [f"{human_bytes(policy.hot_limit_bytes)} a node"]
    limits += [] if policy.hot_limit_blocks is None else [f"{human_count(policy.hot_limit_blocks)} blocks a node"]
    limits += [] if total is None else [f"{human_bytes(total)} in all"]
    return [
        _line("tenant", policy.tenant if tenant.named else f"{policy.tenant} (the default's bounds)"),
        _line(
            "asked", f"{per_second(picture.flow.per_s(flow.tokens.asked))}, {human_count(tokens.asked)} since start"
        ),
        _line(
            "hit",
            f"{share(found(flow.tokens), flow.tokens.asked)} now, {share(found(tokens), tokens.asked)} since start: "
            f"{share(tokens.hot, tokens.asked)} hot, {share(tokens.peer, tokens.asked)} peer, "
            f"{share(tokens.redis, tokens.asked)} redis",
        ),
        _line(
            "hot",
            f"{human_bytes(tenant.hot.used_bytes)}; {human_bytes(tenant.hot_reserved_in_force_bytes)} reserved, "
            f"limit {', '.join(limits) or 'none'}",
        ),
        _line(
            "",
            f"{human_bytes(tenant.hot_borrowed_bytes)} borrowed, "
            f"{human_bytes(tenant.hot_idle_reserved_bytes)} of its own lent",
        ),
        _line(
            "redis",
            f"{human_bytes(tenant.redis.used_bytes)}, {human_bytes(tenant.redis.pending_bytes)} on the way; "
            f"{human_bytes(policy.redis_reserved_bytes)} reserved, limit {redis_limit(tenant)}",
        ),
        _line(
            "evicted",
            f"{human_count(pressure.evicted_blocks)} blocks, {human_count(pressure.suffered_blocks)} of them for "
            f"others; caused {human_count(pressure.caused_blocks)} of others'",
        ),
        _line(
            "refused",
            f"{human_count(pressure.refused_blocks)} blocks, {human_count(recent.refused_blocks)} of them just now; "
            f"over quota: {policy.over_quota}",
        ),
        _line("weight", f"{policy.weight:g}; sharing {policy.sharing}; codec {policy.redis_codec}"),
    ]


def _node_lines(picture: Picture, node: Node) -> list[Text]:
    flow, per_s, rates = picture.flow.of_node(node.node), picture.flow.per_s, node.rates
    used = node.pool_blocks - node.free_blocks
    if not node.alive:
        return [
            _line("node", f"{node.node}, {node_state(node)}, epoch {node.epoch}: its lease has lapsed"),
            _line("pool", "gone with it"),
            _line("address", f"peers {node.peer}, metrics {node.metrics_port}, socket {node.socket_path}"),
            _line("version", f"{node.version or NOTHING}, pid {node.pid or NOTHING}"),
        ]
    lease = f", {node.lease_left_s:.1f} s of its lease left" if node.alive else ": its lease has lapsed"
    lines = [
        _line("node", f"{node.node}, {node_state(node)}, epoch {node.epoch}{lease}"),
        _line(
            "pool",
            f"{human_count(used)} of {human_count(node.pool_blocks)} blocks ({share(used, node.pool_blocks)}) of "
            f"{human_bytes(node.block_bytes)}; {human_bytes(node.hot_bytes)} of {human_bytes(node.capacity_bytes)}",
        ),
        _line("engines", f"{node.engines} attached{f', {node.layout}' if node.layout else ''}"),
        _line(
            "prefill",
            f"{per_second(rates.prefill_tokens_per_s or None)} measured; fetches wait {rates.waiting_s:.2f} s",
        ),
        _line(
            "peers",
            f"{bytes_per_second(per_s(flow.peer_received_bytes))} received, "
            f"{bytes_per_second(per_s(flow.peer_sent_bytes))} sent; {_source(rates.peers)}",
        ),
        _line(
            "redis",
            f"{bytes_per_second(per_s(flow.redis_read_bytes))} read, "
            f"{bytes_per_second(per_s(flow.redis_written_bytes))} written; {_source(rates.redis)}; breaker "
            f"{'OPEN' if node.traffic.breaker_open else 'closed'}",
        ),
        _line("address", f"peers {node.peer}, metrics {node.metrics_port}, socket {node.socket_path}"),
        _line("version", f"{node.version or NOTHING}, pid {node.pid or NOTHING}"),
    ]
    drain = node.drain
    if drain.state is not DrainState.NONE:
        stuck = f", {human_count(drain.stuck_blocks)} refused by Redis" if drain.stuck_blocks else ""
        moved = f"{human_count(drain.left_blocks)} blocks left, {human_count(drain.moved_blocks)} moved{stuck}"
        lines.append(_line("drain", f"{drain.state.value}: {moved}"))
    return lines


def _asked_lines(picture: Picture, subject: Subject, width: int) -> list[Text]:
    detail = picture.detail
    if picture.detail_failure:
        return [Text(f"not known: {picture.detail_failure}", style="yellow")]
    if detail is None or detail.subject != subject:
        return [Text("asking ...")]
    places = "bytes by tier and node" if subject.kind is Tenant else "bytes by tenant"
    lines = [_head(f"{places:<28}{'used':>12}{'reserved':>12}{'limit':>12}{'blocks':>12}")]
    largest = sorted(detail.usage, key=lambda row: (-row.bytes, row.tenant, row.node or ""))
    lines += [_usage_line(row, subject) for row in largest[:_PLACES_MAX]] or [Text("nothing anywhere")]
    if len(largest) > _PLACES_MAX:
        lines.append(Text(f"and {human_count(len(largest) - _PLACES_MAX)} more"))
    lines += [Text(""), _head("what happened of late, the newest first")]
    lines += _event_lines(detail.events, width)
    if not detail.events and not detail.silent:
        lines.append(Text("nothing that anybody remembers"))
    return lines + [Text(each, style="yellow") for each in detail.silent]


def _usage_line(row: UsageRow, subject: Subject) -> Text:
    name = row.tenant if subject.kind is Node else f"{row.tier} on {row.node}" if row.node else REDIS
    return Text(
        f"{cut(name, 27):<28}{human_bytes(row.bytes):>12}{human_bytes(row.reserved_bytes):>12}"
        f"{human_bytes(row.limit_bytes):>12}{human_count(row.blocks):>12}"
    )


def _event_lines(events: Sequence[Event], width: int) -> list[Text]:
    """A line for each, its sentence as far as there is room; it is folded by who shows it, not cut."""
    today = datetime.now().astimezone().date()
    return [
        Text.assemble(
            (f"{_when(event.at.astimezone(), today)} ", "bold"),
            f"{cut(event.where, 12):<12} ",
            f"{(event.block or NOTHING)[:8]:<8} " if width >= 100 else "",
            event.sentence,
        )
        for event in events
    ]


def _when(at: datetime, today: date) -> str:
    """Without the day where that is today."""
    return f"{at:%H:%M:%S}" if at.date() == today else f"{at:%Y-%m-%d %H:%M:%S}"


def _source(rate: SourceRate) -> str:
    if not rate.bytes_per_s:
        return "never measured"
    return f"measured {bytes_per_second(rate.bytes_per_s)} after {1_000 * rate.latency_s:.1f} ms"


def _line(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<9}", "bold"), value)


def _head(text: str) -> Text:
    return Text(text, style="bold underline")
