"""How long does it take to say which of 100 nodes should have a 512-block prompt, with a million blocks known?

Alone, with hashes and with tokens (hashing included), and over HTTP as a router would ask for the best ten. And what
the mirror of the directory costs: bytes a block, blocks it takes in a second. Baseline of the decision with tokens:
the hash chain alone. Beside each time stands its processor time, over HTTP that of client and server together: on a
busy machine it says more than the clock.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection

from _harness import Report, timed_ms

from coordinator.server.api import build_api
from coordinator.server.credentials import Credentials
from coordinator.server.http import HttpServer
from coordinator.server.known_tokens import KnownTokens
from coordinator.server.services import Services
from coordinator.view.keeper import ViewKeeper
from coordinator.view.mirror import REDIS, Life, Mirror
from coordinator.view.naming import NamedBlocks, name_blocks, policy_of
from coordinator.view.route import rank
from coordinator.view.snapshot import ClusterView, Readings, assemble
from tiered.clock import SystemClock
from tiered.cluster.access import AccessTokens
from tiered.cluster.clears import Clears
from tiered.cluster.connection import Client, connect
from tiered.cluster.drains import Drains
from tiered.cluster.keys import Keys
from tiered.cluster.ledger import RedisLedger
from tiered.cluster.tenants import Tenants
from tiered.config import RedisSettings
from tiered.hashing.chain import chain_hashes
from tiered.hashing.scope import ModelScope, encode_scope
from tiered.layout import KvLayout
from tiered.listening import listen
from tiered.types import Epoch, NodeId, NodeInfo, NodeRates, NodeStats, NodeView, SourceRate, TenantId

NODES = 100
BLOCKS = 1_000_000
PROMPT_BLOCKS = 512
LIMIT = 10
RUNS = 300
ENTRY_BLOCKS = 256
TENANT = TenantId("bench")
LAYOUT = KvLayout(n_layers=32, n_kv_heads=8, head_dim=128, dtype="bfloat16")
SCOPE = ModelScope(model="bench", weights_version="0", layout=LAYOUT)


def nodes(draw: random.Random) -> list[NodeView]:
    """Each with rates of its own, so that no two are planned alike."""
    views = []
    for index in range(NODES):
        rates = NodeRates(
            peers=SourceRate(0.001 * (1 + draw.random()), 1e9 * (1 + draw.random())),
            redis=SourceRate(0.001 * (1 + draw.random()), 4e8 * (1 + draw.random())),
            prefill_tokens_per_s=8_000 * (1 + draw.random()),
            waiting_s=0.01 * draw.random(),
        )
        stats = NodeStats(pool_blocks=20_000, engines=1, scopes=(encode_scope(SCOPE),), rates=rates)
        info = NodeInfo(
            node=f"node-{index:03}",
            peer_host=f"10.0.0.{index}",
            peer_port=7400,
            metrics_port=9400,
            socket_path="/run/worker.sock",
            capacity_bytes=1 << 40,
        )
        views.append(NodeView(info=info, epoch=Epoch(index + 1), lease_left_s=5.0, stats=stats))
    return views


def prompt(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(128_000) for _ in range(PROMPT_BLOCKS * LAYOUT.block_tokens)]


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def filled(report: Report, views: list[NodeView], draw: random.Random) -> Mirror:
    """A mirror with a million blocks of content that nobody asks for, and what taking them in costs."""
    lives = [Life(NodeId(view.info.node), view.epoch) for view in views]
    entries = [(draw.choice(lives), os.urandom(32 * ENTRY_BLOCKS)) for _ in range(BLOCKS // ENTRY_BLOCKS)]
    mirror = Mirror()
    mirror.load(0, 0, [])
    mirror.set_members({life.node: life.epoch for life in lives})
    before, started_at = resident_bytes(), time.perf_counter()
    for seq, (life, stored) in enumerate(entries, 1):
        mirror.apply(0, seq, life, stored=stored, removed=b"")
    took_s = time.perf_counter() - started_at
    n_blocks = mirror.counts.blocks
    report.add("mirror: blocks taken in", n_blocks / took_s, "blocks/s")
    report.add("mirror: memory", (resident_bytes() - before) / n_blocks, "bytes/block")
    # Half of them are in Redis too, and every seventh on a second node.
    seq = len(entries)
    for index, (_, stored) in enumerate(entries):
        for life in (*((REDIS,) if index % 2 else ()), *(() if index % 7 else (draw.choice(lives),))):
            seq += 1
            mirror.apply(0, seq, life, stored=stored, removed=b"")
    report.add("mirror: memory, half of it in Redis too", (resident_bytes() - before) / n_blocks, "bytes/block")
    return mirror


def hold_prompts(mirror: Mirror, views: list[NodeView], prompts: list[list[int]]) -> None:
    """Of each prompt three nodes hold 512, 300 and 100 blocks, and Redis 400."""
    view = view_of(views)
    seq = mirror.position(0)
    for index, tokens in enumerate(prompts):
        hashes = name_blocks(view, policy_of(view, TENANT), tokens)[0].hashes
        assert len(hashes) == PROMPT_BLOCKS
        for offset, n_blocks in enumerate((512, 300, 100)):
            holder = views[(7 * index + offset) % NODES]
            seq += 1
            life = Life(NodeId(holder.info.node), holder.epoch)
            mirror.apply(0, seq, life, stored=b"".join(hashes[:n_blocks]), removed=b"")
        seq += 1
        mirror.apply(0, seq, REDIS, stored=b"".join(hashes[:400]), removed=b"")


def view_of(views: list[NodeView]) -> ClusterView:
    return assemble(Readings(nodes=tuple(views)), taken_at=0.0)


@dataclass(frozen=True)
class Times:
    """Of each action, and of all of them what the process spent on average."""

    wall_ms: list[float]
    cpu_ms: float


def timed(actions: Sequence[Callable[[], object]]) -> Times:
    for action in actions[:20]:
        action()
    started_at = time.process_time()
    wall_ms = sorted(timed_ms(action) for action in actions)
    return Times(wall_ms, 1e3 * (time.process_time() - started_at) / len(actions))


def add_times(report: Report, metric: str, times: Times, *, baseline: float | None = None) -> None:
    report.add(f"{metric}, p50", statistics.median(times.wall_ms), "ms", baseline=baseline)
    report.add(f"{metric}, p99", times.wall_ms[int(len(times.wall_ms) * 0.99)], "ms")
    report.add(f"{metric}, processor time", times.cpu_ms, "ms")


def over_http(report: Report, mirror: Mirror, views: list[NodeView], bodies: list[tuple[str, list[bytes]]]) -> None:
    keys = Keys("bench")
    client: Client = connect(RedisSettings(url="redis://127.0.0.1:1"), timeout_s=1.0)  # nothing here asks it
    tokens, tenants = AccessTokens(client, keys), Tenants(client, keys)
    keeper = ViewKeeper(lambda: Readings(nodes=tuple(views)), SystemClock())
    keeper.refresh()
    credentials = Credentials(admin_token="", read_token="", tokens=tokens, known=KnownTokens(tokens, SystemClock()))
    ledger, drains, clears = RedisLedger(client, keys), Drains(client, keys), Clears(client, keys)
    api = build_api(Services(keeper, tenants, credentials, ledger, drains, clears, mirror=mirror))
    ready = threading.Event()
    with listen("127.0.0.1", 0, group="http") as listener:
        server = HttpServer(api, on_ready=ready.set)
        thread = threading.Thread(target=lambda: server.run([listener]))
        thread.start()
        assert ready.wait(10.0)
        port = listener.getsockname()[1]
        http = HTTPConnection("127.0.0.1", port, timeout=10.0)

        def ask(body: bytes) -> bytes:
            http.request("POST", "/v1/route", body, {"Content-Type": "application/json"})
            answer = http.getresponse()
            said = answer.read()
            assert answer.status == 200, said
            return said

        for what, of in bodies:
            best = json.loads(ask(of[0]))["nodes"][0]
            assert best["hot_blocks"] == PROMPT_BLOCKS, best
            add_times(report, f"over HTTP, with {what}", timed([partial(ask, body) for body in of]))
        http.close()
        server.stop()
        thread.join(10.0)


def main() -> None:
    report, draw = Report("route"), random.Random(5)
    views = nodes(draw)
    mirror = filled(report, views, draw)
    prompts = [prompt(seed) for seed in range(RUNS)]
    hold_prompts(mirror, views, prompts)
    view = view_of(views)
    policy = policy_of(view, TENANT)
    n_tokens = len(prompts[0])
    every = [name_blocks(view, policy, tokens) for tokens in prompts]
    best = rank(view.nodes, mirror, every[0], n_tokens=n_tokens).ranked[0]
    assert (best.node.info.node, best.hot_blocks) == ("node-000", PROMPT_BLOCKS)

    def decide(of: Sequence[NamedBlocks], limit: int) -> Callable[[], object]:
        return lambda: rank(view.nodes, mirror, of, n_tokens=n_tokens, limit=limit)

    def name_and_decide(tokens: list[int]) -> Callable[[], object]:
        return lambda: rank(view.nodes, mirror, name_blocks(view, policy, tokens), n_tokens=n_tokens, limit=LIMIT)

    def chain(tokens: list[int]) -> Callable[[], object]:
        return lambda: chain_hashes(b"\0" * 32, tokens, block_tokens=LAYOUT.block_tokens)

    chain_ms = statistics.median(timed([chain(tokens) for tokens in prompts]).wall_ms)
    report.add("hash chain of 512 blocks", chain_ms, "ms")
    add_times(report, "decision with hashes", timed([decide(named, LIMIT) for named in every]))
    add_times(report, "decision with hashes, all nodes ranked", timed([decide(named, NODES) for named in every]))
    add_times(report, "decision with tokens", timed([name_and_decide(t) for t in prompts]), baseline=chain_ms)
    token_bodies = [json.dumps({"tenant": TENANT, "tokens": tokens, "limit": LIMIT}).encode() for tokens in prompts]
    hash_bodies = [
        json.dumps({"tenant": TENANT, "hashes": [h.hex() for h in named[0].hashes], "limit": LIMIT}).encode()
        for named in every
    ]
    over_http(report, mirror, views, [("tokens", token_bodies), ("hashes", hash_bodies)])
    report.finish()


if __name__ == "__main__":
    main()
