"""The dashboard over the demo load: pages that follow it while it runs, and say what it says once it is told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.agreement import HOLDS, PAGES, READY, address, get, metrics, numbers_of, tokens_shown, wait_still
from tests.browser.conftest import Browser
from tests.browser.demo import TOLD_S, DemoProcess, demo_process
from tests.support.worker_process import until
from tiered.cli.demo.conversations import TENANTS, deal, read_conversations
from tiered.cli.model import demo_model_dir, ensure_demo_model
from tiered.errors import ConfigError

KILLED = "worker-1"
BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def demo(chromium: tuple[str, str]) -> Iterator[DemoProcess]:
    try:
        ensure_demo_model()
    except ConfigError as error:
        pytest.skip(str(error))
    with demo_process() as started:
        yield started


@pytest.fixture
def told(demo: DemoProcess) -> DemoProcess:
    """Nobody asks any more, and the workers have said all numbers."""
    demo.wait_told()
    wait_still(demo.url)
    return demo


def books(summary: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Per tenant, what the engines saw, of requests that reached a worker."""
    sums: dict[str, dict[str, int]] = {}
    for row in summary["rows"]:
        if row["counted"]:
            sum_of = sums.setdefault(row["tenant"], dict.fromkeys(("asked", "hot", "peer", "redis", "missed"), 0))
            sum_of["asked"] += row["prompt_tokens"]
            for source in ("hot", "peer", "redis", "missed"):
                sum_of[source] += row[source]
    return sums


def turn_to(browser: Browser, page: str) -> None:
    """By its link; it has drawn something, or says what there is not."""
    browser.find(f"nav a[data-page='{'' if page == 'overview' else page}']").click()
    until(lambda: browser.text("h1").lower() == page, f"{page} is open")
    browser.wait(f"{READY[page]}, .blank-text")


@pytest.mark.timeout(900)
def test_the_pages_follow_the_demo_while_it_runs(demo: DemoProcess, browser: Browser) -> None:
    """One visit, without a reload: after each answer the next page. The window fails the test if a page complains."""
    browser.open(demo.url)
    browser.wait(".line[data-node]")
    sums: list[int] = []
    pages = itertools.cycle(PAGES[1:])
    n_seen = 0
    while not demo.is_told:
        until(lambda n=n_seen: demo.n_answered > n or demo.is_told, "another answer", within_s=TOLD_S)
        n_seen = demo.n_answered
        turn_to(browser, next(pages))
        assert browser.overflow() == 0
        turn_to(browser, "overview")
        until(lambda: len(tokens_shown(browser)) == 5, "the overview shows tokens")
        tokens = tokens_shown(browser)
        assert tokens["asked"] == tokens["hot"] + tokens["peer"] + tokens["redis"] + tokens["missed"]
        sums.append(tokens["asked"])
    until(lambda: browser.all(f".alerts [data-about='lost'][data-node='{KILLED}']"), "and the worker that was killed")
    assert sums == sorted(sums)
    assert len(set(sums)) > 2, "the numbers do not follow"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_the_api_and_the_metrics_say(told: DemoProcess, browser: Browser, page: str) -> None:
    HOLDS[page](browser, told.url)
    browser.shoot(f"demo-{page}-desktop", height_max=2_400)


def test_the_numbers_are_those_of_the_engines(told: DemoProcess, browser: Browser) -> None:
    summary = told.summary()
    assert all(summary["checks"].values()), summary["checks"]
    saw, scraped = books(summary), metrics(told.url)
    assert set(saw) == set(TENANTS)
    browser.open(address(told.url, "tenants"))
    browser.wait(READY["tenants"])
    for tenant, tokens in saw.items():
        assert numbers_of(browser, tenant)["asked"] == str(tokens["asked"])
        for outcome in ("hot", "peer", "redis", "missed"):
            assert scraped["tiered_tenant_tokens_total", outcome, tenant] == tokens[outcome]
    browser.open(address(told.url, "overview"))
    whole = {
        name: sum(tokens[name] for tokens in saw.values()) for name in ("asked", "hot", "peer", "redis", "missed")
    }
    until(lambda: tokens_shown(browser) == whole, f"the overview says {whole}")


def test_a_prompt_of_the_demo_is_found_where_it_was_served_from(told: DemoProcess, browser: Browser) -> None:
    from transformers import AutoTokenizer  # not at the top: it takes seconds

    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir())
    (tenant, *_) = TENANTS
    messages = deal(read_conversations())[tenant][0].turn(2)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    browser.open(address(told.url, "prefixes"))
    browser.find("main textarea")
    browser.run("document.querySelector('textarea').value = arguments[0]", str(list(prompt)))
    browser.find("input[list]").send_keys(tenant)
    browser.find("main form button[type='submit']").click()
    browser.wait(".coverage")
    (shown,) = browser.rows(".coverage", "covered", "blocks")
    assert int(shown[1]) == len(prompt) // BLOCK_TOKENS
    served = [
        row for row in told.summary()["rows"] if row["tenant"] == tenant and row["prompt_tokens"] == len(prompt)
    ]
    assert int(shown[0]) * BLOCK_TOKENS >= served[-1]["redis"] > 0
    browser.shoot("demo-prompt-desktop", height_max=2_400)


def test_the_killed_worker_is_gone_from_the_list_and_not_from_memory(told: DemoProcess, browser: Browser) -> None:
    browser.open(address(told.url, "overview"))
    browser.wait(f".alerts [data-about='lost'][data-node='{KILLED}']")
    alive = {body["node"] for body in get(told.url, "/v1/nodes")["nodes"] if body["alive"]}
    assert KILLED not in alive
    assert set(browser.values(".line[data-node]", "node")) >= alive
