"""A Redis Cluster and a Sentinel set in real processes on this machine, to be killed and moved about for real.

The servers are those of :func:`tiered.cluster.embedded.find_server_binary`, so that nothing has to be installed, or
the binary that ``TIERED_TEST_REDIS_SERVER`` names.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.crc import key_slot

from tests.support.redis_server import eventually
from tiered.cluster.embedded import find_server_binary
from tiered.errors import ConfigError

NODE_TIMEOUT_MS: Final = 1_000
"""After so much silence the others take a server for dead; short, so that tests of failovers are."""

_N_SLOTS: Final = 16_384
_START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Access:
    """How servers are spoken to: with a password, and over TLS if there is a folder with cert.pem and key.pem."""

    password: str = ""
    tls: Path | None = None

    def options(self, port: int) -> list[str]:
        options = ["--requirepass", self.password, "--masterauth", self.password] if self.password else []
        if self.tls is None:
            return [*options, "--port", str(port)]
        cert, key = str(self.tls / "cert.pem"), str(self.tls / "key.pem")
        options += ["--port", "0", "--tls-port", str(port), "--tls-replication", "yes", "--tls-cluster", "yes"]
        options += ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert]
        return [*options, "--tls-auth-clients", "no"]

    def url(self, kind: str, hosts: str, query: str = "") -> str:
        login = f":{self.password}@" if self.password else ""
        tls = f"ssl_ca_certs={self.tls / 'cert.pem'}" if self.tls else ""
        options = "&".join(option for option in (query, tls) if option)
        return f"{'rediss' if self.tls else 'redis'}+{kind}://{login}{hosts}{f'?{options}' if options else ''}"


OPEN: Final = Access()


@dataclass(slots=True)
class Server:
    """One process, listening on 127.0.0.1:port."""

    port: int
    process: subprocess.Popen[bytes]
    access: Access = OPEN

    def run(self, *parts: bytes | str | int) -> Any:
        tls = self.access.tls
        options: dict[str, Any] = {} if tls is None else {"ssl": True, "ssl_ca_certs": str(tls / "cert.pem")}
        client = redis.Redis(
            port=self.port, password=self.access.password or None, socket_timeout=5, protocol=2, **options
        )
        with closing(client):
            return client.execute_command(*parts)  # type: ignore[no-untyped-call]

    def answers(self) -> bool:
        try:
            return bool(self.run("PING"))
        except redis.RedisError:
            return False

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("INFO")
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def server_binary() -> Path:
    """Skips the test where there is none."""
    try:
        return find_server_binary(Path(named) if (named := os.environ.get("TIERED_TEST_REDIS_SERVER")) else None)
    except ConfigError as error:
        pytest.skip(str(error))


def server_binary_with_tls() -> Path:
    """Of the PATH; skips the test where there is none, or none that was built with TLS."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None and b"SSL_CTX_new" in Path(found).read_bytes():
            return Path(found)
    pytest.skip("no redis-server or valkey-server with TLS on the PATH; the one that is bundled has none")


def free_ports(n: int) -> list[int]:
    """Where nobody connects from, so that they stay free until a server listens there. A cluster's servers speak to
    each other on the port 10,000 above, which is as free.
    """
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < n:
            port = random.randrange(10_000, 22_000)
            try:
                for each in (port, port + 10_000):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", each))
            except OSError:
                continue
            ports.append(port)
    return ports


def start_server(directory: Path, port: int, *options: str, access: Access = OPEN) -> Server:
    home = directory / str(port)
    home.mkdir()
    binary = server_binary() if access.tls is None else server_binary_with_tls()
    command = [str(binary), *options, *access.options(port), "--bind", "127.0.0.1", "--dir", str(home)]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return Server(port, process, access)


class Cluster:
    """Three masters with a third of the slots each, and a replica of each."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return self.servers[0].access.url("cluster", hosts)

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.process.poll() is None]

    def owner_of(self, key: bytes) -> Server:
        slot = key_slot(key)
        for start, end, master, *_ in self.alive()[0].run("CLUSTER", "SLOTS"):
            if start <= slot <= end:
                return next(server for server in self.servers if server.port == master[1])
        raise AssertionError(f"slot {slot} has no owner")

    def masters(self) -> list[Server]:
        return [server for server in self.alive() if server.info()["role"] == "master"]

    def is_whole(self) -> bool:
        """Whether every server that lives sees all slots served, and every master's replica has caught up."""
        return all(_is_whole(server) for server in self.alive())

    def begin_move(self, slot: int, *, to: Server) -> Server:
        """The slot begins to move; returns the server that it leaves."""
        source = next(s for s in self.masters() if _owns(s, slot))
        to.run("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))
        return source

    def move_keys(self, slot: int, *, source: Server, to: Server, at_most: int | None = None) -> int:
        """Move keys one by one as ``redis-cli --cluster reshard`` does; returns how many."""
        moved = 0
        while at_most is None or moved < at_most:
            keys = source.run("CLUSTER", "GETKEYSINSLOT", slot, 10 if at_most is None else min(10, at_most - moved))
            if not keys:
                break
            source.run("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, *, source: Server, to: Server) -> None:
        for server in (to, source, *self.masters()):
            with suppress(redis.ResponseError):  # who has heard of it already needs no telling
                server.run("CLUSTER", "SETSLOT", slot, "NODE", _id(to))


class SentinelSet:
    """A master, two replicas, three Sentinels."""

    SERVICE: Final = "kv"

    def __init__(self, servers: Sequence[Server], sentinels: Sequence[Server]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        password = self.servers[0].access.password
        query = f"sentinel_password={password}" if password else ""
        return self.servers[0].access.url("sentinel", f"{hosts}/{self.SERVICE}", query)

    def master(self) -> Server:
        """As the Sentinels have it."""
        for sentinel in self.sentinels:
            if sentinel.process.poll() is None:
                _, port = sentinel.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
                return next(server for server in self.servers if server.port == int(port))
        raise AssertionError("no Sentinel lives")


@contextmanager
def running_cluster(directory: Path, access: Access = OPEN) -> Iterator[Cluster]:
    options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
    options += ["--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-replica-validity-factor", "0"]
    options += ["--repl-diskless-sync-delay", "0"]
    with ExitStack() as stack:
        servers = [_started(stack, directory, port, *options, access=access) for port in free_ports(6)]
        masters, replicas = servers[:3], servers[3:]
        for index, master in enumerate(masters):
            first, last = (_N_SLOTS * n // 3 for n in (index, index + 1))
            master.run("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            master.run("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for server in servers[1:]:
            server.run("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        for master, replica in zip(masters, replicas, strict=True):
            eventually(lambda m=master, r=replica: _knows(r, m), within_s=_START_S)  # type: ignore[misc]
            replica.run("CLUSTER", "REPLICATE", _id(master))
        cluster = Cluster(servers)
        eventually(cluster.is_whole, within_s=_START_S)
        yield cluster


@contextmanager
def running_sentinels(directory: Path, access: Access = OPEN) -> Iterator[SentinelSet]:
    with ExitStack() as stack:
        ports = free_ports(6)
        first = ports[0]
        delay = ("--repl-diskless-sync-delay", "0")
        follow = (*delay, "--replicaof", f"127.0.0.1 {first}")
        servers = [_started(stack, directory, first, *delay, access=access)]
        servers += [_started(stack, directory, port, *follow, access=access) for port in ports[1:3]]
        sentinels = []
        for port in ports[3:]:
            config = directory / f"sentinel-{port}.conf"
            name = SentinelSet.SERVICE
            config.write_text(
                f"sentinel monitor {name} 127.0.0.1 {first} 2\n"
                f"sentinel down-after-milliseconds {name} {NODE_TIMEOUT_MS}\n"
                f"sentinel failover-timeout {name} 3000\n"
                + (
                    f"sentinel auth-pass {name} {access.password}\nsentinel sentinel-pass {access.password}\n"
                    if access.password
                    else ""
                )
            )
            sentinels.append(_started(stack, directory, port, access=access, sentinel_config=config))
        found = SentinelSet(servers, sentinels)
        eventually(lambda: all(_sees_all(sentinel) for sentinel in sentinels), within_s=_START_S)
        eventually(lambda: all(s.info()["master_link_status"] == "up" for s in servers[1:]), within_s=_START_S)
        yield found


def _started(
    stack: ExitStack,
    directory: Path,
    port: int,
    *options: str,
    access: Access,
    sentinel_config: Path | None = None,
) -> Server:
    leading = [] if sentinel_config is None else [str(sentinel_config), "--sentinel"]
    server = start_server(directory, port, *leading, *options, access=access)
    stack.callback(server.kill)
    eventually(server.answers, within_s=_START_S)
    return server


def _id(server: Server) -> str:
    name: bytes = server.run("CLUSTER", "MYID")
    return name.decode()


def _knows(server: Server, other: Server) -> bool:
    return _id(other) in str(server.run("CLUSTER", "NODES"))


def _owns(server: Server, slot: int) -> bool:
    own = _id(server)
    return any(
        start <= slot <= end and master[2].decode() == own
        for start, end, master, *_ in server.run("CLUSTER", "SLOTS")
    )


def _is_whole(server: Server) -> bool:
    if b"cluster_state:ok" not in _bytes(server.run("CLUSTER", "INFO")):
        return False
    info = server.info()
    return info["role"] == "master" or info["master_link_status"] == "up"


def _bytes(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode()


def _sees_all(sentinel: Server) -> bool:
    (row,) = sentinel.run("SENTINEL", "MASTERS")
    master = dict(zip(row[::2], row[1::2], strict=True)) if isinstance(row, list) else row
    named = {(k.decode() if isinstance(k, bytes) else k): int(v) for k, v in master.items() if b"num-" in _bytes(k)}
    return named.get("num-slaves") == 2 and named.get("num-other-sentinels") == 2
