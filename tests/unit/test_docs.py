"""What the pages for operators name is there: commands and their flags, series, pages and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from tiered.cli.main import app
from tiered.metrics import coordinator, serving, worker
from tiered.metrics.series import Series

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("SECURITY.md", *(f"docs/{name}.md" for name in ("operations", "compose", "kubernetes", "monitoring")))
RULES: Final = "deploy/prometheus/tiered.rules.yml"


@pytest.fixture(scope="module")
def commands() -> Any:
    return get_command(app)


@pytest.mark.parametrize("page", [*PAGES, RULES])
def test_commands_and_flags_are_those_of_the_program(page: str, commands: Any) -> None:
    unknown = []
    for line in called(read(page)):
        command, words = commands, line.split()
        while words and hasattr(command, "commands") and re.fullmatch(r"[a-z]+", words[0]):
            command = command.commands.get(words.pop(0))
            if command is None:
                break
        flags = {name for option in getattr(command, "params", ()) for name in option.opts}
        if command is None or not set(re.findall(r"(?<=\s)--[a-z-]+", f" {line}")) <= flags:
            unknown.append(line)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES)
def test_series_are_those_that_are_shown(page: str) -> None:
    known = {
        each.name
        for module in (coordinator, serving, worker)
        for each in vars(module).values()
        if isinstance(each, Series)
    }
    named = set(re.findall(r"(?<![\w/.])tiered_[a-z_]+[a-z](?![\w*.])", read(page)))
    assert known
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings(page: str) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = (ROOT / page).parent / path if path else ROOT / page
            if not file.exists() or (anchor and anchor not in headings(file)):
                dead.append(target)
    assert dead == []


def called(text: str) -> Iterator[str]:
    """What follows the program's name in code, up to what ends the command. Others have that name, too."""
    for block, span in re.findall(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL):
        for found in re.finditer(
            r"(?<![\w./-])(?<!-n )(?<!user )(?<!install )(?<!namespace )tiered ([a-z]+[^;|'\"#\n]*)", block or span
        ):
            yield found[1]


def headings(file: Path) -> set[str]:
    """As GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
        for title in titles
    }


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
