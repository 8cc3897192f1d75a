"""The coordinator's HTTP API as typed calls, each with a deadline; and how the command finds the coordinator.

It knows paths and shapes. It prints nothing, and refuses to know who asked: every failure is one
ConfigError sentence.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec
import typer

from tiered.cli.access import token, trust
from tiered.cli.bodies import AccessToken, Alert, NewAccessToken, Node, Stats, Tenant, UsageRow, _AccessTokens
from tiered.cli.cluster_file import read_cluster_file
from tiered.cli.explained import BlockWhy, Evictions
from tiered.cli.prompts import HotPrefixes, Route, Whereabouts
from tiered.cli.sizing import Capacity
from tiered.errors import ConfigError
from tiered.types import DrainProgress

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 5.0
"""Of one call. The coordinator answers from what it already knows, so more than this means that it hangs."""

WALK_TIMEOUT_S: Final = 300.0
"""Of a call that goes over blocks in Redis while we wait: some 40,000 a second."""

CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        envvar="TIERED_COORDINATOR",
        metavar="URL",
        help="The coordinator's address; without it, the cluster that `tiered up` runs on this machine.",
        show_default=False,
    ),
]


class _Tenants(msgspec.Struct, frozen=True):
    tenants: list[Tenant]


class _Cleared(msgspec.Struct, frozen=True):
    redis_blocks: int


class _Pinned(msgspec.Struct, frozen=True):
    blocks: int


class _Nodes(msgspec.Struct, frozen=True):
    nodes: list[Node]


class _Usage(msgspec.Struct, frozen=True):
    usage: list[UsageRow]


class _Alerts(msgspec.Struct, frozen=True):
    alerts: list[Alert]


class _ErrorDetail(msgspec.Struct, frozen=True):
    field: str
    message: str


class _Error(msgspec.Struct, frozen=True):
    error: _ErrorDetail


T = TypeVar("T")
Verb = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class NotFound(ConfigError):
    """What was asked for is not there."""


class CoordinatorClient:
    """One coordinator. Use it in a ``with``; every method raises ConfigError and nothing else of its own."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        token: str = "",
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._verify, self._transport = verify, transport
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Addresses of a cluster are its own: a proxy of the environment is for the world outside.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            headers=headers,
            verify=verify,
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def with_token(self, token: str) -> CoordinatorClient:
        """The same coordinator, as another caller."""
        return CoordinatorClient(
            self.url, timeout_s=self._timeout_s, token=token, verify=self._verify, transport=self._transport
        )

    def stats(self) -> Stats:
        return self._call("GET", "/v1/stats", Stats)

    def alerts(self) -> list[Alert]:
        """The gravest first. Errors: NotFound of a coordinator that is too old to judge."""
        return self._call("GET", "/v1/alerts", _Alerts).alerts

    def nodes(self) -> list[Node]:
        return self._call("GET", "/v1/nodes", _Nodes).nodes

    def usage(self, *, tenant: str | None = None, node: str | None = None) -> list[UsageRow]:
        """Of this tenant, and on this node, where given."""
        asked = {name: value for name, value in (("tenant", tenant), ("node", node)) if value is not None}
        return self._call("GET", f"/v1/usage?{urlencode(asked)}", _Usage).usage

    def drain(self, node: str) -> DrainProgress:
        """Ask a node to drain."""
        return self._call("POST", _drain_path(node), DrainProgress)

    def drain_progress(self, node: str) -> DrainProgress:
        return self._call("GET", _drain_path(node), DrainProgress)

    def call_off_drain(self, node: str) -> None:
        self._send("DELETE", _drain_path(node), None)

    def tenants(self) -> list[Tenant]:
        return self._call("GET", "/v1/tenants", _Tenants).tenants

    def tenant(self, name: str) -> Tenant:
        return self._call("GET", _tenant_path(name), Tenant)

    def create_tenant(self, name: str, changes: Mapping[str, object]) -> Tenant:
        return self._call("POST", "/v1/tenants", Tenant, body={"tenant": name, **changes})

    def change_tenant(self, name: str, changes: Mapping[str, object]) -> Tenant:
        """Only the given bounds change; None removes a limit."""
        return self._call("PATCH", _tenant_path(name), Tenant, body=changes)

    def delete_tenant(self, name: str) -> None:
        self._send("DELETE", _tenant_path(name), None)

    def clear(self, what: Mapping[str, object]) -> int:
        """what: ``{"tenant": NAME}``, ``{"prefix": HASH}`` or ``{"scope": ID}``. How many blocks Redis let go of."""
        return self._call("POST", "/v1/clear", _Cleared, body=what, answer_s=WALK_TIMEOUT_S).redis_blocks

    def pin(self, tenant: str, hashes: Sequence[str], *, lease_s: float) -> int:
        """How many of a prefix's blocks Redis has and keeps for so long."""
        body = {"hashes": list(hashes), "lease_s": lease_s}
        path = f"{_tenant_path(tenant)}/pins"
        return self._call("PUT", path, _Pinned, body=body, answer_s=WALK_TIMEOUT_S).blocks

    def unpin(self, tenant: str, hashes: Sequence[str]) -> int:
        path, body = f"{_tenant_path(tenant)}/pins/release", {"hashes": list(hashes)}
        return self._call("POST", path, _Pinned, body=body, answer_s=WALK_TIMEOUT_S).blocks

    def create_token(self, tenant: str, *, label: str = "", expires_s: float | None = None) -> NewAccessToken:
        return self._call("POST", _tokens_path(tenant), NewAccessToken, body={"label": label, "expires_s": expires_s})

    def tokens(self, tenant: str) -> list[AccessToken]:
        return self._call("GET", _tokens_path(tenant), _AccessTokens).tokens

    def revoke_token(self, tenant: str, token_id: str) -> None:
        if not token_id.isalnum():  # "." and ".." would be taken for steps in the path
            raise ConfigError(f"id: {token_id!r} is not a token's id; `tiered tokens list` has them", field="id")
        self._send("DELETE", f"{_tokens_path(tenant)}/{quote(token_id, safe='')}", None)

    def route(self, question: Mapping[str, object]) -> Route:
        """question: as :func:`tiered.cli.prompts.question` makes it."""
        return self._call("POST", "/v1/route", Route, body=question)

    def prefixes(self, question: Mapping[str, object]) -> Whereabouts:
        return self._call("POST", "/v1/prefixes", Whereabouts, body=question)

    def block_why(self, block: str) -> BlockWhy:
        """block: its hash in hex."""
        return self._call("GET", f"/v1/blocks/{quote(block, safe='')}/why", BlockWhy)

    def block_why_if_known(self, block: str) -> BlockWhy | None:
        """None where nobody has it or remembers it."""
        try:
            return self.block_why(block)
        except NotFound:
            return None

    def evictions(self, query: str) -> Evictions:
        """query: of the URL, encoded."""
        return self._call("GET", f"/v1/evictions?{query}", Evictions)

    def capacity(self, query: str) -> Capacity:
        """query: of the URL, encoded."""
        return self._call("GET", f"/v1/capacity?{query}", Capacity)

    def hot_prefixes(self, limit: int) -> HotPrefixes:
        return self._call("GET", f"/v1/prefixes?limit={limit}", HotPrefixes)

    def _call(
        self,
        verb: Verb,
        path: str,
        kind: type[T],
        *,
        body: Mapping[str, object] | None = None,
        answer_s: float | None = None,
    ) -> T:
        response = self._send(verb, path, body, answer_s=answer_s)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"coordinator: what answers at {self.url} is not a coordinator of this version ({path}: {error}); "
                "check --coordinator or TIERED_COORDINATOR",
                field="coordinator",
            ) from None

    def _send(
        self, verb: Verb, path: str, body: Mapping[str, object] | None, *, answer_s: float | None = None
    ) -> httpx.Response:
        """answer_s: how long the answer may take, once connected, where that is not as long as all else."""
        options: dict[str, Any] = {} if body is None else {"json": dict(body)}
        if answer_s is not None:
            options["timeout"] = httpx.Timeout(self._timeout_s, read=answer_s)
        try:
            response = self._http.request(verb, path, **options)
        except httpx.TimeoutException as error:
            read_s = self._timeout_s if answer_s is None else answer_s
            waited_s = read_s if isinstance(error, httpx.ReadTimeout) else self._timeout_s
            raise ConfigError(
                f"coordinator: {self.url} did not answer within {waited_s:g} s; see its log, or name "
                "another one with --coordinator or TIERED_COORDINATOR",
                field="coordinator",
            ) from None
        except httpx.TransportError as error:
            raise _unreached(self.url, error) from None
        if response.is_success:
            return response
        raise _refusal(self.url, response)


def find_coordinator(option: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The address given, else that of the cluster running on this machine, else the default one."""
    if option:
        return _checked(option)
    state = read_cluster_file(environ)
    return state.coordinator_url if state else DEFAULT_URL


def connect(option: str | None) -> CoordinatorClient:
    """The client of the coordinator that the flags, the environment or this machine's cluster name."""
    return CoordinatorClient(find_coordinator(option), token=token(), verify=trust())


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url).raw_host.decode("ascii").encode("idna")  # as httpx and the resolver take it
    except (ValueError, httpx.InvalidURL):  # a port that is no number, brackets that do not close, no name of a host
        usable = False
    if not usable:
        raise ConfigError(
            f"coordinator: {url!r} is not an address; write --coordinator http://host:port", field="coordinator"
        )
    return url


def _tenant_path(name: str) -> str:
    # "." and ".." would be taken for steps in the path; no tenant can be called so.
    if name in ("", ".", ".."):
        raise ConfigError(f"tenant: {name!r} is not a tenant's name", field="tenant")
    return f"/v1/tenants/{quote(name, safe='')}"


def _drain_path(node: str) -> str:
    if node in ("", ".", ".."):
        raise ConfigError(f"node: {node!r} is not a node's name", field="node")
    return f"/v1/nodes/{quote(node, safe='')}/drain"


def _refusal(url: str, response: httpx.Response) -> ConfigError:
    try:
        detail = msgspec.json.decode(response.content, type=_Error).error
    except msgspec.MsgspecError:
        return ConfigError(
            f"coordinator: {url} answered {response.status_code} to {response.request.method} "
            f"{response.request.url.path}; check --coordinator or TIERED_COORDINATOR",
            field="coordinator",
        )
    if response.status_code == 401:
        return ConfigError(f"token: {detail.message}; see TIERED_TOKEN or --token-file", field="token")
    says_field = not detail.field or detail.message.startswith(detail.field)
    kind = NotFound if response.status_code == 404 else ConfigError
    return kind(detail.message if says_field else f"{detail.field}: {detail.message}", field=detail.field)


def _unreached(url: str, error: httpx.TransportError) -> ConfigError:
    """Why no answer came, as far as that can be told from how the connection ended."""
    said = _one_line(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        why = said.partition("CERTIFICATE_VERIFY_FAILED] ")[2].removeprefix("certificate verify failed: ")
        return ConfigError(
            f"coordinator: the certificate of {url} is not trusted ({why.partition(' (_ssl')[0]}); name the CA that "
            "signed it with --ca or TIERED_CA, and the coordinator by a name that is in it",
            field="ca",
        )
    if "[SSL" in said:
        return ConfigError(
            f"coordinator: what listens at {url} does not speak TLS; write http:// if it is a coordinator without",
            field="coordinator",
        )
    if url.startswith("http:") and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return ConfigError(
            f"coordinator: {url} hung up instead of answering ({said}); write https:// if it speaks TLS",
            field="coordinator",
        )
    return ConfigError(
        f"coordinator: nothing answers at {url} ({said}); start a cluster with "
        "`tiered up`, or name one with --coordinator or TIERED_COORDINATOR",
        field="coordinator",
    )


def _tokens_path(tenant: str) -> str:
    return f"{_tenant_path(tenant)}/tokens"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
