"""Real coordinators with tokens and TLS: replicas that agree on tokens, browsers, the command, hostile sockets."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import trustme

from tests.integration.test_coordinator import DEADLINE_S, CoordinatorProcess, Start, refusal
from tests.support.redis_server import eventually
from tiered.cli.main import main
from tiered.cluster.embedded import EmbeddedServer

ADMIN, READER = "admin-s3cret", "read-s3cret"


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[CoordinatorProcess] = []

    def start_one(*flags: str) -> CoordinatorProcess:
        started.append(CoordinatorProcess("--port", "0", *flags))
        return started[-1]

    yield start_one
    for process in started:
        process.close()


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[str, ...]:
    """Flags that set both tokens, by files as a mounted secret would."""
    flags: list[str] = []
    for name, token in (("admin", ADMIN), ("read", READER)):
        file = tmp_path / name
        file.write_text(token + "\n", encoding="ascii")
        flags += ["--set", f"http.{name}_token_file={file}"]
    return tuple(flags)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[str, ...]:
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1", "localhost")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    return ("--set", f"http.tls_cert={tmp_path}/cert.pem", "--set", f"http.tls_key={tmp_path}/key.pem")


def url_of(process: CoordinatorProcess, scheme: str = "http") -> str:
    line = process.line()
    said = re.fullmatch(rf"coordinator ready on ({scheme}://127\.0\.0\.1:\d+)", line)
    assert said is not None, line
    return said[1]


def client(url: str, token: str = "", **options: object) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_S, trust_env=False, **options)  # type: ignore[arg-type]


def stop(process: CoordinatorProcess) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_tokens_hold_at_every_replica_and_end_at_every_replica(
    start: Start, private_redis_server: EmbeddedServer, tokens: tuple[str, ...]
) -> None:
    flags = ("--redis-url", private_redis_server.url, *tokens)
    first, second = start(*flags), start(*flags)
    here, there = url_of(first), url_of(second)
    with client(here, ADMIN) as admin:
        assert admin.post("/v1/tenants", json={"tenant": "acme"}).status_code == 201
        made = admin.post("/v1/tenants/acme/tokens", json={"label": "board"}).json()
        with client(there, made["token"]) as tenant:
            (seen,) = tenant.get("/v1/tenants").json()["tenants"]
            assert seen["policy"]["tenant"] == "acme"
            assert tenant.patch("/v1/tenants/acme", json={"weight": 9}).status_code == 403
            assert admin.delete(f"/v1/tenants/acme/tokens/{made['id']}").status_code == 204
            revoked_at = time.monotonic()
            eventually(lambda: tenant.get("/v1/tenants").status_code == 401, within_s=DEADLINE_S)
            assert time.monotonic() - revoked_at < 2.0
    stop(first)
    stop(second)


def test_with_redis_away_a_known_token_goes_on(
    start: Start, private_redis_server: EmbeddedServer, tokens: tuple[str, ...]
) -> None:
    process = start("--redis-url", private_redis_server.url, *tokens)
    url = url_of(process)
    with client(url, ADMIN) as admin:
        admin.post("/v1/tenants", json={"tenant": "acme"})
        token = admin.post("/v1/tenants/acme/tokens", json={}).json()["token"]
        with client(url, token) as tenant:
            assert tenant.get("/v1/stats").status_code == 200
            private_redis_server.kill()
            eventually(lambda: admin.get("/v1/stats").json()["stale"], within_s=DEADLINE_S)
            assert tenant.get("/v1/stats").json()["stale"]
        with client(url, "tiered_" + "x" * 43) as stranger:
            assert stranger.get("/v1/stats").status_code == 503


@pytest.mark.parametrize(
    ("flags", "host"),
    [((), socket.gethostname()), (("--set", "http.advertise_host=c1.example"), "c1.example")],
    ids=["its machine's name", "as it is told"],
)
def test_a_replica_that_listens_everywhere_is_named_as_others_find_it(
    start: Start, private_redis_server: EmbeddedServer, tokens: tuple[str, ...], flags: tuple[str, ...], host: str
) -> None:
    process = start("--redis-url", private_redis_server.url, "--host", "0.0.0.0", *flags, *tokens)
    url = url_of(process)
    with client(url, ADMIN) as admin:
        eventually(lambda: admin.get("/v1/leader").json()["leader"] is not None, within_s=DEADLINE_S)
        assert admin.get("/v1/leader").json()["leader"]["url"] == f"http://{host}:{httpx.URL(url).port}"


def seen_by(browser: httpx.Client) -> list[str]:
    """The tenants that the dashboard's pages get to see."""
    seen = browser.get("/v1/tenants", headers={"Tiered-Page": "1"}).json()["tenants"]
    return [tenant["policy"]["tenant"] for tenant in seen]


def test_the_dashboard_asks_for_a_token_and_shows_a_tenant_itself(
    start: Start, private_redis_server: EmbeddedServer, tokens: tuple[str, ...]
) -> None:
    process = start(*("--redis-url", private_redis_server.url, "--set", "cluster.snapshot_interval_s=0.05"), *tokens)
    url = url_of(process)
    with client(url, ADMIN) as admin:
        for name in ("acme", "globex"):
            admin.post("/v1/tenants", json={"tenant": name})
        token = admin.post("/v1/tenants/acme/tokens", json={}).json()["token"]
    page = {"Accept": "text/html"}
    with client(url) as browser:
        assert browser.get("/", headers=page).headers["location"] == "/login"
        assert browser.get("/assets/0/app.js").status_code == 401
        assert browser.post("/login", data={"token": token}).status_code == 303
        shown = browser.get("/", headers=page)
        assert shown.status_code == 200
        assert 'data-tenant="acme"' in shown.text
        assert token not in shown.text
        assert seen_by(browser) == ["acme"]
    with client(url) as browser:
        browser.post("/login", data={"token": READER})
        assert seen_by(browser) == ["acme", "default", "globex"]
    stop(process)


def test_everything_is_served_over_tls(
    start: Start,
    private_redis_server: EmbeddedServer,
    tokens: tuple[str, ...],
    tls: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = start("--redis-url", private_redis_server.url, *tokens, *tls)
    url = url_of(process, "https")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with client(url, READER, verify=trusted) as reader:
        assert reader.get("/v1/stats").status_code == 200
        assert reader.post("/login", data={"token": READER}).headers["set-cookie"].lower().count("secure") == 1
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/healthz", trust_env=False)

    monkeypatch.delenv("TIERED_TOKEN", raising=False)
    monkeypatch.delenv("TIERED_CA", raising=False)
    by_file = ("--token-file", str(tmp_path / "admin"), "--coordinator")
    assert main(["nodes", *by_file, url, "--ca", str(tmp_path / "ca.pem")]) == 0
    assert main(["nodes", *by_file, url]) == 2
    assert "is not trusted" in capsys.readouterr().err
    assert main(["nodes", *by_file, url.replace("https", "http"), "--ca", str(tmp_path / "ca.pem")]) == 2
    assert "write https://" in capsys.readouterr().err
    assert main(["nodes", "--coordinator", url, "--ca", str(tmp_path / "ca.pem")]) == 2
    assert "TIERED_TOKEN" in capsys.readouterr().err
    assert main(["nodes", *by_file, url, "--ca", str(tmp_path / "key.pem")]) == 2
    assert "holds no certificate" in capsys.readouterr().err
    monkeypatch.setenv("TIERED_CA", str(tmp_path / "ca.pem"))
    assert main(["tokens", "create", "--tenant", "default", "--label", "board", *by_file, url]) == 0
    token = capsys.readouterr().out.strip()
    assert main(["tokens", "list", "--tenant", "default", *by_file, url]) == 0
    listed = capsys.readouterr().out
    assert "board" in listed
    assert token not in listed
    monkeypatch.setenv("TIERED_TOKEN", token)
    assert main(["tenants", "list", "--coordinator", url]) == 0
    assert main(["tokens", "revoke", listed.splitlines()[1].split()[0], "--tenant", "default", *by_file, url]) == 0
    assert main(["tenants", "list", "--coordinator", url]) == 2
    assert "not valid here" in capsys.readouterr().err
    stop(process)


def test_a_command_says_when_it_speaks_tls_to_a_plain_port(
    start: Start, private_redis_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(start("--redis-url", private_redis_server.url))
    assert main(["nodes", "--coordinator", url.replace("http", "https")]) == 2
    assert "write http://" in capsys.readouterr().err


def test_a_certificate_without_its_key_stops_the_start(start: Start, tls: tuple[str, ...]) -> None:
    assert "http.tls_cert" in refusal(start(*tls[:2]))


def test_a_token_file_that_is_not_there_stops_the_start(start: Start, tmp_path: Path) -> None:
    said = refusal(start("--set", f"http.admin_token_file={tmp_path}/nothing"))
    assert said.startswith("tiered-coordinator: http.admin_token_file: ")


# Sockets that keep to no rule.


def raw(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    sock.settimeout(DEADLINE_S)
    return sock


def head(url: str, *lines: str) -> bytes:
    return "\r\n".join([*lines, f"Host: {url.removeprefix('http://')}", "", ""]).encode("latin-1")


def status(sock: socket.socket) -> int:
    """Of the answer; 0 if the connection was closed without one."""
    answer = b""
    try:
        while b"\r\n" not in answer and (more := sock.recv(4096)):
            answer += more
    except ConnectionResetError:
        return 0
    return int(answer.split()[1]) if answer else 0


JSON = "Content-Type: application/json"


def test_hostile_sockets_are_answered_or_dropped_and_the_coordinator_lives(
    start: Start, private_redis_server: EmbeddedServer
) -> None:
    process = start("--redis-url", private_redis_server.url)
    url = url_of(process)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for sent, expected in (
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Transfer-Encoding: chunked") + chunk * 2, {413}),
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Content-Length: 99999999999"), {413}),
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Content-Length: " + "9" * 500), {400, 413}),
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Content-Length: -1"), {400}),
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Content-Length: 2", "Content-Length: 3") + b"{}", {400}),
        (head(url, "POST /v1/tenants HTTP/1.1", JSON, "Transfer-Encoding: chunked") + b"zz\r\n", {0, 400}),
        (head(url, "GET /v1/stats HTTP/1.1", "X-Long: " + "x" * 10_000), {200}),
        (head(url, "GET /v1/stats HTTP/1.1", *(f"X-{i}: {'x' * 1000}" for i in range(200))), {400, 431}),
        (head(url, f"GET /v1/tenants/{'x' * 100_000} HTTP/1.1"), {400, 414, 422}),
        (head(url, "GET /v1/tenants/%ff%00 HTTP/1.1"), {422}),
        (head(url, "GET /v1/tenants/../../etc/passwd HTTP/1.1"), {404}),
        (head(url, "GET /v1/nothing HTTP/1.1"), {404}),
        (head(url, "DELETE /v1/nodes HTTP/1.1"), {405}),
        (head(url, "POST /metrics HTTP/1.1"), {405}),
        (head(url, "GET /v1/tenants/a\x00b HTTP/1.1"), {400}),
        (head(url, "TRACE /v1/tenants HTTP/1.1"), {405}),
        (head(url, "OPTIONS * HTTP/1.1"), {404, 405}),
        (head(url, "HEAD /v1/tenants HTTP/1.1"), {200, 405}),
        (head(url, "PRI * HTTP/2.0"), {0, 400, 404, 405}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", {0, 400}),
        (b"\x00" * 200_000, {0, 400}),
        (b"GET /\r\n\r\n", {0, 400}),
    ):
        with closing(raw(url)) as sock:
            try:
                sock.sendall(sent)
            except ConnectionError:
                assert expected & {0, 400, 413}  # refused while we still sent
            assert status(sock) in expected, sent[:100]
    with client(url) as http:
        assert http.get("/v1/stats").status_code == 200
    stop(process)


def test_a_body_that_does_not_arrive_is_not_waited_for(start: Start, private_redis_server: EmbeddedServer) -> None:
    url = url_of(start("--redis-url", private_redis_server.url))
    with closing(raw(url)) as sock, client(url) as http:
        sock.sendall(head(url, "POST /v1/tenants HTTP/1.1", JSON, "Content-Length: 100") + b"{")
        assert http.get("/v1/stats").status_code == 200
        began = time.monotonic()
        assert status(sock) == 408
        assert time.monotonic() - began < 20.0
