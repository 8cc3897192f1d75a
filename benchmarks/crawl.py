"""What does a source cost that has become a crawl? Time to first token of a 2,000-token prompt that only it has.

The demo model and real conversations. A worker reaches the other node's blocks, or Redis, through a relay that passes
on 20 KB/s: then a block of this model takes 18 s. *First*: the request that finds out, after healthy ones. *Steady*:
those after it. *Healthy*: the same before, through the same relay. Baseline of each row: the same prompts on the same
engine without a cache, each measured right beside it. Of each row also what the request waited for the cache in all,
which a busy machine blurs less than the difference of two times to first token.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from _cluster import evict_to_redis, wait_until
from _harness import Report, median
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from ttft import TENANT, TOKENS, answer, real_prompts

from tiered.cli.api import CoordinatorClient
from tiered.cli.launcher import SECRET_VARIABLE, WORKER_START_S, ClusterPlan, LocalCluster
from tiered.cli.model import ensure_demo_model
from tiered.cli.overrides import Overrides
from tiered.cli.process import Child
from tiered.client.port import Loaded, Match
from tiered.client.remote import RemoteClient
from tiered.connectors.transformers import CachedGenerator, GeneratorOptions, model_scope
from tiered.hashing.chain import Extras
from tiered.types import NO_HINTS, Hints, Source, TenantId

CRAWL = 20_000
ROUNDS = 3
HEALTHY, STEADY = 1, 2
"""Prompts of one round, beside the one that finds out."""

PROMPTS = 1 + ROUNDS * (HEALTHY + 1 + STEADY)
"""The last one tells when the source is used again."""

BLOCKS = TOKENS // 128 * 8
"""Of a prompt: whole chunks are stored."""

HOT_BYTES = 1536 << 20
SHAPES = Extras(salt=f"\0chunks of {GeneratorOptions().chunk_tokens}")
"""What the connector makes part of a block's identity."""

RELAY_HOST = "127.0.0.2"
"""Where the other node says that it is reached: this machine too, at the same port."""

READER = "reader"
LABELS = {"healthy": "healthy", "first": "a crawl, first request", "steady": "a crawl, after that"}


class Relay:
    """A relay in a process of its own, so that it takes no time from the engine's."""

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        argv = [sys.executable, "-m", "tests.support.slow_relay", target, host, str(port)]
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        self.port = int(self._said())

    def slow_to(self, bytes_per_s: float) -> None:
        """0: as fast as it comes."""
        assert self._process.stdin is not None
        print(bytes_per_s, file=self._process.stdin, flush=True)
        self._said()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Timed(RemoteClient):
    """Counts how long a request waits for the cache before it can compute."""

    waited_s = 0.0

    def match(
        self, tokens: Sequence[int], *, tenant: TenantId, extras: Extras | None = None, hints: Hints = NO_HINTS
    ) -> Match:
        with self._counted():
            return super().match(tokens, tenant=tenant, extras=extras, hints=hints)

    def load(self, match: Match, *, deadline_s: float = 5.0) -> Loaded:
        with self._counted():
            return super().load(match, deadline_s=deadline_s)

    def release(self, match: Match, *, used_tokens: int) -> bool:
        with self._counted():
            return super().release(match, used_tokens=used_tokens)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - began


class Engines:
    """The engine without a cache, and the one whose worker looks through relays."""

    def __init__(self, model: object, client: Timed, *, unknown: list[int]) -> None:
        self.client = client
        self._uncached = CachedGenerator(model, None, GeneratorOptions())
        self._cached = CachedGenerator(model, client, GeneratorOptions())
        self.cold: dict[str, list[float]] = defaultdict(list)
        self.warm: dict[str, list[float]] = defaultdict(list)
        self.waited: dict[str, list[float]] = defaultdict(list)
        answer(self._uncached, unknown)  # kernels' first use
        answer(self._cached, unknown)  # stored nowhere, so the worker hears how long it takes to compute

    def pair(self, name: str, prompt: list[int], *, expected: set[Source] | None) -> None:
        without = answer(self._uncached, prompt)
        before_s = self.client.waited_s
        with_cache = answer(self._cached, prompt)
        waited_s = self.client.waited_s - before_s
        assert torch.equal(without.first_logits, with_cache.first_logits), f"{name}: logits differ"
        assert expected is None or set(with_cache.hit_tokens) == expected, f"{name}: {with_cache.hit_tokens}"
        self.cold[name].append(without.ttft_s * 1e3)
        self.warm[name].append(with_cache.ttft_s * 1e3)
        self.waited[name].append(waited_s * 1e3)
        said = f"{with_cache.ttft_s:.3f} s, waited {waited_s:.3f} s, without a cache {without.ttft_s:.3f} s"
        print(f"{name}: {said}", flush=True)

    def used_again(self, prompt: list[int]) -> bool:
        """Whether a request would fetch; asking is what makes the worker try a slow source."""
        match = self.client.match(prompt, tenant=TENANT, extras=SHAPES)
        self.client.release(match, used_tokens=0)
        return match.n_peer + match.n_redis > 0


def main() -> None:
    transformers_logging.disable_progress_bar()
    path = ensure_demo_model()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    model.eval()
    prompts = real_prompts(path, PROMPTS)
    scope = model_scope(model, name=path.name)
    os.environ.setdefault(SECRET_VARIABLE, secrets.token_urlsafe(32))
    cluster = LocalCluster(
        ClusterPlan(
            n_workers=1,
            hot_bytes=HOT_BYTES,
            redis_bytes=2 << 30,
            overrides=Overrides(worker={"node.advertise_host": RELAY_HOST}),
        ),
        say=lambda line: None,
    )
    cluster.start()
    report = Report("crawl")
    try:
        with CoordinatorClient(cluster.coordinator_url) as api, reader_of(cluster) as (socket_path, peers, redis):
            api.create_tenant(TENANT, {})
            store(model, scope, cluster, prompts)
            wait_until(lambda: api.tenant(TENANT).hot.blocks >= PROMPTS * (BLOCKS - 8), "the blocks to be announced")
            client = Timed.attach(socket_path, scope)
            assert isinstance(client, Timed)
            for place, relay, source in (("a peer", peers, Source.PEER), ("Redis", redis, Source.REDIS)):
                if source is Source.REDIS:
                    evict_to_redis(api, TENANT)
                engines = Engines(model, client, unknown=[len(place)] * TOKENS)
                for start in range(0, PROMPTS - 1, HEALTHY + 1 + STEADY):
                    measure(engines, relay, source, prompts[start:], prompts[-1])
                for name, label in LABELS.items():
                    cold, warm = median(engines.cold[name]), median(engines.warm[name])
                    report.add(f"time to first token, {place}, {label}", warm, "ms", baseline=cold)
                    waited = median(engines.waited[name])
                    report.add(f"waiting for the cache, {place}, {label}", waited, "ms", baseline=cold)
            client.close()
    finally:
        cluster.stop()
    report.finish()


def measure(engines: Engines, relay: Relay, source: Source, prompts: list[list[int]], last: list[int]) -> None:
    wait_until(lambda: engines.used_again(last), "the source to be used")
    following = iter(prompts)
    for _ in range(HEALTHY):
        engines.pair("healthy", next(following), expected={source})
    relay.slow_to(CRAWL)
    engines.pair("first", next(following), expected=None)  # what arrived in time is used
    for _ in range(STEADY):
        engines.pair("steady", next(following), expected=set())
    relay.slow_to(0)


def store(model: object, scope: object, cluster: LocalCluster, prompts: list[list[int]]) -> None:
    client = RemoteClient.attach(str(cluster.workers[0].socket_path), scope)  # type: ignore[arg-type]
    writer = CachedGenerator(model, client, GeneratorOptions())
    for prompt in prompts:
        print(f"stored: {answer(writer, prompt).ttft_s:.3f} s", flush=True)
    client.close()


@contextmanager
def reader_of(cluster: LocalCluster) -> Iterator[tuple[str, Relay, Relay]]:
    """One more worker, which reaches the other through one relay and Redis through another."""
    port = cluster.workers[0].peer_port
    peers = Relay(str(port), host=RELAY_HOST, port=port)
    redis = Relay(cluster.redis_url.removeprefix("unix://"))
    socket_path = str(cluster.run_dir / f"{READER}.sock")
    argv = [sys.executable, "-m", "worker", "--node", READER, "--socket", socket_path]
    argv += ["--namespace", cluster.namespace, "--hot-bytes", str(HOT_BYTES)]
    env = {**os.environ, "TIERED_WORKER_REDIS__URL": f"redis://127.0.0.1:{redis.port}/0"}
    child = Child(READER, argv, env=env, log_dir=cluster.run_dir, ready_text=f"worker {READER} ready on ")
    child.spawn()
    try:
        wait_until(lambda: child.ready or not child.alive, "the reading worker")
        assert child.alive, child.last_words
        yield socket_path, peers, redis
    finally:
        child.stop(grace_s=WORKER_START_S)
        peers.close()
        redis.close()


if __name__ == "__main__":
    main()
