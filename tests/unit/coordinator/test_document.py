"""The API's description: complete, and read without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient

from coordinator.server.gate import OPEN

Operation = dict[str, Any]


@pytest.fixture
def document(api: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("/openapi.json").json()
    return answer


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, Operation]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_the_resources_are_there(document: dict[str, Any]) -> None:
    assert set(document["paths"]) >= {
        "/v1/tenants",
        "/v1/tenants/{tenant}",
        "/v1/tenants/{tenant}/blocks",
        "/v1/tenants/{tenant}/pins",
        "/v1/tenants/{tenant}/tokens",
        "/v1/tenants/{tenant}/tokens/{id}",
        "/v1/nodes",
        "/v1/usage",
        "/v1/stats",
        "/healthz",
        "/readyz",
        "/metrics",
    }


def test_every_operation_says_what_it_is_and_where_it_belongs(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)


def test_every_operation_names_the_token_it_needs(document: dict[str, Any]) -> None:
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for method, path, operation in operations(document):
        assert ("security" in operation) is (path not in OPEN), (method, path)


def test_every_operation_lists_its_errors_and_their_shape(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        expected = {"401", "403", "503"} if "security" in operation else set()
        if "parameters" in operation or "requestBody" in operation:
            expected.add("422")
        if "requestBody" in operation:
            expected |= {"400", "408", "413"}
        errors = {code: answer for code, answer in operation["responses"].items() if code >= "400"}
        assert expected <= set(errors), (method, path)
        for answer in errors.values():
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (method, path)
    assert "HTTPValidationError" not in document["components"]["schemas"]


class Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action")]


def test_no_address_of_the_page_leaves_the_host(api: TestClient) -> None:
    page = api.get("/docs")
    parser = Addresses()
    parser.feed(page.text)
    assert len(parser.found) >= 3
    for address in parser.found:
        assert not re.match(r"[a-z]+:|//", address), address
        assert api.get(f"/{address}").status_code == 200
    assert "://" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert re.search(r"url: ['\"]openapi\.json['\"]", page.text)


@pytest.mark.parametrize("path", ["/docs/core.py", "/docs/..%2Fcore.py", "/docs/%2e%2e/core.py", "/redoc"])
def test_nothing_else_is_served_below_it(api: TestClient, path: str) -> None:
    assert api.get(path, follow_redirects=False).status_code in (404, 422)
