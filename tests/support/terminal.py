"""Driving ``tiered top`` without a terminal: run it at a size, press keys, read the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from tiered.cli.top.app import TopApp

SMALL: Final = (80, 24)
WIDE: Final = (200, 50)

SCREENSHOTS: Final = Path(__file__).parents[2] / "build" / "screenshots"

Steps = Callable[[TopApp, "Pilot[None]"], Awaitable[None]]


def drive(app: TopApp, steps: Steps, *, size: tuple[int, int] = SMALL) -> int:
    """Run the app and take the steps; its return code."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())
    return app.return_code or 0


def screen_lines(app: TopApp) -> list[str]:
    """What is to be read on the screen, line by line."""
    return ["".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()]


def screen_text(app: TopApp) -> str:
    return "\n".join(screen_lines(app))


async def shows(pilot: Pilot[None], condition: Callable[[], bool], what: str, *, within_s: float = 20.0) -> None:
    """Until it holds; fails by name, with the screen, at the deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        app = pilot.app
        assert isinstance(app, TopApp)
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{screen_text(app)}"
        await pilot.pause(0.02)


def keep_screenshot(app: TopApp, name: str) -> None:
    """As SVG and as text, for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"top-{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")
    (SCREENSHOTS / f"top-{name}.txt").write_text(screen_text(app) + "\n", encoding="utf-8")
