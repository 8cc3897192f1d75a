"""Numbers on the command line: ``nan`` and ``inf`` are floats to the parser, and no bound of ours can compare or hold
them.
"""

from __future__ import annotations

import inspect
import math
from typing import Annotated, get_args, get_origin

import typer
from typer.models import OptionInfo


def require_finite_numbers(app: typer.Typer) -> None:
    """Have every option of every command that takes a float refuse them. Call once, after the last command."""
    for command in app.registered_commands:
        if command.callback is not None:
            for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
                _require_finite(parameter.annotation)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            require_finite_numbers(group.typer_instance)


def _require_finite(annotation: object) -> None:
    if get_origin(annotation) is not Annotated:
        return
    kind, *marks = get_args(annotation)
    if kind is float or float in get_args(kind):
        for mark in marks:
            if isinstance(mark, OptionInfo):
                assert mark.callback in (None, _finite), "it has a check of its own; have that call this one"
                mark.callback = _finite


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
