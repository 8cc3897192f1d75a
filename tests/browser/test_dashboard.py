"""The dashboard as people see it, over real workers: its numbers, what it shows of a loss, what can be changed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from tests.browser.agreement import HOLDS, PAGES, READY, address, hold_changes
from tests.browser.busy import (
    ACME,
    ADMIN,
    GLOBEX,
    LEASE_S,
    NODES,
    READER,
    TENANTS,
    UMBRELLA,
    Busy,
    busy_cluster,
    talk,
)
from tests.browser.conftest import DESKTOP, PHONE, Browser
from tests.support.content import LAYOUT, hashes_of
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_the_api_and_the_metrics_say(resting: Busy, browser: Browser, page: str) -> None:
    HOLDS[page](browser, resting.url)


def test_a_killed_worker_is_shown_within_its_lease_and_so_is_its_return(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "overview"))
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
    browser.open(address(busy.url, "tenants"))
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
    said = "Redis reserved (5.0 GiB) is above Redis limit (4.0 MiB)"
    until(lambda: refused.text == said, "the API's refusal stands at its field, in the page's words")
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


def test_a_limit_beyond_what_the_page_can_read_back_stays_as_it_is(busy: Busy, browser: Browser) -> None:
    """The most that the API allows; to JavaScript, whole numbers end at 2^53."""
    most = {"redis_limit_bytes": 1 << 60, "hot_limit_bytes": (1 << 53) + 2}
    with httpx.Client(base_url=busy.url, trust_env=False, timeout=10.0) as api:

        def weigh(tenant: str) -> dict[str, object]:
            """On the page; the policy after it."""
            browser.open(address(busy.url, "tenants"))
            browser.find(f"tr[data-key='{tenant}'] .toggle").click()
            weight = browser.find("tr.detail input[name='weight']")
            weight.clear()
            weight.send_keys("3")
            browser.find("tr.detail button[type='submit']").click()
            until(lambda: "Saved" in browser.text("tr.detail"), "the page says that it is saved")
            policy: dict[str, object] = api.get(f"/v1/tenants/{tenant}").json()["policy"]
            return {name: policy[name] for name in (*most, "weight")}

        try:
            assert api.post("/v1/tenants", json={"tenant": "vast", **most}).status_code == 201
            assert weigh("vast") == {**most, "weight": 3.0}
            assert api.patch("/v1/tenants/default", json=most).status_code == 200
            assert weigh(UMBRELLA) == {**most, "weight": 3.0}, "made from the default's policy"
        finally:
            api.patch("/v1/tenants/default", json=dict.fromkeys(most))
            for tenant in ("vast", UMBRELLA):
                api.delete(f"/v1/tenants/{tenant}")


def test_a_pasted_prompt_is_shown_block_by_block(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting.url, "prefixes"))
    listed = resting.coordinator.get("/v1/prefixes?limit=100")["prefixes"]
    assert any(each["within"] for each in listed)
    browser.wait("tr[data-hash]")
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
    browser.open(address(busy.url, "prefixes"))
    browser.find("main textarea").send_keys(pasted)
    browser.find("main form button[type='submit']").click()
    until(lambda: said in browser.text("main form"), f"the page says: {said}")


def test_evictions_arrive_by_themselves_and_can_be_chosen(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "evictions"))
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


def test_a_change_that_somebody_asks_about_is_the_apis(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting.url, "capacity"))
    browser.wait("section[data-tenant]")
    assert set(browser.values("section[data-tenant]", "tenant")) == set(TENANTS)
    browser.find(".what-if input").send_keys("-64 KiB")
    browser.find(".what-if button").click()
    hold_changes(browser, resting.url, "?more_bytes=-64KiB&tier=redis")
    browser.run("document.querySelector('.what-if input').value = 'a lot'")
    browser.find(".what-if button").click()
    until(lambda: "write a size" in browser.text(".what-if"), "what is no size is said at the field")
    browser.forgive("422")


def test_a_tenant_has_one_colour_at_every_node(resting: Busy, browser: Browser) -> None:
    browser.open(address(resting.url, "nodes"))
    until(lambda: len(browser.all("tr.detail .legend")) == len(NODES), "all pools are shown")
    shown = browser.run(
        "return [...document.querySelectorAll('.legend [data-tenant]')]"
        ".map(n => [n.dataset.tenant, n.previousElementSibling.previousElementSibling.className])"
    )
    assert {tenant for tenant, _ in shown} <= set(TENANTS)
    assert len({tuple(each) for each in shown}) == len({tenant for tenant, _ in shown}) > 1


def test_a_drain_is_asked_twice_shows_how_far_it_is_and_ends(busy: Busy, browser: Browser) -> None:
    name = NODES[1]
    browser.open(address(busy.url, "nodes"))
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
    browser.open(address(busy.url, "overview"))
    # A drain that was over before the next look at the nodes is told as the orderly stop that it was, too.
    words = (f"{name} was drained and left", f"{name} stopped in order and left")
    until(lambda: any(each in browser.text(".alerts") for each in words), "the overview says that it went in order")
    busy.cluster.workers[name].end()
    busy.cluster.restart(name)
    busy.attach(name)


def test_colours_follow_the_system_and_can_be_chosen(busy: Busy, browser: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.open(address(busy.url, "overview"))
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
    for name, size, dark in (("desktop", DESKTOP, False), ("phone", PHONE, False), ("dark", DESKTOP, True)):
        browser.look(size=size, dark=dark)
        browser.open(address(busy.url, page))
        if page == "nodes" and size == PHONE:
            browser.find("tr[data-key] .toggle").click()
        browser.wait("tr.detail" if page == "nodes" else READY[page])
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
        browser.open(address(empty.url, "overview"))
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
        browser.open(address(empty.url, "overview"))
        until(lambda: "live" in browser.text("#freshness"), "the page is current")
        empty.coordinator.process.kill()
        until(lambda: "does not answer" in browser.text("#banner"), "the page says that nobody answers", within_s=20)
        until(lambda: "stale" in browser.text("#freshness"), "and that its numbers are old", within_s=20)
        until(lambda: "not known now" in browser.text(".alerts"), "and does not claim that all is well", within_s=20)
        browser.shoot("overview-stale-desktop")
        browser.forgive("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")  # also in mid-answer


def test_a_visitor_logs_in_reads_and_needs_the_admin_token_to_change(browser: Browser, tmp_path: Path) -> None:
    tokens = (f"http.admin_token={ADMIN}", f"http.read_token={READER}")
    with (
        EmbeddedServer.start(tmp_path / "redis", maxmemory_bytes=None) as server,
        busy_cluster(server, workers=(), settings=tokens) as guarded,
    ):
        browser.open(address(guarded.url, "tenants"))
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
