"""What a page of the dashboard goes on showing to a visitor while it is open."""

from __future__ import annotations

import pytest
from starlette.datastructures import State
from starlette.requests import Request

from coordinator.dashboard.mount import _view_for
from coordinator.server.caller import Caller, CallerKind
from coordinator.server.credentials import Credentials
from coordinator.server.known_tokens import KnownTokens
from coordinator.server.session import COOKIE
from tests.unit.coordinator.conftest import Parts
from tiered.clock import SystemClock
from tiered.cluster.access import AccessTokens
from tiered.tenancy.policy import TenantPolicy
from tiered.types import TenantId

ACME = TenantId("acme")


@pytest.fixture
def credentials(parts: Parts) -> Credentials:
    for name in ("acme", "globex"):
        parts.tenants.create(TenantPolicy(tenant=name))
    parts.keeper.refresh()
    tokens = AccessTokens(parts.client, parts.keys)
    return Credentials(
        admin_token="admin-s3cret", read_token="", tokens=tokens, known=KnownTokens(tokens, SystemClock())
    )


def visit(caller: Caller, **headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": raw})
    request.scope["state"] = State({"caller": caller})._state
    return request


@pytest.mark.parametrize("by", ["cookie", "authorization"])
def test_a_tenant_sees_itself_until_its_token_is_revoked(parts: Parts, credentials: Credentials, by: str) -> None:
    made = credentials.tokens.create(ACME)
    assert made is not None
    token, grant = made
    assert credentials.known.find(token)
    caller = Caller(CallerKind.TENANT, ACME)
    shown = {
        "cookie": f"{COOKIE}={credentials.sessions.open(caller, token)}",
        "authorization": f"Bearer {token}",
    }
    sent_to_login: list[bool] = []
    view = _view_for(
        visit(caller, **{by: shown[by]}), parts.keeper, credentials, log_in=lambda: sent_to_login.append(True)
    )
    assert [row["tenant"] for row in view().tenants] == ["acme"]
    assert not sent_to_login
    credentials.revoke(ACME, grant.id)
    assert view().tenants == ()
    assert view().warning.endswith("Your session has ended.")
    assert sent_to_login


def test_an_admin_sees_every_tenant(parts: Parts, credentials: Credentials) -> None:
    request = visit(Caller(CallerKind.ADMIN), authorization="Bearer admin-s3cret")
    view = _view_for(request, parts.keeper, credentials, log_in=lambda: pytest.fail("sent to the login"))
    assert {"acme", "globex"} <= {row["tenant"] for row in view().tenants}
