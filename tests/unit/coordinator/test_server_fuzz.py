"""Every operation of the OpenAPI document, called with what it allows and with what it does not.

No answer may be a 5xx, and each must be one the document has: its status, its type, its schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.coordinator.builders import node_info, node_stats, tokens
from tests.unit.coordinator.conftest import Parts
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeId, TenantId, TenantStats

ADMIN, READER = "admin-s3cret", "read-s3cret"
EXAMPLES = 12
"""Of each operation and mode, for a caller that gets far; with some twenty operations under a minute in all."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {"tenant": "acme", "node": "n1"}


@pytest.fixture
def callers(parts: Parts) -> dict[str, str]:
    """The tokens of each kind of caller, over a cluster in which a tenant and a node are there to be found."""
    parts.tenants.create(TenantPolicy(tenant="acme"))
    epoch = parts.membership.join(node_info("n1"), lease_ttl_s=600.0)
    held = node_stats(acme=TenantStats(tokens=tokens(hot=5, missed=1), hot_blocks=2, hot_bytes=2048))
    parts.membership.renew(NodeId("n1"), epoch, held, lease_ttl_s=600.0)
    parts.keeper.refresh()
    with parts.http(admin_token=ADMIN, read_token=READER, bearer=ADMIN) as admin:
        tenant = admin.post("/v1/tenants/acme/tokens", json={}).json()["token"]
    return {"admin": ADMIN, "reader": READER, "tenant": tenant, "nobody": "", "stranger": "tiered_" + "x" * 43}


def operations(app: Any) -> Iterator[APIOperation[Any, Any, Any]]:
    for result in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        yield result.ok()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("caller", ["admin", "reader", "tenant", "nobody", "stranger"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_call_is_answered_by_a_failure_or_by_what_is_not_documented(
    parts: Parts,
    callers: dict[str, str],
    caller: str,
    mode: GenerationMode,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = callers[caller]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    examples = EXAMPLES if caller in ("admin", "tenant") else 2
    called = 0
    with parts.http(admin_token=ADMIN, read_token=READER) as http, caplog.at_level(logging.ERROR):
        for operation in operations(http.app):
            takes_something = operation.definition.raw.keys() & {"parameters", "requestBody"}
            if mode is GenerationMode.NEGATIVE and not takes_something:
                continue  # nothing there can be wrong

            @settings(
                max_examples=examples,
                phases=[Phase.generate],
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode), finds=st.booleans())
            def call(case: Case, finds: bool) -> None:
                nonlocal called
                if finds and isinstance(case.path_parameters, dict):
                    case.path_parameters |= {k: v for k, v in KNOWN.items() if k in case.path_parameters}
                called += 1
                case.headers.pop("Authorization", None)
                answer = case.call(headers=headers)
                case.validate_response(answer, checks=CHECKS)
                if token != ADMIN and answer.status_code < 400:
                    assert case.method == "GET" or case.path in ("/v1/route", "/v1/prefixes")
                parts.tenants.create(TenantPolicy(tenant=TenantId("acme")))  # somebody may have deleted it

            try:
                call()
            except Exception as error:
                error.add_note(f"{operation.label} as {caller}")
                raise
    assert called >= 10 * examples
    assert not caplog.records
