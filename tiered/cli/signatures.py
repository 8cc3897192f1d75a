"""The signature of a command that stands for another one: what typer goes by."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def sign(call: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """parameters: with annotations that are evaluated."""
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
