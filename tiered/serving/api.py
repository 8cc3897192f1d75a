"""The HTTP API: OpenAI's routes, and those for who runs the server.

Owns the routes and what is counted of them; how a request is answered lives in ``answering``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tiered import __version__
from tiered.serving.answering import answer
from tiered.serving.asking import ClientGone
from tiered.serving.bodies import ChatBody, CompletionBody, Sampled
from tiered.serving.errors import ApiError, install_error_handlers
from tiered.serving.metrics import GONE_STATUS
from tiered.serving.services import Serving

_PROBES: Final = ["GET", "HEAD"]


def build_api(serving: Serving) -> FastAPI:
    app = FastAPI(
        title="Tiered serve", version=__version__, summary="One model, its KV cached.", docs_url=None, redoc_url=None
    )
    install_error_handlers(app)
    metrics = serving.metrics
    metrics.show("queue_length", "Requests that wait for the model", lambda: serving.engine.n_waiting)
    metrics.show("ready", "1 while the model is loaded and requests are taken", lambda: serving.ready)
    metrics.show("cache_attached", "1 while there is a cache to ask", lambda: serving.cache.attached)

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatBody))
    async def chat(request: Request) -> Response:
        return await _counted(serving, "chat", lambda: answer(serving, request, ChatBody))

    @app.post("/v1/completions", openapi_extra=_takes(CompletionBody))
    async def completions(request: Request) -> Response:
        return await _counted(serving, "completions", lambda: answer(serving, request, CompletionBody))

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        serving.callers.tenant(request.headers)
        return {"object": "list", "data": [_model_card(serving)]}

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        serving.callers.tenant(request.headers)
        serving.require_name(name)
        return _model_card(serving)

    @app.api_route("/health", methods=_PROBES)
    @app.api_route("/healthz", methods=_PROBES)
    async def health() -> Response:
        """The process lives: also while it loads its model, and without its cache."""
        alive = serving.engine.alive or serving.is_stopping
        return JSONResponse(_state(serving, "ok" if alive else "failed"), status_code=200 if alive else 503)

    @app.api_route("/ready", methods=_PROBES)
    @app.api_route("/readyz", methods=_PROBES)
    async def readiness() -> Response:
        """The model is loaded and requests are taken. A cache is only an optimisation, so it does not count."""
        status = "ok" if serving.ready else "stopping" if serving.is_stopping else "loading"
        return JSONResponse(_state(serving, status), status_code=200 if serving.ready else 503)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(serving.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


def _takes(body: type[Sampled]) -> dict[str, Any]:
    """For the OpenAPI document: bodies are read by us, after the key, and within bounds."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


def _state(serving: Serving, status: str) -> dict[str, Any]:
    cache = serving.cache
    shown = {"kind": cache.kind, "attached": cache.attached, "node": cache.node}
    return {"status": status, "model": serving.name, "ready": serving.ready, "cache": shown}


def _model_card(serving: Serving) -> dict[str, Any]:
    return {"id": serving.name, "object": "model", "created": serving.created, "owned_by": "tiered"}


async def _counted(serving: Serving, endpoint: str, reply: Callable[[], Awaitable[Response]]) -> Response:
    status = 500
    try:
        response = await reply()
        status = response.status_code
    except ApiError as error:
        status = error.status
        raise
    except ClientGone:
        status = GONE_STATUS
        response = Response(status_code=GONE_STATUS)  # for nobody
    finally:
        serving.metrics.count_request(endpoint, status)
    return response
