"""A headless Chromium, the pages it looks at, and where its pictures go. Run by ``make test-browser``.

Debian's packages are installed where that may be done; else the tests are skipped and say what is missing.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.busy import NODES, Busy, busy_cluster
from tests.support.worker_process import until
from tiered.cluster.embedded import EmbeddedServer

selenium = pytest.importorskip("selenium.webdriver", reason="pip install -e '.[dev]' brings selenium")

SCREENSHOTS: Final = Path(__file__).parents[2] / "build" / "screenshots"
INSTALL_S: Final = 600.0
PATIENCE_S: Final = 20.0
"""For a page on a busy machine; usually a fraction of a second."""

DESKTOP, PHONE = (1280, 800), (390, 844)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(300))


def _installed() -> tuple[str, str] | None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """The browser and its driver."""
    found = _installed()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium", "chromium-driver"]):
            subprocess.run(command, timeout=INSTALL_S, check=False, capture_output=True)
        found = _installed()
    if found is None:
        pytest.skip("needs a Chromium and its driver: apt-get install chromium chromium-driver")
    return found


class Browser:
    """One window. Everything the page writes to the console is kept and judged by :meth:`complaints`."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._forgiven: tuple[str, ...] = ()

    def look(self, *, size: tuple[int, int] = DESKTOP, dark: bool = False, reduced_motion: bool = False) -> None:
        width, height = size
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"}
        self._tell("Emulation.setEmulatedMedia", {"features": [scheme, motion]})

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def ask(self, script: str, *arguments: object) -> Any:
        """The value of an expression that may be a promise."""
        begin = f"const done = arguments[arguments.length - 1]; (async () => ({script}))()"
        return self.driver.execute_async_script(f"{begin}.then(done, error => done(`${{error}}`))", *arguments)

    def find(self, css: str) -> Any:
        self.wait(css)
        return self.driver.find_element("css selector", css)

    def all(self, css: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", css)
        return found

    def wait(self, css: str, *, within_s: float = PATIENCE_S) -> None:
        until(lambda: self.all(css), f"{css} is on the page {self.driver.current_url}", within_s=within_s)

    def text(self, css: str = "main") -> str:
        """As it is now, in one step: elements may go while one looks."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def value(self, css: str) -> str | None:
        """The exact number behind what is shown."""
        value: str | None = self.run("return document.querySelector(arguments[0])?.dataset.value ?? null", css)
        return value

    def values(self, css: str, name: str) -> list[str]:
        """Of one data attribute, of all that match."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(each => each.dataset[arguments[1]])", css, name
        )
        return found

    def rows(self, css: str, *names: str) -> list[tuple[str, ...]]:
        """Of several data attributes, all of one moment."""
        found: list[list[str]] = self.run(
            "const [css, names] = arguments;"
            "return [...document.querySelectorAll(css)].map(each => names.map(name => each.dataset[name]))",
            *(css, names),
        )
        return [tuple(row) for row in found]

    def choose(self, css: str, index: int, value: str) -> None:
        """An option of one of the selects that match."""
        self.run(
            "const select = document.querySelectorAll(arguments[0])[arguments[1]];"
            "select.value = arguments[2]; select.dispatchEvent(new Event('change'))",
            *(css, index, value),
        )

    def overflow(self) -> int:
        """How many pixels of the page stick out at its side."""
        return int(self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def first_paint_ms(self) -> float:
        return float(self.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"))

    def shoot(self, name: str, *, height_max: int = 3_000) -> None:
        """The whole page, as far as it is of use."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, height_max), "scale": 1}
        picture = self._tell("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def forgive(self, *words: str) -> None:
        """What a test provoked: a browser notes every answer that is a refusal as a resource that failed."""
        self._forgiven += words

    def complaints(self) -> list[str]:
        """Errors and warnings, but for what was provoked; not what a browser would do otherwise (DEBUG)."""
        log = self.driver.get_log("browser")
        said = [f"{entry['level']}: {entry['message']}" for entry in log if entry["level"] != "DEBUG"]
        return [each for each in said if not any(word in each for word in self._forgiven)]

    def _tell(self, command: str, arguments: dict[str, object]) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


@contextmanager
def browser_window(chromium: tuple[str, str], profile: Path) -> Iterator[Browser]:
    options = selenium.ChromeOptions()
    options.binary_location = chromium[0]
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(chromium[1]))
    driver.set_script_timeout(60)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: tuple[str, str], tmp_path: Path) -> Iterator[Browser]:
    """A window of its own; fails the test when the page complained."""
    with browser_window(chromium, tmp_path / "profile") as window:
        window.look()
        yield window
        assert window.complaints() == []


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
    from tests.browser.agreement import wait_still  # which needs Browser of here

    busy.rest()
    wait_still(busy.url)
    yield busy
    busy.go_on()
