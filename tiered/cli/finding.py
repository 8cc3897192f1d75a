"""One finding of ``tiered doctor``: what was looked at, whether it is there, and how to get it."""

from __future__ import annotations

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One finding; fix says how to get what is missing and is empty when nothing is."""

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str


def found(name: str, detail: str, *, required: bool) -> Check:
    return Check(name, True, required, detail, "")


def missing(name: str, detail: str, *, required: bool, fix: str) -> Check:
    return Check(name, False, required, detail, fix)
