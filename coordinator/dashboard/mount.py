"""Puts the dashboard's pages beside the API: one frame, and the files it is made of.

Owns which paths are pages and what a browser may do on them. The pages hold no numbers: they ask the API, as whoever
opened them, so that they show what it says and nothing else. Who may open one, the gate has found out.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from string import Template
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from coordinator.server.caller import Caller, CallerKind
from coordinator.server.errors import ApiError
from tiered import __version__

PAGES: Final = ("", "tenants", "nodes", "prefixes", "evictions", "capacity")

_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

_FOR_EVER: Final = "private, max-age=31536000, immutable"

# No script but our files, no markup made of text, nothing from elsewhere, in nobody's frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",  # with less, a browser sends the form that logs out as one of nobody's
    "X-Content-Type-Options": "nosniff",
}

_WHO: Final = {
    CallerKind.LOCAL: "on this machine",
    CallerKind.ADMIN: "admin",
    CallerKind.READER: "reading",
}
_LOG_OUT: Final = '<form method="post" action="logout"><button>Log out</button></form>'


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    media_type: str


def mount_dashboard(app: FastAPI) -> None:
    """Call after the API's routes are there."""
    root = resources.files("coordinator.dashboard")
    assets = {name: _Asset(file.read_bytes(), _media_type(name)) for name, file in _files(root / "static")}
    version = _digest(assets)
    shell = Template((root / "shell.html").read_text(encoding="utf-8"))

    async def get_page(request: Request) -> HTMLResponse:
        caller = request.state.caller
        assert isinstance(caller, Caller)
        return HTMLResponse(_page(shell, f"assets/{version}", assets, caller), headers=_HEADERS)

    for page in PAGES:
        app.get(f"/{page}", include_in_schema=False, name=f"page {page}")(get_page)

    @app.get("/assets/{digest}/{name:path}", include_in_schema=False)
    async def get_asset(digest: str, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise ApiError(404, f"the dashboard has no file {name[:100]!r}", field="path")
        # A page of a replica of another version may ask us: what it gets is not to be kept under that name.
        keep = _FOR_EVER if digest == version else "no-store"
        headers = {"Cache-Control": keep, "X-Content-Type-Options": "nosniff"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)


def _page(shell: Template, base: str, assets: dict[str, _Asset], caller: Caller) -> str:
    who = f"tenant {caller.tenant}" if caller.tenant is not None else _WHO[caller.kind]
    modules = (name for name in sorted(assets) if name.endswith(".js") and "/" not in name and name != "theme.js")
    return shell.substitute(
        assets=base,
        preload="\n".join(f'<link rel="modulepreload" href="{base}/{name}">' for name in modules),
        kind=caller.kind,
        tenant=html.escape(caller.tenant or ""),
        who=html.escape(who),
        asked="no" if caller.kind is CallerKind.LOCAL else "yes",
        log_out="" if caller.kind is CallerKind.LOCAL else _LOG_OUT,
        version=html.escape(__version__),
    )


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda file: file.name):
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif each.name.endswith(tuple(_MEDIA_TYPES)):
            yield f"{prefix}{each.name}", each


def _media_type(name: str) -> str:
    return _MEDIA_TYPES[name[name.rindex(".") :]]


def _digest(assets: dict[str, _Asset]) -> str:
    """In the files' address, so that a browser keeps them and never mixes two versions."""
    digest = hashlib.sha256()
    for name, asset in sorted(assets.items()):
        digest.update(f"{name}\0{len(asset.content)}\0".encode())
        digest.update(asset.content)
    return digest.hexdigest()[:16]
