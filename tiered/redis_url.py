"""What a URL of the shared Redis says: one server, a service behind Sentinels, or a Redis Cluster, and how to log in.

A decision over text: no I/O and no redis-py. Whichever kind it is, the URL of each single server comes from here, so
that whoever opens a connection needs to understand plain URLs only.
"""

from __future__ import annotations

import enum
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

HOW_TO_WRITE: Final = (
    "write redis://host:port, rediss://host:port, unix:///path/to/socket, redis+sentinel://host:port,host:port/service"
    " or redis+cluster://host:port,host:port"
)


class Kind(enum.Enum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES: Final[Mapping[str, tuple[Kind, str]]] = {
    "redis": (Kind.SINGLE, "redis"),
    "rediss": (Kind.SINGLE, "rediss"),
    "unix": (Kind.SINGLE, "unix"),
    "redis+sentinel": (Kind.SENTINEL, "redis"),
    "rediss+sentinel": (Kind.SENTINEL, "rediss"),
    "redis+cluster": (Kind.CLUSTER, "redis"),
    "rediss+cluster": (Kind.CLUSTER, "rediss"),
}
_DEFAULT_PORTS: Final[Mapping[Kind, int]] = {Kind.SINGLE: 6379, Kind.SENTINEL: 26379, Kind.CLUSTER: 6379}
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
"""Those of redis-py that the connections for values understand as well."""
CERT_REQS: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS_VERSIONS: Final = {"771": "TLS 1.2", "772": "TLS 1.3"}


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """seeds: servers, or Sentinels, to ask first where things are; empty for a single server."""

    text: str
    kind: Kind
    seeds: tuple[Address, ...] = ()
    service: str = ""
    scheme: str = "redis"
    login: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def of_server(self, address: Address) -> str:
        """A plain URL of one server, with the login, the TLS and the options of this one."""
        options = [(name, value) for name, value in self.options if name not in _SENTINEL_OPTIONS]
        query = f"?{urlencode(options)}" if options else ""
        return f"{self.scheme}://{self.login}{address}{query}"

    def of_sentinel(self, address: Address) -> str:
        """A plain URL of one Sentinel. Sentinels have users of their own, if any."""
        own = dict(self.options)
        login = {name: own[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in own}
        others = [(name, value) for name, value in self.options if name not in (*_SENTINEL_OPTIONS, "db")]
        query = urlencode([*others, *login.items()])
        return f"{self.scheme}://{address}{f'?{query}' if query else ''}"


def parse_redis_url(text: str) -> RedisUrl:
    """Errors: ValueError with one sentence that says what to write."""
    scheme, has_scheme, _ = text.partition("://")
    if not has_scheme or scheme not in _SCHEMES:
        raise ValueError(HOW_TO_WRITE)
    kind, plain = _SCHEMES[scheme]
    parts = urlsplit(text)
    _check_tls(dict(reversed(parse_qsl(parts.query))))  # of an option that is given twice, redis-py takes the first
    if kind is Kind.SINGLE:
        _check_host(parts.hostname or "localhost")
        if plain == "unix" and not parts.path:
            raise ValueError("unix:// needs the path of the socket, such as unix:///run/redis.sock")
        return RedisUrl(text, kind, scheme=plain)
    login, at, hosts = parts.netloc.rpartition("@")
    options = tuple(parse_qsl(parts.query, keep_blank_values=True))
    seeds = tuple(_address(host, kind) for host in hosts.split(","))
    return RedisUrl(text, kind, seeds, _service(kind, parts.path, options), plain, login + at, options)


def with_password(text: str, password: str) -> str:
    """The same URL, which logs in with this password. Errors: ValueError when it has another."""
    parts = urlsplit(text)
    login, _, hosts = parts.netloc.rpartition("@")
    user, has_password, own = login.partition(":")
    if has_password and unquote(own) != password:
        raise ValueError("it has a password, and redis.password is another; give one of the two")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{hosts}"))


def _address(text: str, kind: Kind) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_DEFAULT_PORTS[kind])
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:
        raise ValueError(
            f"{text!r} is no host:port; write {kind.value} hosts with commas between, such as a:7000,b:7000"
        )
    _check_host(host)
    return Address(host, int(port))


def _check_host(host: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{host!r} is no name of a host; between its dots are 1 to 63 characters") from None


def _check_tls(options: Mapping[str, str]) -> None:
    """So that no option holds for control calls alone, and none is found wrong only when a connection is made."""
    given = {name: value for name, value in options.items() if name.startswith("ssl_")}
    for name in given:
        if name not in _TLS_OPTIONS:
            raise ValueError(f"{name} is no option of TLS here; known: {', '.join(_TLS_OPTIONS)}")
    cert_reqs = given.get("ssl_cert_reqs", "required")
    if cert_reqs not in CERT_REQS:
        raise ValueError(f"ssl_cert_reqs={cert_reqs} is none of {', '.join(CERT_REQS)}")
    version = given.get("ssl_min_version", "771")
    if version not in _TLS_VERSIONS:
        known = ", ".join(f"{number} ({name})" for number, name in _TLS_VERSIONS.items())
        raise ValueError(f"ssl_min_version={version} is none of {known}")
    if not given.get("ssl_ca_data", "").isascii():
        raise ValueError("ssl_ca_data is not PEM; percent-encode the certificates, or name a file with ssl_ca_certs")
    if "ssl_keyfile" in given and "ssl_certfile" not in given:
        raise ValueError("ssl_keyfile needs ssl_certfile, the certificate that it belongs to")


def _service(kind: Kind, path: str, options: tuple[tuple[str, str], ...]) -> str:
    name = unquote(path.strip("/"))
    database = dict(options).get("db", "0")
    if not database.isdigit():
        raise ValueError(f"db={database} is not the number of a database")
    if kind is Kind.SENTINEL:
        if not name or "/" in name:
            raise ValueError("behind Sentinel, the name of the service follows the hosts: .../mymaster")
        return name
    if name not in ("", "0") or database != "0":
        raise ValueError("a Redis Cluster has database 0 only; leave the database out of the URL")
    return ""
