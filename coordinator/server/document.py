"""The API described: ``/openapi.json``, and ``/docs`` to read it and try it out, from assets of our own.

Owns what every operation has in common, so that no route repeats it: the errors that the gate, the limits on a body
and the check of parameters give. Nothing here leaves the host: the page's assets come from an installed package.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final, Literal

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response

DESCRIPTION: Final = """\
Tenants, nodes and usage of one KV cache cluster.

Reading needs the read token, changing the admin token; a tenant's own token sees that tenant and changes nothing.
Where the coordinator listens on this machine only and no token is set, none is needed. Each error names the `field`
that is wrong.
"""

_Asset = Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"]
_MEDIA_TYPES: Final[dict[_Asset, str]] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
# A browser holds the page to what the docstring says.
_POLICY: Final = "default-src 'self' 'unsafe-inline'; img-src 'self' data:"

_GATE: Final = {401: "no token, or one that is not valid", 403: "this token may not do that", 503: "Redis is away"}
_PARAMETERS: Final = {422: "a value is not valid"}
_BODY: Final = {400: "the body is no text", 408: "the body did not arrive in time", 413: "the body is too large"}


def install_document(app: FastAPI) -> None:
    """Call once, after the last router."""
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    static = resources.files("fastapi_offline") / "static"

    @app.get("/docs", include_in_schema=False)
    async def get_docs() -> HTMLResponse:
        # Relative, so that the page also works behind a proxy that serves us below a prefix.
        page = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon.png",
        )
        page.headers["Content-Security-Policy"] = _POLICY
        return page

    @app.get("/docs/{asset}", include_in_schema=False)
    def get_asset(asset: _Asset) -> Response:
        return Response((static / asset).read_bytes(), media_type=_MEDIA_TYPES[asset])


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=DESCRIPTION, routes=app.routes
        )
        for operations in document["paths"].values():
            for operation in operations.values():
                _add_errors(operation)
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


def _add_errors(operation: dict[str, Any]) -> None:
    errors: dict[int, str] = {}
    if "security" in operation:
        errors |= _GATE
    if "parameters" in operation or "requestBody" in operation:
        errors |= _PARAMETERS
    if "requestBody" in operation:
        errors |= _BODY
    responses = operation["responses"]
    for status, description in errors.items():
        if str(status) not in responses or "HTTPValidationError" in str(responses[str(status)]):
            schema = {"$ref": "#/components/schemas/ErrorBody"}  # there since /readyz declares it
            responses[str(status)] = {
                "description": description,
                "content": {"application/json": {"schema": schema}},
            }
