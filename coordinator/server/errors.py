"""One shape for every error the API gives: ``{"error": {"field": ..., "message": ...}}``.

Owns the translation from exceptions to that shape and its status. It knows no resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from tiered.errors import TierError
from tiered.log import get_logger

log = get_logger(__name__)

_BLAMED: Final = {400: "body", 404: "path", 405: "method"}
"""By the framework's own refusals."""

_READING: Final = ("GET", "HEAD")

_ORIGINS: Final = ("body", "path", "query", "header")


class ErrorDetail(BaseModel):
    """field is the offending part of the request, or empty when no one part is to blame."""

    field: str
    message: str


class ErrorBody(BaseModel):
    error: ErrorDetail


class ApiError(Exception):
    """A refusal with its status, the field that caused it and one sentence."""

    def __init__(self, status: int, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field


def invalid(error: ValidationError) -> ApiError:
    """What our own validation refused, as if the request's had."""
    detail = _first(error.errors(include_url=False))
    return ApiError(422, detail.message, field=detail.field)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error statuses of a route, for the OpenAPI document."""
    return {status: {"model": ErrorBody} for status in statuses}


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(TierError, _on_tier_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return answer(error.status, error.message, field=error.field)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _answer(422, _first(error.errors()))


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
    field = _BLAMED.get(error.status_code, "")
    return _answer(error.status_code, ErrorDetail(field=field, message=message), error.headers)


async def _on_tier_error(request: Request, error: Exception) -> JSONResponse:
    if request.method in _READING:
        log.warning("read failed", method=request.method, path=request.url.path, reason=str(error))
        message = f"Redis did not answer; try again ({error})"
    else:
        log.warning("change failed", method=request.method, path=request.url.path, reason=str(error))
        message = f"Redis did not answer, so the change may or may not have been made; look and try again ({error})"
    return _answer(503, ErrorDetail(field="", message=message))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    message = "the coordinator failed on this request; its log has the cause"
    return _answer(500, ErrorDetail(field="", message=message))


def answer(status: int, message: str, *, field: str = "") -> JSONResponse:
    """An error as a response, for who stands outside of the handlers."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return _answer(status, ErrorDetail(field=field, message=message), headers)


def _answer(status: int, detail: ErrorDetail, headers: Mapping[str, str] | None = None) -> JSONResponse:
    # What a caller sent comes back in messages; JSON can escape half a surrogate pair, which no encoding can hold.
    plain = ErrorDetail.model_construct(field=_encodable(detail.field), message=_encodable(detail.message))
    return JSONResponse(ErrorBody(error=plain).model_dump(), status_code=status, headers=headers)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _first(errors: Sequence[Any]) -> ErrorDetail:
    """The first complaint. A rule over several fields names the one to blame in its context."""
    first = errors[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return ErrorDetail(field="body", message=f"the body is not valid JSON: {first['ctx']['error']}")
    if where[:1] and where[0] in _ORIGINS and len(where) > 1:
        where = where[1:]
    field = str(first.get("ctx", {}).get("field", ".".join(where)))
    return ErrorDetail(field=field, message=str(first["msg"]).removeprefix("Value error, "))
