"""Rules over the sources themselves: the seam between torch and asyncio, and a docstring for every module.

Which folder may import which is checked by the contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tiered", "coordinator", "worker")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported_packages(tree: ast.AST) -> set[str]:
    """Top-level names of what a file imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_sources_are_found() -> None:
    assert {named(path) for path in SOURCES} >= {"tiered/types.py", "coordinator/__init__.py", "worker/__init__.py"}


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import torch.nn as nn", {"torch"}),
        ("def f():\n    from asyncio.events import get_event_loop", {"asyncio"}),
        ("from . import torch", set()),
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str, packages: set[str]) -> None:
    assert imported_packages(ast.parse(source)) == packages


def test_no_file_imports_both_torch_and_asyncio() -> None:
    both = [named(path) for path in SOURCES if imported_packages(_parse(path)) >= {"torch", "asyncio"}]
    assert both == []


def test_every_module_that_says_anything_opens_with_a_docstring() -> None:
    silent = [named(path) for path in SOURCES if _parse(path).body and not ast.get_docstring(_parse(path))]
    assert silent == []


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
