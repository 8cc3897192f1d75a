"""One shape for every error the API gives, which is OpenAI's: ``{"error": {"message", "type", "param", "code"}}``.

Owns the statuses, that shape, and the translation from exceptions. It knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""By status; anything else is an invalid request."""


class ApiError(Exception):
    """A refusal: status, one sentence, the field to blame if any, and a code that programs may ask for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """What a caller sent comes back in it; JSON can escape half a surrogate pair, which no encoding can hold."""
        detail = {
            "message": _encodable(self.message),
            "type": _TYPES.get(self.status, "invalid_request_error"),
            "param": None if self.param is None else _encodable(self.param),
            "code": self.code,
        }
        return {"error": detail}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def bad(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A request that cannot be answered as it is."""
    return ApiError(400, message if param is None else f"{param}: {message}", param=param, code=code)


def stopping() -> ApiError:
    return ApiError(503, "the server is stopping; ask another", code="stopping", headers={"Retry-After": "5"})


def loading() -> ApiError:
    return ApiError(503, "the model is still being loaded", code="loading", headers={"Retry-After": "5"})


def failed() -> ApiError:
    return ApiError(500, "the server failed on this request; its log has the cause", code="internal")


def invalid(error: ValidationError) -> ApiError:
    """The first thing that validation refused. Nothing of the value is repeated: it may be somebody's prompt."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}")
    where = ".".join(str(part) for part in first["loc"])
    return bad(where or None, str(first["msg"]).removeprefix("Value error, "))


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    return failed().response()


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
