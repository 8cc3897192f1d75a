"""``python requirements.py [EXTRA...]``: what pyproject.toml asks for, and not this project itself.

So that the layers of an image that hold packages are made anew when the packages change, and not with every change of
the code.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OURS = re.compile(r"tiered-kv\[(?P<extras>[^]]+)\]")


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Of the project itself, and of the extras with those that they name."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    found = list[str](project["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        for line in optional[extra]:
            ours = OURS.fullmatch(line)
            found += requirements(project, ours["extras"].split(",")) if ours else [line]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    read = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    print("\n".join(requirements(read["project"], sys.argv[1:])))
