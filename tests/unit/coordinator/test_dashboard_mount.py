"""The dashboard's pages: who may open them, what a browser may do on them, and the files they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import pytest
from fastapi.testclient import TestClient

from coordinator.dashboard.mount import PAGES, mount_dashboard
from coordinator.server.evictions import WORTH_KNOWING
from coordinator.server.session import COOKIE
from tests.unit.coordinator.conftest import Parts

OURS = {"Tiered-Page": "1"}
HTML = {"Accept": "text/html"}


@pytest.fixture
def local(parts: Parts) -> Iterator[TestClient]:
    """Without tokens, on this machine."""
    with parts.http() as client:
        mount_dashboard(client.app)  # type: ignore[arg-type]
        yield client


@pytest.fixture
def guarded(parts: Parts) -> Iterator[TestClient]:
    parts.keeper.refresh()
    with parts.http(admin_token="admin-s3cret", read_token="read-s3cret") as client:
        mount_dashboard(client.app)  # type: ignore[arg-type]
        yield client


def assets_of(page: str) -> set[str]:
    return set(re.findall(r'(?:src|href)="(assets/[^"]+)"', page))


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_there_and_lets_nothing_in_from_elsewhere(local: TestClient, page: str) -> None:
    answer = local.get(f"/{page}")
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", answer.text)
    assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=", answer.text)


def test_every_file_that_a_page_names_is_served_and_kept_for_ever(local: TestClient) -> None:
    named = assets_of(local.get("/tenants").text)
    assert len(named) > 8
    for path in named:
        answer = local.get(f"/{path}")
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Content-Type"].split(";")[0] in ("text/javascript", "text/css", "image/svg+xml")


def test_every_module_that_a_file_imports_is_there() -> None:
    static = resources.files("coordinator.dashboard") / "static"
    folders = [("", static), ("pages/", static / "pages")]
    names = {f"{prefix}{file.name}" for prefix, folder in folders for file in folder.iterdir()}
    for prefix, folder in folders:
        for file in folder.iterdir():
            if file.name.endswith(".js"):
                for target in re.findall(r"""(?:from|import\() ?["'](\.[^"']+)["']""", file.read_text("utf-8")):
                    up = (
                        target.removeprefix("../") if target.startswith("../") else prefix + target.removeprefix("./")
                    )
                    assert up in names, f"{prefix}{file.name} imports {target}"


def test_no_file_makes_markup_of_text_or_names_another_host() -> None:
    static = resources.files("coordinator.dashboard") / "static"
    for file in [*static.iterdir(), *(static / "pages").iterdir()]:
        if file.name.endswith((".js", ".css")):
            text = file.read_text("utf-8")
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
            )
            assert set(re.findall(r"https?://[^\"'\s/]+", text)) <= {"http://www.w3.org"}, file.name


def test_a_file_of_another_version_is_served_and_not_kept(local: TestClient) -> None:
    answer = local.get("/assets/0123456789abcdef/app.js")
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", ["nothing.js", "../shell.html", "%2e%2e/mount.py", "..%2fmount.py", "pages", ""])
def test_nothing_but_the_files_is_served(local: TestClient, name: str) -> None:
    assert local.get(f"/assets/0123456789abcdef/{name}").status_code == 404


def test_a_path_that_is_no_page_is_the_apis_to_refuse(local: TestClient) -> None:
    for path in ("/tenants/acme", "/nothing", "/v1/nothing"):
        answer = local.get(path, headers=HTML)
        assert answer.status_code == 404
        assert answer.json()["error"]["field"] == "path"
    assert local.post("/tenants").status_code == 405


def test_a_page_names_what_its_visitor_is(local: TestClient, guarded: TestClient) -> None:
    assert 'data-caller="local" data-tenant="" data-asked="no"' in local.get("/").text
    assert "Log out" not in local.get("/").text
    guarded.post("/login", data={"token": "admin-s3cret"})
    page = guarded.get("/nodes").text
    assert 'data-caller="reader" data-tenant="" data-asked="yes"' in page  # a change needs the token itself
    assert "Log out" in page
    assert "s3cret" not in page


def test_pages_and_files_need_a_caller(guarded: TestClient) -> None:
    guarded.follow_redirects = False
    for page in PAGES:
        answer = guarded.get(f"/{page}", headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert guarded.get("/assets/0/app.js").status_code == 401


def test_a_session_reads_the_api_from_our_pages_alone(guarded: TestClient) -> None:
    guarded.post("/login", data={"token": "admin-s3cret"})
    assert COOKIE in guarded.cookies
    assert guarded.get("/v1/stats").status_code == 401
    assert guarded.get("/v1/stats", headers=OURS).status_code == 200
    refused = guarded.post("/v1/tenants", json={"tenant": "acme"}, headers=OURS)
    assert refused.status_code == 403
    assert "admin token" in refused.json()["error"]["message"]
    made = guarded.post(
        "/v1/tenants", json={"tenant": "acme"}, headers=OURS | {"Authorization": "Bearer admin-s3cret"}
    )
    assert made.status_code == 201


def test_a_page_from_elsewhere_is_never_told_that_it_may_send_our_header(guarded: TestClient) -> None:
    guarded.post("/login", data={"token": "admin-s3cret"})
    asked = {
        "Origin": "http://127.0.0.1:9999",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "tiered-page",
    }
    answer = guarded.options("/v1/stats", headers=asked)
    assert answer.status_code >= 400
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_a_tenants_session_sees_itself_until_its_token_is_revoked(guarded: TestClient) -> None:
    admin = {"Authorization": "Bearer admin-s3cret"}
    for name in ("acme", "globex"):
        guarded.post("/v1/tenants", json={"tenant": name}, headers=admin)
    made = guarded.post("/v1/tenants/acme/tokens", json={}, headers=admin).json()
    guarded.post("/login", data={"token": made["token"]})
    assert 'data-caller="tenant" data-tenant="acme"' in guarded.get("/").text
    seen = guarded.get("/v1/tenants", headers=OURS).json()["tenants"]
    assert [each["policy"]["tenant"] for each in seen] == ["acme"]
    assert guarded.get("/v1/tenants/globex", headers=OURS).status_code == 404
    assert guarded.patch("/v1/tenants/acme", json={"weight": 9}, headers=OURS).status_code == 403
    assert guarded.delete(f"/v1/tenants/acme/tokens/{made['id']}", headers=admin).status_code == 204
    assert guarded.get("/v1/tenants", headers=OURS).status_code == 401


def test_the_page_of_evictions_offers_the_kinds_that_the_api_has_by_default() -> None:
    page = (resources.files("coordinator.dashboard") / "static/pages/evictions.js").read_text()
    listed = re.search(r"^const KINDS = \[(.*?)\];", page, re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert tuple(re.findall(r'"(\w+)"', listed[1])) == WORTH_KNOWING
