"""The dashboard as people see it, over real workers: its numbers, what it shows of a loss, what can be changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.busy import ACME, ADMIN, GLOBEX, LEASE_S, NODES, READER, TENANTS, Busy, busy_cluster, talk
from tests.browser.conftest import DESKTOP, PHONE, Browser
from tests.support.content import LAYOUT, hashes_of
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer

PAGES = ("overview", "tenants", "nodes", "prefixes", "evictions", "capacity")
B = LAYOUT.block_bytes


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("redis"), maxmemory_bytes=None) as server,
        busy_cluster(server) as started,
    ):
        for name in NODES:
            started.attach(name)
        until(lambda: started.rounds > 150, "the engines have asked often", within_s=60)
        yield started
        assert started.wrong == []


@pytest.fixture
def resting(busy: Busy) -> Iterator[Busy]:
    """Nobody asks, so that numbers stand still once the workers have said them."""
    busy.rest()
    seen: list[Any] = []

    def still() -> bool:
        seen.append([busy.coordinator.get(path) for path in ("/v1/stats", "/v1/tenants")])
        seen[-1][0].pop("age_s")
        seen[-1][0].pop("mirror")
        time.sleep(0.3)
        return len(seen) > 8 and all(each == seen[-1] for each in seen[-8:])

    until(still, "the numbers stand still", within_s=60)
    yield busy
    busy.go_on()


def address(busy: Busy, page: str) -> str:
    return f"{busy.url}/{'' if page == 'overview' else page}"


def metric(busy: Busy, start: str) -> dict[str, float]:
    """Samples of /metrics that begin so: labels as they are written -> value."""
    lines = httpx.get(f"{busy.url}/metrics", timeout=10.0, trust_env=False).text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start)}


def numbers_of(browser: Browser, row: str) -> dict[str, str]:
    """A table row's exact numbers, by column."""
    found: dict[str, str] = browser.run(
        "return Object.fromEntries([...document.querySelectorAll(`tr[data-key='${arguments[0]}'] [data-column]`)]"
        ".map(cell => [cell.dataset.column, cell.dataset.value]))",
        row,
    )
    return found


def test_the_overview_shows_what_the_api_and_the_metrics_say(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting, "overview"))
    stats = resting.coordinator.get("/v1/stats")
    until(lambda: browser.value("[data-field='tokens.hot']") == str(stats["tokens"]["hot"]), "the page is current")
    for tier in ("hot", "peer", "redis", "missed"):
        assert browser.value(f"[data-field='tokens.{tier}']") == str(stats["tokens"][tier])
        counted = metric(resting, "tiered_tenant_tokens_total")
        assert sum(n for labels, n in counted.items() if f'"{tier}"' in labels) == stats["tokens"][tier]
    for tier in ("hot", "redis"):
        assert browser.value(f"[data-field='bytes.{tier}']") == str(stats["tiers"][tier]["bytes"])
        held = metric(resting, "tiered_tier_bytes")
        assert next(n for labels, n in held.items() if f'"{tier}"' in labels) == stats["tiers"][tier]["bytes"]
    assert float(browser.value("[data-field='saved_prefill_s']") or 0) == stats["saved_prefill_s"] > 0
    assert set(browser.values(".line[data-node]", "node")) == set(NODES)
    assert "live" in browser.text("#freshness")


def test_the_tables_show_what_the_api_says(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting, "tenants"))
    browser.wait("tr[data-key]")
    for body in resting.coordinator.get("/v1/tenants")["tenants"]:
        name, tokens = body["policy"]["tenant"], body["tokens"]
        shown = numbers_of(browser, name)
        assert shown["asked"] == str(tokens["asked"])
        assert shown["hot"] == str(body["hot"]["used_bytes"])
        assert shown["redis"] == str(body["redis"]["used_bytes"])
        assert shown["borrowed"] == str(body["hot_borrowed_bytes"])
        assert shown["lent"] == str(body["hot_idle_reserved_bytes"])
        for column in ("caused", "suffered", "refused"):
            assert shown[column] == str(body["pressure"][f"{column}_blocks"])
    browser.open(address(resting, "nodes"))
    browser.wait("[data-tenant][data-value]")
    usage = resting.coordinator.get("/v1/usage")["usage"]
    for body in resting.coordinator.get("/v1/nodes")["nodes"]:
        shown = numbers_of(browser, body["node"])
        assert shown["epoch"] == str(body["epoch"])
        assert shown["pool"] == str(body["pool_blocks"] - body["free_blocks"])
        assert shown["from-peers"] == str(body["traffic"]["peer_received_bytes"])
        here = {row["tenant"]: str(row["bytes"]) for row in usage if row["node"] == body["node"]}
        place = f"tr[data-key='{body['node']}'] + tr.detail [data-tenant][data-value]"
        until(
            lambda place=place, here=here: (
                dict(zip(browser.values(place, "tenant"), browser.values(place, "value"), strict=True)) == here
            ),
            f"{body['node']} shows its pool by tenant",
        )


def test_a_killed_worker_is_shown_within_its_lease_and_so_is_its_return(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy, "overview"))
    browser.wait(".line[data-node]")
    name = NODES[-1]
    busy.cluster.workers[name].kill()
    killed_at = time.monotonic()
    row = f".line[data-node='{name}'] .state"
    until(lambda: browser.text(row).endswith(("late", "lost")), "the page shows that it is silent", within_s=LEASE_S)
    silent_s = time.monotonic() - killed_at
    until(
        lambda: browser.all(f".alerts [data-about='lost'][data-node='{name}']"),
        "the page shows the loss",
        within_s=LEASE_S + 6.0,  # a read of the view and a look of the page, on a busy machine
    )
    lost_s = time.monotonic() - killed_at
    print(
        f"\nkilled worker: late on the page after {silent_s:.1f} s, lost after {lost_s:.1f} s, of {LEASE_S:g} s lease"
    )
    browser.shoot("overview-lost-desktop")
    busy.cluster.restart(name)
    until(lambda: not browser.all(".alerts [data-about='lost']"), "the alert ends", within_s=20)
    until(lambda: name in browser.values(".line[data-node]", "node"), "the node is listed again", within_s=20)
    busy.attach(name)


def test_a_quota_edited_on_the_page_takes_effect_at_the_workers(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy, "tenants"))
    browser.find(f"tr[data-key='{GLOBEX}'] .toggle").click()
    limit = browser.find("tr.detail input[name='hot_total_limit_bytes']")
    assert limit.get_attribute("value") == "3 MiB"

    def write(text: str) -> None:
        limit.clear()
        limit.send_keys(text)
        browser.find("tr.detail button[type='submit']").click()

    write("lots")
    fault = browser.find(f"#{limit.get_attribute('id')}-fault")
    assert "lots" in fault.text
    assert limit.get_attribute("aria-invalid") == "true"
    reserved = browser.find("tr.detail input[name='redis_reserved_bytes']")
    reserved.send_keys("5 GiB")  # behind the 0: five gibibytes and no more
    write("512 KiB")
    refused = browser.find(f"#{reserved.get_attribute('id')}-fault")
    until(lambda: "redis_reserved_bytes" in refused.text, "the API's refusal stands at its field")
    browser.shoot("tenants-refused-desktop", height_max=1_200)
    reserved.clear()
    write("512 KiB")
    until(lambda: "Saved" in browser.text("tr.detail"), "the page says that it is saved")
    policy = busy.coordinator.get(f"/v1/tenants/{GLOBEX}")["policy"]
    assert (policy["hot_total_limit_bytes"], policy["redis_reserved_bytes"]) == (512 << 10, 0)

    def held() -> int:
        return sum(int(busy.cluster.metrics(name).get(("tiered_hot_bytes", GLOBEX), 0)) for name in NODES)

    until(lambda: held() <= 512 << 10, "the workers hold no more than the new limit", within_s=20)
    until(lambda: "of 512 KiB" in browser.text(f"tr[data-key='{GLOBEX}']"), "the row shows it, too")
    browser.forgive("422")
    write("3 MiB")
    until(lambda: "of 3.0 MiB" in browser.text(f"tr[data-key='{GLOBEX}']"), "and that it was raised again")


def test_a_pasted_prompt_is_shown_block_by_block(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting, "prefixes"))
    browser.wait("tr[data-hash]")
    listed = resting.coordinator.get("/v1/prefixes?limit=100")["prefixes"]
    until(
        lambda: (
            set(browser.values("tr[data-hash]", "hash"))
            == {each["hash"] for each in resting.coordinator.get("/v1/prefixes?limit=100")["prefixes"]}
        ),
        "the page lists what the API lists",
    )
    assert any(each["within"] for each in listed)
    assert "1" in browser.values("tr[data-hash]", "depth")
    prompt = [*talk(0, 0, 1), *range(4 * LAYOUT.block_tokens)]
    browser.run("document.querySelector('textarea').value = arguments[0]", json.dumps(prompt))
    browser.find("input[list]").send_keys(ACME)
    browser.find("main form button[type='submit']").click()
    browser.wait(".coverage")
    asked = {"tenant": ACME, "tokens": prompt}
    answer = httpx.post(f"{resting.url}/v1/prefixes", json=asked, timeout=10.0, trust_env=False).json()
    (scope,) = answer["scopes"]
    (covered,), (blocks,) = browser.values(".coverage", "covered"), browser.values(".coverage", "blocks")
    assert (int(covered), int(blocks)) == (scope["covered_blocks"], scope["blocks"])
    assert int(covered) >= 12  # the system prompt that all of acme's conversations begin with
    cells = browser.all(".coverage .blocks .block")
    assert len(cells) == scope["blocks"] == len(hashes_of(prompt, tenant=ACME))
    nowhere = browser.all(".coverage .blocks .block.is-nowhere")
    assert len(nowhere) == scope["tiers"]["nowhere"] >= 4


@pytest.mark.parametrize(
    ("pasted", "said"),
    [("", "Paste the prompt"), ("tell me a story", "tokenized first"), ("1 2 99999999999", "no token id")],
)
def test_what_is_no_prompt_is_said_at_the_field(busy: Busy, browser: Browser, pasted: str, said: str) -> None:
    browser.open(address(busy, "prefixes"))
    browser.find("main textarea").send_keys(pasted)
    browser.find("main form button[type='submit']").click()
    until(lambda: said in browser.text("main form"), f"the page says: {said}")


def test_evictions_arrive_by_themselves_and_can_be_chosen(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy, "evictions"))
    browser.wait(".log li")
    seen = len(browser.all(".log li"))
    until(lambda: len(browser.all(".log li")) > seen, "more arrive without a reload", within_s=30)
    browser.choose("main select", 0, ACME)
    until(
        lambda: set(browser.values(".log li", "tenant")) == {ACME} and browser.all(".log li"),
        "only what befell the chosen tenant is left",
    )
    browser.choose("main select", 2, NODES[0])
    until(
        lambda: set(browser.values(".log li", "where")) == {NODES[0]} and browser.all(".log li"),
        "and of it what the chosen node remembers",
    )
    assert f"tenant={ACME}" in browser.driver.current_url
    browser.driver.refresh()
    until(lambda: set(browser.values(".log li", "tenant")) == {ACME}, "the choice is in the address")


def test_capacity_says_what_the_api_says(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting, "capacity"))
    browser.wait("section[data-tenant]")
    drawn = [each["tenant"] for each in resting.coordinator.get("/v1/capacity")["tenants"] if each["nodes"]]
    assert set(browser.values("section[data-tenant]", "tenant")) == set(drawn) == set(TENANTS)
    browser.find(".what-if input").send_keys("-64 KiB")
    browser.find(".what-if button").click()

    def asked() -> bool:
        found = resting.coordinator.get("/v1/capacity?more_bytes=-64KiB&tier=redis")["tenants"]
        of_acme = next(each for each in found if each["tenant"] == ACME)["what_if"]
        rows = f"section[data-tenant='{ACME}'] tbody tr"
        shown = list(zip(browser.values(rows, "more"), browser.values(rows, "points"), strict=True))
        return sorted((str(each["more_bytes"]), f"{each['points']:g}") for each in of_acme) == sorted(
            (more, f"{float(points):g}") for more, points in shown
        )

    until(asked, "the changes on the page are the API's", within_s=20)
    browser.run("document.querySelector('.what-if input').value = 'a lot'")
    browser.find(".what-if button").click()
    until(lambda: "write a size" in browser.text(".what-if"), "what is no size is said at the field")
    browser.forgive("422")


def test_a_drain_is_asked_twice_shows_how_far_it_is_and_ends(busy: Busy, browser: Browser) -> None:
    name = NODES[1]
    browser.open(address(busy, "nodes"))
    detail = f"tr[data-key='{name}'] + tr.detail"
    browser.find(f"{detail} .buttons button").click()
    assert busy.cluster.node(name).stats.drain.state.value == "none"  # it was not meant yet
    browser.find(f"{detail} button.main").click()
    until(
        lambda: "drain" in browser.text(f"tr[data-key='{name}']") or not browser.all(f"tr[data-key='{name}']"),
        "the row says that it drains, or it is gone already",
        within_s=20,
    )
    until(
        lambda: not busy.cluster.workers[name].process.is_alive() or busy.cluster.view(name) is None,
        "it left",
        within_s=60,
    )
    browser.open(address(busy, "overview"))
    # A drain that was over before the next look at the nodes is told as the orderly stop that it was, too.
    words = (f"{name} was drained and left", f"{name} stopped in order and left")
    until(lambda: any(each in browser.text(".alerts") for each in words), "the overview says that it went in order")
    busy.cluster.workers[name].end()
    busy.cluster.restart(name)
    busy.attach(name)


def test_every_page_can_be_walked_with_the_keyboard(busy: Busy, browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # not at the top: the module may be missing

    browser.open(address(busy, "overview"))
    browser.wait("nav a")
    body = browser.driver.switch_to.active_element
    body.send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    names = []
    for _ in range(7):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        names.append(browser.run("return document.activeElement.textContent.trim()"))
    assert names == ["Tiered", "Overview", "Tenants", "Nodes", "Prefixes", "Evictions", "Capacity"]
    browser.open(address(busy, "tenants"))
    browser.wait("tr[data-key] .toggle")
    heading = browser.all("thead button")[3]
    heading.send_keys(Keys.ENTER)
    assert browser.run("return document.querySelector('th[aria-sort]').textContent") == "Hot"
    toggle = browser.find(f"tr[data-key='{ACME}'] .toggle")
    toggle.send_keys(Keys.ENTER)
    browser.wait("tr.detail form")
    assert toggle.get_attribute("aria-expanded") == "true"
    toggle.send_keys(Keys.ENTER)
    until(lambda: not browser.all("tr.detail"), "it closes again")
    ring = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert ring != "none"


def test_colours_follow_the_system_and_can_be_chosen(busy: Busy, browser: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.open(address(busy, "overview"))
    light = browser.run(paper)
    browser.look(dark=True)
    dark = browser.run(paper)
    assert light != dark
    switch = browser.find("#theme")
    switch.click()
    switch.click()
    assert (switch.text, browser.run(paper)) == ("☀ Light", light)
    browser.driver.refresh()
    assert (browser.find("#theme").text, browser.run(paper)) == ("☀ Light", light)


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_drawn_soon_and_fits(busy: Busy, browser: Browser, page: str) -> None:
    """And is photographed, to be looked at."""
    ready = {
        "overview": ".line[data-node]",
        "tenants": "tr[data-key]",
        "nodes": "tr.detail",
        "prefixes": "tr[data-hash]",
        "evictions": ".log li",
        "capacity": "section[data-tenant]",
    }
    for name, size, dark in (("desktop", DESKTOP, False), ("phone", PHONE, False), ("dark", DESKTOP, True)):
        browser.look(size=size, dark=dark)
        browser.open(address(busy, page))
        if page == "nodes" and size == PHONE:
            browser.find("tr[data-key] .toggle").click()
        browser.wait(ready[page])
        if page == "tenants":
            browser.find(f"tr[data-key='{ACME}'] .toggle").click()
        print(f"\n{page} {name}: first contentful paint after {browser.first_paint_ms():.0f} ms")
        assert browser.overflow() == 0
        browser.shoot(f"{page}-{name}", height_max=2_400)


def test_an_empty_cluster_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with (
        EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None) as server,
        busy_cluster(server, workers=()) as empty,
    ):
        browser.open(address(empty, "overview"))
        until(lambda: "No worker has joined." in browser.text(), "the overview says that no worker is there")
        assert "tiered-worker --redis-url" in browser.text()
        browser.shoot("overview-empty-desktop")
        for page, said in (
            ("nodes", "No worker has joined."),
            ("prefixes", "No prefix has been used again yet."),
            ("evictions", "Nothing has left"),
            ("capacity", "No tenant has looked anything up"),
        ):
            browser.find(f"nav a[data-page='{page}']").click()
            until(lambda said=said: said in browser.text(), f"{page} says: {said}")
            browser.shoot(f"{page}-empty-desktop")


def test_a_view_that_is_old_says_so(browser: Browser, tmp_path: Path) -> None:
    with (
        EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None) as server,
        busy_cluster(server, workers=()) as empty,
    ):
        browser.open(address(empty, "overview"))
        until(lambda: "live" in browser.text("#freshness"), "the page is current")
        empty.coordinator.process.kill()
        until(lambda: "does not answer" in browser.text("#banner"), "the page says that nobody answers", within_s=20)
        until(lambda: "stale" in browser.text("#freshness"), "and that its numbers are old", within_s=20)
        until(lambda: "not known now" in browser.text(".alerts"), "and does not claim that all is well", within_s=20)
        browser.shoot("overview-stale-desktop")
        browser.forgive("ERR_CONNECTION_REFUSED")


def test_a_visitor_logs_in_reads_and_needs_the_admin_token_to_change(browser: Browser, tmp_path: Path) -> None:
    tokens = (f"http.admin_token={ADMIN}", f"http.read_token={READER}")
    with (
        EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None) as server,
        busy_cluster(server, workers=(), settings=tokens) as guarded,
    ):
        browser.open(address(guarded, "tenants"))
        browser.find("#token").send_keys(READER)
        browser.find("form button").click()
        browser.find("nav a[data-page='tenants']").click()
        browser.find(f"tr[data-key='{ACME}'] .toggle").click()
        weight = browser.find("tr.detail input[name='weight']")
        weight.clear()
        weight.send_keys("3")
        browser.find("tr.detail button[type='submit']").click()
        assert "needs the admin token" in browser.text("tr.detail .token")
        token = browser.find("tr.detail .token input")
        for given in ("nobody's", READER):
            token.send_keys(given)
            browser.find("tr.detail button[type='submit']").click()
            until(lambda: not token.get_attribute("value"), "the token was tried")
            until(lambda: browser.text("tr.detail .token .problem"), "and refused at its field")
        token.send_keys(ADMIN)
        browser.find("tr.detail button[type='submit']").click()
        until(lambda: "Saved" in browser.text("tr.detail"), "with the admin token it is saved")
        assert not token.is_displayed()  # and need not be given again
        headers = {"Authorization": f"Bearer {ADMIN}"}
        api = httpx.Client(base_url=guarded.url, headers=headers, timeout=10.0, trust_env=False)
        assert api.get(f"/v1/tenants/{ACME}").json()["policy"]["weight"] == 3
        own = api.post(f"/v1/tenants/{ACME}/tokens", json={}).json()
        browser.find(".status form button").click()
        browser.find("#token").send_keys(own["token"])
        browser.find("form button").click()
        browser.find("nav a[data-page='tenants']").click()
        browser.wait("tr[data-key]")
        assert browser.values("tr[data-key]", "key") == [ACME]
        assert ADMIN not in browser.driver.page_source
        for page in PAGES[2:]:
            browser.find(f"nav a[data-page='{page}']").click()
            browser.wait(".page > *")
            until(lambda: GLOBEX not in browser.text("body"), f"{page} says nothing of others")
        api.delete(f"/v1/tenants/{ACME}/tokens/{own['id']}")
        until(
            lambda: browser.driver.current_url.endswith("/login"), "a revoked token leads to the login", within_s=20
        )
        browser.forgive("401", "403")
        api.close()
