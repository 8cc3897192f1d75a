"""The coordinator's HTTP API as typed calls, each with a deadline; and how the command finds the coordinator.

It knows paths and shapes. It prints nothing, and refuses to know who asked: every failure is one
ConfigError sentence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec
import typer

from tiered.cli.cluster_file import read_cluster_file
from tiered.errors import ConfigError
from tiered.types import TokenCounts

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 5.0
"""Of one call. The coordinator answers from what it already knows, so more than this means that it hangs."""

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


class Policy(msgspec.Struct, frozen=True):
    """A tenant's bounds in force; None means "no limit of its own"."""

    tenant: str
    hot_reserved_bytes: int
    hot_limit_bytes: int | None
    redis_reserved_bytes: int
    redis_limit_bytes: int | None
    weight: float
    over_quota: str
    hot_reserved_blocks: int = 0
    hot_limit_blocks: int | None = None
    sharing: str = "private"
    redis_codec: str = "none"
    redis_ttl_s: float | None = None


class HotUse(msgspec.Struct, frozen=True):
    used_bytes: int
    blocks: int


class RedisUse(msgspec.Struct, frozen=True):
    used_bytes: int
    pending_bytes: int
    blocks: int


class Tenant(msgspec.Struct, frozen=True):
    policy: Policy
    named: bool
    hot: HotUse
    redis: RedisUse
    tokens: TokenCounts


class Node(msgspec.Struct, frozen=True):
    node: str
    epoch: int
    alive: bool
    lease_left_s: float
    peer: str
    metrics_port: int
    socket_path: str
    capacity_bytes: int
    pool_blocks: int
    free_blocks: int
    block_bytes: int
    engines: int
    layout: str
    hot_bytes: int
    version: str


class HotTier(msgspec.Struct, frozen=True):
    bytes: int
    blocks: int
    capacity_bytes: int


class RedisTier(msgspec.Struct, frozen=True):
    bytes: int
    pending_bytes: int
    blocks: int


class Tiers(msgspec.Struct, frozen=True):
    hot: HotTier
    redis: RedisTier


class NodeCounts(msgspec.Struct, frozen=True):
    alive: int
    known: int


class Stats(msgspec.Struct, frozen=True):
    """Sums over the cluster; stale means that Redis could not be read the last time."""

    tokens: TokenCounts
    by_tenant: dict[str, TokenCounts]
    tiers: Tiers
    nodes: NodeCounts
    stale: bool


class _Tenants(msgspec.Struct, frozen=True):
    tenants: list[Tenant]


class _Nodes(msgspec.Struct, frozen=True):
    nodes: list[Node]


class _ErrorDetail(msgspec.Struct, frozen=True):
    field: str
    message: str


class _Error(msgspec.Struct, frozen=True):
    error: _ErrorDetail


T = TypeVar("T")
Verb = Literal["GET", "POST", "PATCH", "DELETE"]


class CoordinatorClient:
    """One coordinator. Use it in a ``with``; every method raises ConfigError and nothing else of its own."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        token: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Addresses of a cluster are its own: a proxy of the environment is for the world outside.
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout_s, headers=headers, transport=transport, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def stats(self) -> Stats:
        return self._call("GET", "/v1/stats", Stats)

    def nodes(self) -> list[Node]:
        return self._call("GET", "/v1/nodes", _Nodes).nodes

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

    def _call(self, verb: Verb, path: str, kind: type[T], *, body: Mapping[str, object] | None = None) -> T:
        response = self._send(verb, path, body)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"coordinator: what answers at {self.url} is not a coordinator of this version ({path}: {error}); "
                "check --coordinator or TIERED_COORDINATOR",
                field="coordinator",
            ) from None

    def _send(self, verb: Verb, path: str, body: Mapping[str, object] | None) -> httpx.Response:
        options: dict[str, Any] = {} if body is None else {"json": dict(body)}
        try:
            response = self._http.request(verb, path, **options)
        except httpx.TimeoutException:
            raise ConfigError(
                f"coordinator: {self.url} did not answer within {self._timeout_s:g} s; see its log, or name "
                "another one with --coordinator or TIERED_COORDINATOR",
                field="coordinator",
            ) from None
        except httpx.TransportError as error:
            raise ConfigError(
                f"coordinator: nothing answers at {self.url} ({_one_line(error)}); start a cluster with "
                "`tiered up`, or name one with --coordinator or TIERED_COORDINATOR",
                field="coordinator",
            ) from None
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
    return CoordinatorClient(find_coordinator(option), token=os.environ.get("TIERED_TOKEN", ""))


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
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
        return ConfigError(f"token: {detail.message}; set TIERED_TOKEN to the admin token", field="token")
    says_field = not detail.field or detail.message.startswith(detail.field)
    return ConfigError(detail.message if says_field else f"{detail.field}: {detail.message}", field=detail.field)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
