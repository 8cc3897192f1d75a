"""Each page held against the API, and against what Prometheus would scrape of the coordinator and the workers.

While it is compared nobody may ask the cluster for anything: numbers must stand still.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.browser.conftest import Browser
from tests.support.worker_process import scrape, until

PAGES: Final = ("overview", "tenants", "nodes", "prefixes", "evictions", "capacity")

READY: Final = {
    "overview": ".line[data-node]",
    "tenants": "tr[data-key]",
    "nodes": "tr[data-key]",
    "prefixes": "tr[data-hash]",
    "evictions": ".log li",
    "capacity": "section[data-tenant]",
}
"""What a page of a cluster that works is drawn once it has."""

_TIERS: Final = ("hot", "peer", "redis", "missed")
_LOOKS: Final = 8
_GLANCES: Final = 5
"""Lines of the overview's short lists."""

_MISFIT: Final = 0.15
"""A curve farther than this from what was measured answers nothing."""

_TRAFFIC: Final = {
    "from-peers": ("peer_received_bytes", "tiered_peer_received_bytes_total"),
    "to-peers": ("peer_sent_bytes", "tiered_peer_sent_bytes_total"),
    "from-redis": ("redis_read_bytes", "tiered_redis_read_bytes_total"),
    "to-redis": ("redis_written_bytes", "tiered_redis_written_bytes_total"),
}
"""A column of the nodes' table -> the API's field, and the worker's series."""


def address(url: str, page: str) -> str:
    return f"{url}/{'' if page == 'overview' else page}"


def get(url: str, path: str) -> Any:
    answer = httpx.get(url + path, timeout=10.0, trust_env=False)
    answer.raise_for_status()
    return answer.json()


def metrics(url: str) -> dict[tuple[str, ...], float]:
    """Of the coordinator: (name, label values in order of their names) -> value."""
    return scrape(int(url.rpartition(":")[2]))


def numbers_of(browser: Browser, row: str) -> dict[str, str]:
    """A table row's exact numbers, by column."""
    found: dict[str, str] = browser.run(
        "return Object.fromEntries([...document.querySelectorAll(`tr[data-key='${arguments[0]}'] [data-column]`)]"
        ".map(cell => [cell.dataset.column, cell.dataset.value]))",
        row,
    )
    return found


def limit_shown(browser: Browser, tenant: str, tier: str) -> int | None:
    """In the tenants' table."""
    cell = f"tr[data-key='{tenant}'] [data-column='{tier}'] [data-limit]"
    limit: str = browser.run("return document.querySelector(arguments[0]).dataset.limit", cell)
    return int(limit) if limit else None


def tokens_shown(browser: Browser) -> dict[str, int]:
    """The overview's, all of one moment; empty while there are none."""
    found: dict[str, str] = browser.run(
        "return Object.fromEntries([...document.querySelectorAll(\"[data-field^='tokens.']\")]"
        ".map(each => [each.dataset.field.slice(7), each.dataset.value ?? '']))"
    )
    return {name: int(value) for name, value in found.items() if value}


def wait_still(url: str, *, within_s: float = 60.0) -> None:
    """Until the coordinator has said the same several times over."""
    seen: list[Any] = []

    def still() -> bool:
        stats = get(url, "/v1/stats")
        for moves in ("age_s", "mirror"):
            stats.pop(moves)
        seen.append((stats, get(url, "/v1/tenants")))
        time.sleep(0.3)
        return len(seen) > _LOOKS and all(each == seen[-1] for each in seen[-_LOOKS:])

    until(still, "the numbers stand still", within_s=within_s)


def hold_overview(browser: Browser, url: str) -> None:
    browser.open(address(url, "overview"))
    stats, scraped = get(url, "/v1/stats"), metrics(url)
    tokens = {tier: stats["tokens"][tier] for tier in _TIERS}
    until(
        lambda: tokens_shown(browser) == {"asked": stats["tokens"]["asked"], **tokens},
        f"the page says {stats['tokens']}",
    )
    assert sum(tokens.values()) == stats["tokens"]["asked"] > 0
    for tier, n in tokens.items():
        assert _sum(scraped, "tiered_tenant_tokens_total", tier) == n
    for tier in ("hot", "redis"):
        assert browser.value(f"[data-field='bytes.{tier}']") == str(stats["tiers"][tier]["bytes"])
        assert scraped["tiered_tier_bytes", tier] == stats["tiers"][tier]["bytes"]
    assert float(browser.value("[data-field='saved_prefill_s']") or 0) == stats["saved_prefill_s"] > 0
    nodes = {body["node"]: body for body in get(url, "/v1/nodes")["nodes"]}
    until(lambda: set(browser.values(".line[data-node]", "node")) == set(nodes), "it lists the nodes")
    assert {name for name, body in nodes.items() if body["alive"]} == {
        key[1] for key, up in scraped.items() if key[0] == "tiered_node_up" and up
    }
    assert "live" in browser.text("#freshness")
    hold_glances(browser, url)


def hold_glances(browser: Browser, url: str) -> None:
    """Who gave way to whom, of what nodes remember; and for each tenant the change of a tier that brings most."""
    events = get(url, "/v1/evictions?what=evicted&what=refused&limit=500")["events"]
    sums: Counter[tuple[str, str, str]] = Counter()
    for each in events:
        other = each["detail"].get("for_tenant", "") if each["what"] == "evicted" else ""
        if each["what"] == "refused" or other not in ("", each["tenant"]):
            sums[each["tenant"], other, each["what"]] += each["blocks"]
    pairs = {(*pair, str(n)) for pair, n in sums.items()}

    def same_pairs() -> bool:
        shown = browser.rows(".is-pair", "tenant", "other", "what", "blocks")
        most = sorted((int(n) for *_, n in pairs), reverse=True)[:_GLANCES]
        return set(shown) <= pairs and [int(n) for *_, n in shown] == most

    until(same_pairs, f"the page sums up who gave way: {pairs}", within_s=20)

    def same_gains() -> bool:
        gains, believed = [], False
        for body in get(url, "/v1/capacity?limit=50")["tenants"]:
            is_far = (
                body["measured"] and abs(body["measured"]["hit_ratio"] - body["predicted"]["hit_ratio"]) > _MISFIT
            )
            believed = believed or bool(body["nodes"] and not is_far)
            changes = [each for each in body["what_if"] if each["points"] >= 0.05]
            if changes and body["nodes"] and not is_far:
                best = max(changes, key=lambda each: float(each["points"]))
                gains.append((best["tokens_per_hour"], body["tenant"], best["tier"], str(best["more_bytes"])))
        if not believed:  # nothing is claimed of curves that do not fit
            return not browser.all(".is-gain") and "Nothing now" not in browser.text("main")
        gains.sort(key=lambda gain: -gain[0])
        return browser.rows(".is-gain", "tenant", "tier", "more") == [gain[1:] for gain in gains[:_GLANCES]]

    until(same_gains, "the page lists the changes that bring most", within_s=40)


def hold_tenants(browser: Browser, url: str) -> None:
    browser.open(address(url, "tenants"))
    browser.wait(READY["tenants"])
    scraped = metrics(url)
    for body in get(url, "/v1/tenants")["tenants"]:
        name, tokens, pressure = body["policy"]["tenant"], body["tokens"], body["pressure"]
        shown = numbers_of(browser, name)
        assert shown["asked"] == str(tokens["asked"])
        assert scraped["tiered_tenant_asked_tokens_total", name] == tokens["asked"]
        for tier in _TIERS:
            assert scraped["tiered_tenant_tokens_total", tier, name] == tokens[tier]
        for tier in ("hot", "redis"):
            assert shown[tier] == str(body[tier]["used_bytes"])
            assert scraped["tiered_tenant_bytes", name, tier] == body[tier]["used_bytes"]
        assert limit_shown(browser, name, "redis") == scraped.get(("tiered_tenant_limit_bytes", name, "redis"))
        for column, field, series in (
            ("borrowed", "hot_borrowed_bytes", "tiered_tenant_borrowed_bytes"),
            ("lent", "hot_idle_reserved_bytes", "tiered_tenant_lent_bytes"),
        ):
            assert shown[column] == str(body[field])
            assert scraped[series, name, "hot"] == body[field]
        for column in ("caused", "suffered", "refused"):
            assert shown[column] == str(pressure[f"{column}_blocks"])


def hold_nodes(browser: Browser, url: str) -> None:
    """Those that are alive; what a lost one had is not shown."""
    browser.open(address(url, "nodes"))
    browser.wait(READY["nodes"])
    bodies = {body["node"]: body for body in get(url, "/v1/nodes")["nodes"] if body["alive"]}
    usage = get(url, "/v1/usage")["usage"]
    scraped = metrics(url)
    until(lambda: set(bodies) <= set(browser.values(READY["nodes"], "key")), "it lists those alive")
    for name, body in bodies.items():
        shown, worker = numbers_of(browser, name), scrape(body["metrics_port"])
        used = body["pool_blocks"] - body["free_blocks"]
        assert shown["epoch"] == str(body["epoch"]) == f"{worker['tiered_worker_epoch',]:.0f}"
        assert shown["pool"] == str(used)
        assert scraped["tiered_node_pool_blocks", name, "used"] == used
        assert worker["tiered_pool_size_blocks",] - worker["tiered_pool_blocks", "free"] == used
        assert shown["engines"] == str(body["engines"]) == f"{worker['tiered_worker_engines',]:.0f}"
        for column, (field, series) in _TRAFFIC.items():
            assert shown[column] == str(body["traffic"][field])
            assert worker[series,] == body["traffic"][field]
        here = {row["tenant"]: row["bytes"] for row in usage if row["node"] == name}
        assert {key[1]: n for key, n in worker.items() if key[0] == "tiered_hot_bytes" and n} == here
        _open_row(browser, name)
        place = f"tr[data-key='{name}'] + tr.detail [data-tenant][data-value]"
        until(
            lambda place=place, here=here: (
                {tenant: int(n) for tenant, n in browser.rows(place, "tenant", "value")} == here
            ),
            f"{name} shows its pool by tenant",
        )


def hold_prefixes(browser: Browser, url: str) -> None:
    browser.open(address(url, "prefixes"))
    browser.wait(READY["prefixes"])

    def same() -> bool:
        listed = get(url, "/v1/prefixes?limit=100")["prefixes"]
        shown = browser.rows("tr[data-hash]", "hash", "blocks", "hits")
        return sorted(shown) == sorted((each["hash"], str(each["blocks"]), str(each["hits"])) for each in listed)

    until(same, "the page lists what the API lists, with its numbers", within_s=20)


def hold_evictions(browser: Browser, url: str) -> None:
    browser.open(address(url, "evictions"))
    browser.wait(READY["evictions"])
    told = [(each["what"], each["tenant"], each["where"]) for each in get(url, "/v1/evictions?limit=100")["events"]]
    until(lambda: browser.rows(".log li", "what", "tenant", "where") == told, "the page lists what the API lists")


def hold_capacity(browser: Browser, url: str) -> None:
    """Curves are made anew every ten seconds: until both are of one moment."""
    browser.open(address(url, "capacity"))
    browser.wait(READY["capacity"])
    hold_changes(browser, url, "", within_s=30)
    drawn = {each["tenant"]: each for each in get(url, "/v1/capacity")["tenants"] if each["nodes"]}
    assert set(browser.values(READY["capacity"], "tenant")) == set(drawn)
    for name, body in drawn.items():
        said = f"{100 * body['measured']['hit_ratio']:.1f} % measured"
        until(lambda name=name, said=said: said in browser.text(f"section[data-tenant='{name}']"), said)


def hold_changes(browser: Browser, url: str, query: str, *, within_s: float = 20.0) -> None:
    """What a change of a tier would bring each tenant."""

    def same() -> bool:
        for body in get(url, f"/v1/capacity{query}")["tenants"]:
            rows = f"section[data-tenant='{body['tenant']}'] tbody tr"
            shown = [(tier, more, float(n)) for tier, more, n in browser.rows(rows, "tier", "more", "points")]
            asked = [(each["tier"], str(each["more_bytes"]), each["points"]) for each in body["what_if"]]
            if sorted(shown) != sorted(asked):
                return False
        return True

    until(same, "the changes on the page are the API's", within_s=within_s)


HOLDS: Final[dict[str, Callable[[Browser, str], None]]] = {
    "overview": hold_overview,
    "tenants": hold_tenants,
    "nodes": hold_nodes,
    "prefixes": hold_prefixes,
    "evictions": hold_evictions,
    "capacity": hold_capacity,
}


def _sum(scraped: dict[tuple[str, ...], float], series: str, label: str) -> float:
    return sum(value for key, value in scraped.items() if key[0] == series and label in key[1:])


def _open_row(browser: Browser, name: str) -> None:
    toggle = browser.find(f"tr[data-key='{name}'] .toggle")
    if toggle.get_attribute("aria-expanded") == "false":
        toggle.click()
