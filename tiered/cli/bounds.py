"""The bounds of a tenant as options: what each is called and says of itself, and which fields of a policy it changes.

Bounds are checked by the coordinator, which knows the others; here sizes are only read.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from tiered.cli.signatures import sign
from tiered.config import parse_bytes
from tiered.errors import ConfigError


class OverQuota(enum.StrEnum):
    EVICT_OWN = "evict_own"
    REFUSE = "refuse"


class Codec(enum.StrEnum):
    NONE = "none"
    LOSSLESS = "lossless"
    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Bound:
    """option: for typer. changes: from what was given, fields of a policy; sizes in bytes, ``none`` as null."""

    option: Any
    changes: Callable[[Any], dict[str, object]]


def takes_bounds(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each bound in place of its parameter ``changes``: policy_changes() of those
    given."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    place = [each.name for each in parameters].index("changes")
    parameters[place : place + 1] = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=bound.option)
        for name, bound in BOUNDS.items()
    ]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        bounds = {name: given.pop(name) for name in BOUNDS}
        command(**given, changes=policy_changes(bounds))

    sign(call, parameters)
    return call


def policy_changes(given: Mapping[str, object]) -> dict[str, object]:
    """The body of a change, by the names of options; None: not given. Errors: ConfigError naming the option."""
    changes: dict[str, object] = {}
    for name, bound in BOUNDS.items():
        value = given.get(name)
        if value is not None:
            changes |= bound.changes(value)
    return changes


def _per_node(name: str) -> Callable[[str], dict[str, object]]:
    """One given in blocks takes the place of one in bytes, and the other way round."""

    def changes(text: str) -> dict[str, object]:
        blocks, nothing = _blocks(name, text), None if name.endswith("_limit") else 0
        if blocks is None:
            return {f"{name}_blocks": nothing, f"{name}_bytes": _size(f"{name}_bytes", text)}
        return {f"{name}_blocks": blocks, f"{name}_bytes": nothing}

    return changes


def _bytes(field: str) -> Callable[[str], dict[str, object]]:
    return lambda text: {field: _size(field, text)}


def _as_it_is(field: str) -> Callable[[object], dict[str, object]]:
    return lambda value: {field: value.value if isinstance(value, enum.StrEnum) else value}


def _blocks(name: str, text: str) -> int | None:
    """``"4096blocks"`` -> 4096; None for what is no number of blocks."""
    number = text.strip().lower().removesuffix("blocks").rstrip()
    if number == text.strip().lower():
        return None
    if not number.isascii() or not number.isdigit():
        raise ConfigError(f"{_flag(name)}: {text!r} is not a number of blocks", field=name)
    return int(number)


def _seconds(text: str) -> dict[str, object]:
    if text.strip().lower() == "none":
        return {"redis_ttl_s": None}
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise ConfigError(f"--redis-ttl: {text!r} is not a number of seconds above 0", field="redis_ttl")
    return {"redis_ttl_s": seconds}


def _size(field: str, text: str) -> int | None:
    flag = _flag(field.removesuffix("_bytes"))
    if text.strip().lower() == "none":
        if field.endswith("_limit_bytes"):
            return None
        raise ConfigError(f"{flag}: a reservation is a number of bytes; write 0 for nothing", field=field)
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a size; {error}", field=field) from None
    if not isinstance(size, int) or size < 0:
        raise ConfigError(f"{flag}: {text!r} is below zero", field=field)
    return size


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


BOUNDS: Final[Mapping[str, Bound]] = {
    "hot_reserved": Bound(
        Annotated[
            str | None,
            typer.Option(
                metavar="SIZE", help="Hot bytes per node nobody else can take; or blocks, such as 4096blocks."
            ),
        ],
        _per_node("hot_reserved"),
    ),
    "hot_limit": Bound(
        Annotated[
            str | None,
            typer.Option(
                metavar="SIZE|none", help="Hot bytes per node never exceeded; or blocks, such as 4096blocks."
            ),
        ],
        _per_node("hot_limit"),
    ),
    "hot_total_reserved": Bound(
        Annotated[
            str | None, typer.Option(metavar="SIZE", help="Hot bytes over all nodes together nobody else can take.")
        ],
        _bytes("hot_total_reserved_bytes"),
    ),
    "hot_total_limit": Bound(
        Annotated[
            str | None, typer.Option(metavar="SIZE|none", help="Hot bytes over all nodes together never exceeded.")
        ],
        _bytes("hot_total_limit_bytes"),
    ),
    "redis_reserved": Bound(
        Annotated[str | None, typer.Option(metavar="SIZE", help="Redis bytes promised; not yet kept free.")],
        _bytes("redis_reserved_bytes"),
    ),
    "redis_limit": Bound(
        Annotated[str | None, typer.Option(metavar="SIZE|none", help="Redis bytes never exceeded.")],
        _bytes("redis_limit_bytes"),
    ),
    "redis_ttl": Bound(
        Annotated[
            str | None, typer.Option(metavar="SECONDS|none", help="Blocks in Redis go after so long without a use.")
        ],
        _seconds,
    ),
    "weight": Bound(
        Annotated[float | None, typer.Option(help="Its share of what is idle, against the others' weights.")],
        _as_it_is("weight"),
    ),
    "over_quota": Bound(
        Annotated[OverQuota | None, typer.Option(help="At the limit: what happens to a write.")],
        _as_it_is("over_quota"),
    ),
    "sharing": Bound(
        Annotated[
            str | None,
            typer.Option(metavar="private|group:NAME|public", help="With whom it uses blocks together."),
        ],
        _as_it_is("sharing"),
    ),
    "redis_codec": Bound(
        Annotated[Codec | None, typer.Option(help="How its blocks are stored in Redis; fp8 and int8 lose bits.")],
        _as_it_is("redis_codec"),
    ),
    "copies": Bound(
        Annotated[
            int | None, typer.Option(min=1, max=2, help="2: each block in two places that do not fail together.")
        ],
        _as_it_is("copies"),
    ),
}
"""By the names of the options, in the order of the help."""
