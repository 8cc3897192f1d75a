"""Who cannot use a mouse, or sees little: keys, the focus, contrast, names for screen readers, no motion unasked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.agreement import PAGES, READY, address
from tests.browser.busy import ACME, NODES, Busy
from tests.browser.conftest import PHONE, Browser
from tests.support.worker_process import until

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="pip install -e '.[dev]' brings selenium").Keys

CONTRAST_MIN = 4.5
"""WCAG 2.2, 1.4.3, for text of any size."""

# Texts whose contrast to what lies behind them is less than asked for: [text, ratio]. What is switched off does not
# count.
PALE = """
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgba = colour => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map(n => n / 255)
  .map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4)
  .reduce((sum, n, i) => sum + n * [0.2126, 0.7152, 0.0722][i], 0);
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const of = text.parentElement;
  if (!text.data.trim() || !of.checkVisibility() || of.closest('.unseen, script, :disabled, option')) continue;
  const [a, b] = [light(rgba(getComputedStyle(of).color)), light(behind(of))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < arguments[0]) found.push([text.data.trim().slice(0, 60), Number(ratio.toFixed(2))]);
}
return found;
"""

# Where the focus is: [what, whether it is marked, whether it is in sight and nothing lies over it].
FOCUS = """
const at = document.activeElement;
if (at === document.body) return null;
const { outlineStyle, outlineWidth } = getComputedStyle(at);
const box = at.getBoundingClientRect();
const x = Math.min(Math.max(box.left + box.width / 2, 1), innerWidth - 2);
const y = Math.min(Math.max(box.top + Math.min(box.height / 2, 10), 0), innerHeight - 1);
const top = document.elementFromPoint(x, y);
const label = at.getAttribute('aria-label') ?? at.textContent.trim();
return [
  `${at.tagName} ${label || at.name || at.type}`.slice(0, 60),
  outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2,
  box.width > 0 && box.top >= 0 && box.top < innerHeight && (at === top || at.contains(top) || top?.contains(at)),
];
"""

STOPS_MAX = 400


def press(browser: Browser, key: str) -> None:
    browser.driver.switch_to.active_element.send_keys(key)


def walk(browser: Browser, key: str) -> list[list[Any]]:
    """Everything that Tab stops at, until it leaves the page."""
    stops = []
    for _ in range(STOPS_MAX):
        press(browser, key)
        stop = browser.run(FOCUS)
        if stop is None:
            return stops
        stops.append(stop)
    raise AssertionError(f"the focus never leaves the page: {stops[-5:]}")


def open_page(browser: Browser, busy: Busy, page: str) -> None:
    """With one of its rows open, where it has rows that open."""
    browser.open(address(busy.url, page))
    browser.wait("tr.detail" if page == "nodes" and browser.run("return innerWidth > 640") else READY[page])
    if page == "tenants":
        browser.run("document.querySelector(arguments[0]).click()", f"tr[data-key='{ACME}'] .toggle")
        browser.wait("tr.detail form")


@pytest.mark.parametrize("page", PAGES)
def test_the_focus_is_marked_and_in_sight_wherever_tab_stops(busy: Busy, browser: Browser, page: str) -> None:
    open_page(browser, busy, page)
    stops = walk(browser, keys.TAB)
    assert stops[0][0] == "A Skip to the content"
    assert len(stops) > 8
    assert [stop for stop in stops if not (stop[1] and stop[2])] == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_told_from_what_is_behind_it(busy: Busy, browser: Browser, page: str, dark: bool) -> None:
    browser.look(dark=dark)
    open_page(browser, busy, page)
    assert browser.run(PALE, CONTRAST_MIN) == []


@pytest.mark.parametrize("page", PAGES)
def test_all_that_can_be_used_or_is_a_picture_has_a_name(busy: Busy, browser: Browser, page: str) -> None:
    open_page(browser, busy, page)
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    asked = {"button", "link", "textbox", "searchbox", "combobox", "image", "img", "table", "region", "form"}
    seen = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")
    ]
    assert {role for role, _ in seen} & asked
    assert [role for role, name in seen if role in asked and not name.strip()] == []


def test_nothing_moves_for_who_asked_for_less_motion(busy: Busy, browser: Browser) -> None:
    moving = "return document.getAnimations().length"
    browser.open(address(busy.url, "evictions"))
    browser.wait(".log li")
    until(lambda: browser.run(moving), "new entries stand out by moving", within_s=30)
    browser.look(reduced_motion=True)
    browser.open(address(busy.url, "evictions"))
    browser.wait(".log li")
    n_seen = len(browser.all(".log li"))
    until(
        lambda: len(browser.all(".log li.is-new")) and len(browser.all(".log li")) > n_seen,
        "more arrive",
        within_s=30,
    )
    assert browser.run(moving) == 0


def test_escape_takes_back_what_was_written_and_then_closes_the_row(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "tenants"))
    toggle = browser.find(f"tr[data-key='{ACME}'] .toggle")
    toggle.send_keys(keys.ENTER)
    weight = browser.find("tr.detail input[name='weight']")
    before = weight.get_attribute("value")
    weight.send_keys("7")
    weight.send_keys(keys.ESCAPE)
    assert weight.get_attribute("value") == before
    press(browser, keys.ESCAPE)
    until(lambda: not browser.all("tr.detail"), "the row is closed")
    assert browser.run("return document.activeElement.textContent") == ACME


def test_escape_calls_a_drain_off_that_was_not_meant(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "nodes"))
    detail = f"tr[data-key='{NODES[0]}'] + tr.detail"
    browser.find(f"{detail} .buttons button").send_keys(keys.ENTER)
    assert browser.run("return document.activeElement.textContent") == f"Drain {NODES[0]}"
    press(browser, keys.ESCAPE)
    assert browser.run("return document.activeElement.textContent") == "Drain …"
    assert browser.all(detail)
    press(browser, keys.ESCAPE)
    until(lambda: not browser.all(detail), "a second one closes the row")
    assert busy.cluster.node(NODES[0]).stats.drain.state.value == "none"


def test_a_chart_is_read_out_moment_by_moment(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "overview"))
    chart = browser.find("svg.flow")
    until(lambda: browser.all("svg.flow polygon"), "there is something to read", within_s=60)
    spoken = ".chart [role='status']"
    chart.send_keys(keys.ARROW_LEFT)
    first = browser.text(spoken)
    assert "asked" in first
    chart.send_keys(keys.ARROW_LEFT)
    assert browser.text(spoken) != first


@pytest.mark.parametrize("page", PAGES)
def test_fingers_find_what_they_aim_at(busy: Busy, browser: Browser, page: str) -> None:
    """WCAG 2.2, 2.5.8: 24 pixels at least, but for links within text."""
    browser.look(size=PHONE)
    open_page(browser, busy, page)
    small = browser.run(
        "return [...document.querySelectorAll('button, input, select, textarea, nav a')]"
        ".filter(each => each.checkVisibility()).map(each => [each, each.getBoundingClientRect()])"
        ".filter(([, box]) => box.width > 0 && (box.height < 24 || box.width < 24))"
        ".map(([each, box]) => `${each.tagName} ${each.textContent || each.name}: ${box.width} x ${box.height}`)"
    )
    assert small == []


def test_the_pages_are_reached_and_a_table_is_worked_with_keys(busy: Busy, browser: Browser) -> None:
    browser.open(address(busy.url, "overview"))
    browser.wait("nav a")
    body = browser.driver.switch_to.active_element
    body.send_keys(keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    names = []
    for _ in range(7):
        browser.driver.switch_to.active_element.send_keys(keys.TAB)
        names.append(browser.run("return document.activeElement.textContent.trim()"))
    assert names == ["Tiered", "Overview", "Tenants", "Nodes", "Prefixes", "Evictions", "Capacity"]
    browser.open(address(busy.url, "tenants"))
    browser.wait("tr[data-key] .toggle")
    heading = browser.all("thead button")[3]
    heading.send_keys(keys.ENTER)
    assert browser.run("return document.querySelector('th[aria-sort]').textContent") == "Hot"
    toggle = browser.find(f"tr[data-key='{ACME}'] .toggle")
    toggle.send_keys(keys.ENTER)
    browser.wait("tr.detail form")
    assert toggle.get_attribute("aria-expanded") == "true"
    toggle.send_keys(keys.ENTER)
    until(lambda: not browser.all("tr.detail"), "it closes again")
    ring = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert ring != "none"
