"""What pages make of answers that few clusters give: too much at once, hidden numbers, others' changes, silence.

A made-up cluster answers; what a test is about is put into its answers on their way.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import Browser
from tests.browser.seeded import seeded_app
from tests.support.redis_server import settings_for
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer

keys = pytest.importorskip("selenium.webdriver.common.keys", reason="pip install -e '.[dev]' brings selenium").Keys

ONE, OTHER = "tenant-0001", "tenant-0002"

# asked: the paths so far. amend: how a path begins -> what is answered, of the path and of a function that gives the
# real answer's body; throwing is no answer.
HOOK = """
const real = window.fetch;
window.asked = [];
window.amend = {};
window.fetch = async (path, options) => {
  window.asked.push(path);
  const begins = Object.keys(window.amend).find((each) => path.startsWith(each));
  if (begins === undefined) return real(path, options);
  const body = await window.amend[begins](path, async () => (await real(path, options)).json());
  return new Response(JSON.stringify(body));
};
"""


@pytest.fixture(scope="module")
def few(redis_server: EmbeddedServer) -> Iterator[str]:
    with seeded_app(settings_for(redis_server), n_tenants=3, n_nodes=2) as url:
        yield url


def open_amended(browser: Browser, url: str, script: str) -> None:
    """script: run in the page before it asks anything."""
    source = {"source": HOOK + script}
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
    browser.open(url)


# A node tells a full answer to whoever follows from the first place, and then what is new from the second on.
FLOOD = """
let n = 0;
const told = (n, sentence) => Array.from({ length: n }, () => ({
  at: '2026-01-02T03:04:05Z', where: 'node-00', what: 'evicted', block: null, tenant: 'a', tier: 'hot', blocks: 1,
  sentence, detail: {},
}));
window.amend['v1/evictions'] = (path) => {
  const after = new URLSearchParams(path.split('?')[1]).get('after');
  if (after === 'first') return { events: told(100, 'old'), after: 'behind', silent: [] };
  if (after !== null) return { events: [], after, silent: [] };
  n += 1;
  return { events: told(n === 1 ? 2 : 5, n === 1 ? 'first' : 'newest'), after: n === 1 ? 'first' : 'on', silent: [] };
};
"""


def test_a_log_that_falls_behind_goes_on_with_the_newest_and_says_so(few: str, browser: Browser) -> None:
    open_amended(browser, f"{few}/evictions", FLOOD)
    until(lambda: len(browser.all(".log li")) == 2, "the first are listed")
    assert "passed over" not in browser.text(".table-note")
    until(lambda: "5 events; some were passed over" in browser.text(".table-note"), "it says that it fell behind")
    assert {each.text for each in browser.all(".log .sentence")} == {"newest"}
    asked = "return window.asked.filter(path => path.includes('after=')).map(path => path.split('after=')[1])"
    until(lambda: browser.run(asked)[-1] == "on", "and follows from the newest on")
    assert "behind" not in browser.run(asked)


def test_looking_for_a_row_keeps_the_focus_and_what_was_written_in_another(few: str, browser: Browser) -> None:
    browser.open(f"{few}/tenants")
    search = browser.find("input[type='search']")
    browser.find(f"tr[data-key='{ONE}'] .toggle").click()
    search.send_keys(OTHER)
    assert browser.run("return document.activeElement.type") == "search"
    assert search.get_attribute("value") == OTHER
    assert browser.values("tr[data-key]", "key") == [OTHER]
    search.send_keys(keys.ESCAPE)
    browser.find(f"tr[data-key='{ONE}'] .toggle").click()
    weight = browser.find("tr.detail input[name='weight']")
    weight.send_keys("7")
    search.send_keys(OTHER)
    assert set(browser.values("tr[data-key]", "key")) == {ONE, OTHER}
    assert weight.get_attribute("value") == "17"
    weight.send_keys(keys.ESCAPE)
    search.click()
    until(lambda: browser.values("tr[data-key]", "key") == [OTHER], "a row with nothing written in it goes")


ELSEWHERE = """
window.policy = {};
window.named = true;
window.amend['v1/tenants'] = async (path, answer) => {
  const body = await answer();
  for (const each of body.tenants) {
    Object.assign(each.policy, window.policy);
    each.named = window.named;
  }
  return body;
};
"""


def test_a_change_made_elsewhere_reaches_an_open_form_but_for_what_is_written_there(
    few: str, browser: Browser
) -> None:
    open_amended(browser, f"{few}/tenants", ELSEWHERE)
    browser.find(f"tr[data-key='{ONE}'] .toggle").click()
    weight = browser.find("tr.detail input[name='weight']")
    limit = browser.find("tr.detail input[name='hot_limit_bytes']")
    browser.run("window.policy = { weight: 5 }; window.named = false")
    until(lambda: weight.get_attribute("value") == "5", "the form shows the other's change")
    assert "lives under the default's policy" in browser.text("tr.detail")
    weight.send_keys("5")
    browser.run("window.policy = { weight: 6, hot_limit_bytes: 1 << 20 }; window.named = true")
    until(lambda: "Changed elsewhere to 6." in browser.text("tr.detail"), "a field that is written in says so")
    assert (weight.get_attribute("value"), limit.get_attribute("value")) == ("55", "1 MiB")
    assert "lives under the default's policy" not in browser.text("tr.detail")
    browser.run("[...document.querySelectorAll('tr.detail button')].find(b => b.textContent === 'Undo').click()")
    assert weight.get_attribute("value") == "6"
    assert "Changed elsewhere" not in browser.text("tr.detail")


SILENCE = """
window.away = false;
window.amend['v1/stats'] = (path, answer) => {
  if (window.away) throw new Error('away');
  return answer();
};
const spoken = (window.spoken = []);
addEventListener('DOMContentLoaded', () => {
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const at = (target.nodeType === 1 ? target : target.parentElement)?.closest('[role=status]');
      if (at?.textContent) spoken.push(at.textContent);
    }
  }).observe(document.body, { childList: true, characterData: true, subtree: true });
});
"""


def test_numbers_that_a_sleep_made_old_have_their_age_which_is_not_spoken_each_second(
    few: str, browser: Browser
) -> None:
    """The clock that only goes on stands still while a machine sleeps."""
    open_amended(browser, f"{few}/tenants", SILENCE)
    until(lambda: browser.text("#freshness").startswith("live"), "the page is current")
    browser.run("window.away = true")
    until(lambda: "These numbers are from" in browser.text("#banner"), "it says that nobody answers")
    assert "does not answer" in browser.text("#banner")
    browser.run("window.spoken.length = 0; const now = Date.now; Date.now = () => now() + 8 * 3_600_000")
    until(lambda: "8 h ago" in browser.text("#banner"), "the page says how old its numbers are")
    assert browser.text("#freshness").endswith("8 h ago")
    assert browser.run("return window.spoken") == []
    dim = "return [...document.querySelectorAll('body, body *')].filter(e => getComputedStyle(e).opacity < 1).length"
    assert browser.run(dim) == 0
    browser.run("window.away = false")
    until(lambda: browser.text("#banner") == "" and "live" in browser.text("#freshness"), "it is current again")


ALARMS = """
window.alerts = [];
window.amend['v1/alerts'] = () => ({ alerts: window.alerts });
"""


def test_a_new_alarm_is_spoken_once(few: str, browser: Browser) -> None:
    open_amended(browser, f"{few}/", SILENCE + ALARMS)
    until(lambda: "Nothing needs attention" in browser.text(".alerts"), "all is well")
    browser.run(
        "window.alerts = [{ level: 'alarm', about: 'lost', text: 'Worker `w` is lost.', node: 'w', age_s: 1 },"
        "{ level: 'note', about: 'left', text: 'Another left.', node: 'v', age_s: 2 }]"
    )
    until(lambda: "Worker w is lost." in browser.run("return window.spoken"), "the alarm is spoken")
    browser.run("window.asked.length = 0")
    until(lambda: browser.run("return window.asked").count("v1/alerts") > 2, "it is still there a while later")
    assert said_of_workers(browser) == ["Worker w is lost."]
    browser.run("window.was = window.alerts; window.alerts = []")
    until(lambda: "Nothing needs attention" in browser.text(".alerts"), "all is well again")
    browser.run("window.alerts = window.was")
    until(lambda: said_of_workers(browser) == ["Worker w is lost."] * 2, "the same alarm anew is spoken anew")


def said_of_workers(browser: Browser) -> list[str]:
    return [each for each in browser.run("return window.spoken") if "lost." in each or "left" in each]


# A hundred and fifty tenants with a curve, and seven more than the API ever tells of.
CAPACITY = """
window.amend['v1/capacity'] = async (path) => {
  const limit = Number(new URLSearchParams(path.split('?')[1]).get('limit') ?? 100);
  const room = { used_bytes: 1, blocks: 1, limit_bytes: null };
  const tenants = Array.from({ length: Math.min(limit, 150) }, (_, n) => ({
    tenant: `t-${n}`, nodes: 1, since_s: 1, sampled_blocks: 1, asked_tokens_per_hour: 150 - n, hot: room, redis: room,
    room_bytes: 1, measured: null, predicted: { hit_ratio: 0.5 }, curve: [{ bytes: 1, hit_ratio: 0.5 }], what_if: [],
  }));
  return { tenants, left_out: 157 - tenants.length, stale: false, age_s: 0 };
};
"""


def test_all_tenants_curves_are_asked_for_and_who_is_left_out_is_told(few: str, browser: Browser) -> None:
    open_amended(browser, f"{few}/capacity", CAPACITY)
    more = browser.find("main button.quiet")
    until(lambda: more.text == "Show all 157 tenants", "it says how many there are")
    assert len(browser.all("section[data-tenant]")) == 12
    more.click()
    until(lambda: len(browser.all("section[data-tenant]")) == 150, "all are shown that the API tells of")
    assert "7 tenants with fewer lookups are left out" in browser.text("main")
    assert not more.is_displayed()
    browser.find("nav a[data-page='']").click()
    until(lambda: "107 tenants with fewer lookups are left out" in browser.text("main"), "the overview says it, too")


AS_A_TENANT = """
document.addEventListener('readystatechange', () => { document.body.dataset.caller = 'tenant'; }, { once: true });
"""


def test_what_a_tenants_token_is_not_told_is_not_shown_as_nothing(few: str, browser: Browser) -> None:
    hidden = ("engines", "from-peers", "to-peers", "from-redis", "to-redis")
    row = "tr[data-key='node-01']"
    browser.open(f"{few}/nodes")
    browser.wait(f"{row} + tr.detail dd")
    assert browser.text(f"{row} [data-column='engines']") == "1"
    assert "Redis breaker\nclosed" in browser.text(f"{row} + tr.detail")
    open_amended(browser, f"{few}/nodes", AS_A_TENANT)
    browser.wait(f"{row} + tr.detail dd")
    assert {browser.text(f"{row} [data-column='{column}']") for column in hidden} == {"\u2013"}
    assert {browser.value(f"{row} [data-column='{column}']") for column in hidden} == {None}
    assert "Redis breaker\n\u2013" in browser.text(f"{row} + tr.detail")


DAYS = """
const event = (at) => ({
  at, where: 'node-00', what: 'evicted', block: null, tenant: 'a', tier: 'hot', blocks: 1, sentence: '', detail: {},
});
const events = [event(new Date().toISOString()), event('2025-03-05T12:04:05Z')];
window.amend['v1/evictions'] = (path) => ({ events: path.includes('after') ? [] : events, after: 'a', silent: [] });
"""


def test_what_happened_on_another_day_has_its_date(few: str, browser: Browser) -> None:
    open_amended(browser, f"{few}/evictions", DAYS)
    until(lambda: len(browser.all(".log time")) == 2, "both are listed")
    today, before = (each.text.split() for each in browser.all(".log time"))
    assert len(today) == 1
    assert before[:2] == ["5", "Mar"]
