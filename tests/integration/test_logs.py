"""What real processes write at debug level: one event per line, no secret, no prompt, whatever goes wrong."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.content import LAYOUT, SCOPE, TENANT, save, take
from tests.support.coordinator_process import CoordinatorProcess
from tests.support.small_cluster import PATIENT, SmallCluster, small_cluster
from tests.support.worker_process import until
from tiered.cluster.connection import command
from tiered.cluster.embedded import EmbeddedServer
from tiered.errors import TieredError
from tiered.wire.framing import PREFIX, encode
from tiered.wire.messages import Match

PASSWORD = "pw-of-redis-7Kq"
CLUSTER_SECRET = "secret-of-the-cluster-9Zx"
WRONG_SECRET = "secret-of-a-stranger-4Wv"
ADMIN, READER, STRANGER = "bearer-of-an-admin-2Jd", "bearer-of-a-reader-8Lm", "bearer-of-nobody-5Ht"
SECRETS = (PASSWORD, CLUSTER_SECRET, WRONG_SECRET, ADMIN, READER, STRANGER)

FIRST_TOKEN = 917_350_001
N_BLOCKS = 12
T = LAYOUT.block_tokens


def prompt(number: int) -> list[int]:
    """Tokens that occur nowhere else."""
    return [FIRST_TOKEN + number * 1_000 + i for i in range(N_BLOCKS * T)]


N_PROMPTS = 8
TOKENS = [token for number in range(N_PROMPTS) for token in prompt(number)]


def leaks(written: str) -> list[str]:
    """Which secrets and which tokens it has, as numbers or as bytes in any common spelling."""
    found = [secret for secret in SECRETS if secret in written]
    for token in TOKENS:
        packed = struct.pack("<I", token)
        spellings = (str(token), f"{token:_}", f"{token:,}", packed.hex() + "00", repr(packed)[2:-1])
        found += [spelling for spelling in spellings if spelling in written]
    return found


def damaged_events(name: str, written: str) -> list[str]:
    """Lines that are no event."""
    wrong = []
    for line in written.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            wrong.append(f"{name}: {line}")
            continue
        if not {"event", "level", "logger", "timestamp"} <= event.keys():
            wrong.append(f"{name}: {line}")
    return wrong


class Everything:
    """A cluster behind a password, and the words of all that takes part."""

    def __init__(self, cluster: SmallCluster, coordinator: CoordinatorProcess) -> None:
        self.cluster = cluster
        self.coordinator = coordinator

    def work(self) -> None:
        """What goes well."""
        cluster = self.cluster
        with cluster.attach("w1") as one, cluster.attach("w2") as two:
            for number in range(N_PROMPTS):
                save(one, prompt(number))
                take(one, prompt(number))
            cluster.wait_announced("w1", cluster.blocks("w1")["ready"])
            for number in range(N_PROMPTS):
                take(two, prompt(number))

    def ask_wrongly(self) -> None:
        """What strangers and clumsy callers say."""
        cluster, api = self.cluster, self.coordinator.url
        with httpx.Client(base_url=api, timeout=5.0, trust_env=False) as http:
            for token in (ADMIN, READER, STRANGER):
                headers = {"Authorization": f"Bearer {token}"}
                http.get("/v1/stats", headers=headers)
                http.put("/v1/tenants/red", headers=headers, json={"hot_limit_bytes": "lots"})
                http.post("/v1/route", headers=headers, json={"tenant": TENANT, "tokens": prompt(0)})
                http.post("/v1/route", headers=headers, json={"tenant": TENANT, "tokens": [*prompt(0), "x"]})
                http.post("/v1/route", headers=headers, content=json.dumps({"tokens": prompt(0)})[:-3])
                http.post("/v1/prefixes", headers=headers, json={"tenant": TENANT, "tokens": prompt(0), "model": 3})
                http.post("/v1/login", headers=headers, data={"token": token})
                http.post("/login", headers=headers, data={"token": token})
                http.get(f"/v1/blocks/{token}", headers=headers)
        raw = struct.pack(f"<{len(prompt(0))}I", *prompt(0))
        frames = [raw, encode(Match(str(TENANT), b"", raw, len(raw))), PREFIX.pack(len(raw), 1) + raw]
        for frame in frames:
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(5.0)
                stranger.connect(cluster.socket_path("w1"))
                stranger.sendall(frame)
                stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(65_536):
                        pass

    def lose_redis(self, server: EmbeddedServer) -> None:
        """Their password is no longer good, then nobody answers any more."""
        cluster = self.cluster
        with cluster.attach("w1") as one:
            with closing(cluster.client):
                command(cluster.client, "ACL", "SETUSER", "tiered", "resetpass", ">another")
                command(cluster.client, "CLIENT", "KILL", "USER", "tiered")
                take(one, prompt(1))
                until(lambda: "unreachable" in cluster.workers["w1"].log, "w1 is let in no more")
                until(lambda: "view is stale" in self.coordinator.log, "nor is the coordinator")
                until(lambda: '"level": "debug"' in cluster.workers["w1"].log, "w1 says all it has to say")
            server.kill()
            with contextlib.suppress(TieredError):
                take(one, prompt(2))

    def written(self) -> dict[str, str]:
        found = {}
        for name, worker in self.cluster.workers.items():
            found[name] = worker.log
            found[f"{name}, standard output"] = worker.stdout_path.read_text()
        return found | {"coordinator": self.coordinator.log}


@pytest.fixture
def everything(private_redis_server: EmbeddedServer, tmp_path: Path) -> Iterator[Everything]:
    url = private_redis_server.url.replace("unix://", f"unix://tiered:{PASSWORD}@")
    logged = ("log.level=debug", "log.format=json", f"redis.url={url}")
    with small_cluster(private_redis_server) as cluster:
        command(cluster.client, "ACL", "SETUSER", "tiered", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        fast = ("cluster.heartbeat_s=0.2", "cluster.lease_ttl_s=2")
        ours, theirs = f"cluster.secret={CLUSTER_SECRET}", f"cluster.secret={WRONG_SECRET}"
        for name, secret in (("w1", ours), ("w2", ours), ("w3", theirs)):
            cluster.spawn(name, *logged, *fast, secret, hot=str(64 * LAYOUT.block_bytes))
        for worker in cluster.workers.values():
            worker.wait_ready()
        cluster.wait_acquainted()
        access = (f"http.admin_token={ADMIN}", f"http.read_token={READER}", ours)
        coordinator = CoordinatorProcess(
            private_redis_server,
            cluster.namespace,
            tmp_path,
            "c1",
            *logged,
            *access,
            "cluster.snapshot_interval_s=0.1",
        )
        try:
            coordinator.wait_ready()
            yield Everything(cluster, coordinator)
        finally:
            coordinator.kill()


def test_no_secret_and_no_prompt_is_ever_written_and_every_line_is_one_event(
    everything: Everything, private_redis_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = everything.cluster
    with caplog.at_level(logging.DEBUG, logger="tiered"):
        everything.work()
        with cluster.attach("w3", scope=SCOPE, options=PATIENT) as stranger:
            take(stranger, prompt(0))  # w1 and w2 do not lend to who has another secret
        until(lambda: "peer refused" in cluster.workers["w1"].log, "w1 has told w3 off")
        everything.ask_wrongly()
        everything.lose_redis(private_redis_server)
    for worker in cluster.workers.values():
        worker.stop()
    everything.coordinator.stop()
    written = everything.written()
    assert {name: found for name, text in written.items() if (found := leaks(text))} == {}
    assert leaks("\n".join(f"{r.getMessage()} {r.exc_text}" for r in caplog.records if "tiered" in r.name)) == []
    events = {name: text for name, text in written.items() if "standard output" not in name}
    assert [line for name, text in events.items() for line in damaged_events(name, text)] == []


def test_the_search_for_leaks_finds_one() -> None:
    token = TOKENS[5]
    for said in (
        f"tokens=[1, {token}]",
        repr(struct.pack("<2I", token, 0)),
        struct.pack("<2I", token, 0).hex(),
        ADMIN,
    ):
        assert leaks(f"x {said} y") != []


def test_a_worker_that_cannot_start_says_why_without_its_secrets(
    private_redis_server: EmbeddedServer, tmp_path: Path
) -> None:
    with small_cluster(private_redis_server) as cluster:
        nowhere = f"redis.url=unix://tiered:{PASSWORD}@{tmp_path}/nobody.sock"
        refused = f"redis.url={private_redis_server.url.replace('unix://', f'unix://tiered:{PASSWORD}@')}"
        wrong = f"cluster.secret={CLUSTER_SECRET}{'x' * 600}"
        for name, setting in (("w1", nowhere), ("w2", refused), ("w3", wrong)):
            worker = cluster.spawn(name, setting, "log.level=debug")
            assert worker.wait(within_s=30.0) == 2
            assert leaks(worker.log + worker.stdout_path.read_text()) == []
            assert len(worker.log.splitlines()) == 1
