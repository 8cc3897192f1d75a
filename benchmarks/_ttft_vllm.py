"""The part of ttft.py on vLLM: with our connector, alone, and with LMCache's. Not a benchmark itself.

Engines are processes of Pythons that have vLLM; while one answers the others are stopped, so that none takes time of
another's. ``plain`` is vLLM without a connector. Every prompt of *warm* rows goes to an engine that was started after
the prompt was computed by another, so nothing comes from its own prefix cache.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from _cluster import evict_to_redis, start_cluster, wait_until
from _harness import Report, median

from tiered.cli.api import CoordinatorClient
from tiered.cli.launcher import LocalCluster
from tiered.cli.ports import free_ports
from tiered.cluster.embedded import EmbeddedServer

START_S = 300.0
ANSWER_S = 120.0
PROMPTS = 5
WARM_UP_SEED = 1_000_000_007
PAIRS = 5
"""Of prompts that nobody has: alone and with a connector, one after the other."""

ANSWER_TOKENS = 32
HOT_BYTES = 3 << 30
TENANT = "default"
BLOCK_TOKENS = 128
LMCACHE_CHUNK = 256
CONNECTOR = {
    "kv_connector": "TieredConnector",
    "kv_connector_module_path": "tiered.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@dataclass(frozen=True)
class Answer:
    ttft_s: float
    total_s: float
    tokens: list[int]
    cached: int

    @property
    def tokens_per_s(self) -> float:
        """Of the tokens after the first."""
        return (len(self.tokens) - 1) / (self.total_s - self.ttft_s)


class Engine:
    """A vLLM engine in a session of its own; stopped (SIGSTOP) but while it answers."""

    def __init__(self, python: str, model: Path, *, connector: dict[str, Any] | None, log: Path) -> None:
        options: dict[str, Any] = {"model": str(model)}
        if connector is not None:
            options["kv_transfer_config"] = connector
        env = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"  # else it is one with a connector and another without
        env |= {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "PYTHONHASHSEED": "0"}
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name("_vllm_engine.py")), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                env=os.environ | env,
                start_new_session=True,
            )
        self.version = str(self._said(START_S)["version"])
        self.answer(unknown(WARM_UP_SEED), 1)  # kernels' first use
        self._signal(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def answer(self, tokens: Sequence[int], n: int = 1) -> Answer:
        assert self._process.stdin is not None
        print(json.dumps({"tokens": list(tokens), "n": n}), file=self._process.stdin, flush=True)
        return Answer(**self._said(ANSWER_S))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _said(self, within_s: float) -> dict[str, Any]:
        """What vLLM itself prints between our lines is left aside."""
        stdout, ends_at = self._process.stdout, time.monotonic() + within_s
        assert stdout is not None
        while select.select([stdout], [], [], max(0.0, ends_at - time.monotonic()))[0]:
            line = stdout.readline()
            if line.startswith("> "):
                said: dict[str, Any] = json.loads(line[2:])
                return said
            if not line:
                break
        raise RuntimeError(f"the engine said nothing more; its last words: {self._log.read_text()[-2_000:]}")

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


def measure_vllm(report: Report, model: Path, prompts: list[list[int]], python: str, lmcache: str | None) -> None:
    """prompts: twice PROMPTS. lmcache: a Python that has vLLM and LMCache, or None to go without."""
    near, far = prompts[:PROMPTS], prompts[PROMPTS:]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiered-ttft-")))

        def engine(connector: dict[str, Any] | None, of: str = python) -> Engine:
            started = Engine(of, model, connector=connector, log=directory / "engines.log")
            stack.callback(started.close)
            return started

        plain = engine(None)
        cold, own, right = alone(plain, prompts)
        report.add("vLLM alone: time to first token, 2,000 tokens, cold", median(cold), "ms")
        report.add("vLLM alone: own prefix cache", median(own), "ms", baseline=median(cold))

        cluster = start_cluster(n_workers=2, hot_bytes=HOT_BYTES, redis_bytes=4 << 30)
        stack.callback(cluster.stop)
        api = stack.enter_context(CoordinatorClient(cluster.coordinator_url))
        near_worker, far_worker = (str(worker.socket_path) for worker in cluster.workers)

        first = engine(attached(near_worker))
        warm(report, "tiered: first time, cached nowhere", first, near, right, cold, cached=0)
        warm(None, "", first, far, right, cold, cached=0)
        settle(api, n_blocks=len(prompts) * (len(prompts[0]) // BLOCK_TOKENS))
        first.close()
        local = engine(attached(near_worker))
        warm(report, "tiered: fresh engine, local worker", local, near, right, cold, cached=BLOCK_TOKENS)
        local.close()
        other = engine(attached(far_worker))
        warm(report, "tiered: fresh engine, from a peer", other, near, right, cold, cached=BLOCK_TOKENS)
        with other.awake():
            evict_to_redis(api, TENANT)
        warm(report, "tiered: fresh engine, from Redis", other, far, right, cold, cached=BLOCK_TOKENS)
        unique(report, plain, other, cluster)
        other.close()
        if lmcache is not None:
            beside_lmcache(report, near, right, cold, directory, lambda connector: engine(connector, lmcache))


def attached(socket_path: str) -> dict[str, Any]:
    return CONNECTOR | {"kv_connector_extra_config": {"socket": socket_path}}


Right = dict[tuple[int, ...], set[int]]
"""By prompt, the first tokens that vLLM alone answers with, cold and with its own prefix cache."""


def alone(plain: Engine, prompts: list[list[int]]) -> tuple[list[float], list[float], Right]:
    """Times cold and with its own prefix cache, in ms, and the right answers."""
    cold, own, right = [], [], {}
    with plain.awake():
        for prompt in prompts:
            answers = [plain.answer(prompt), plain.answer(prompt)]
            for times, answer in zip((cold, own), answers, strict=True):
                times.append(answer.ttft_s * 1e3)
            right[tuple(prompt)] = {answer.tokens[0] for answer in answers}
            print(f"alone: {answers[0].ttft_s:.3f} s, own prefix cache {answers[1].ttft_s:.3f} s", flush=True)
    return cold, own, right


def warm(
    report: Report | None,
    label: str,
    engine: Engine,
    prompts: list[list[int]],
    right: Right,
    cold: list[float],
    *,
    cached: int,
) -> None:
    """cached: 0, or the grain in which tokens are to come from the cache."""
    times = []
    with engine.awake():
        for prompt in prompts:
            answer = engine.answer(prompt)
            expected = cached and (len(prompt) - 1) // cached * cached
            assert answer.cached == expected, f"{label}: {answer.cached} tokens came from the cache, not {expected}"
            assert answer.tokens[0] in right[tuple(prompt)], f"{label}: another answer"
            times.append(answer.ttft_s * 1e3)
            print(f"{label or 'further prompts'}: {answer.ttft_s:.3f} s, {answer.cached} cached", flush=True)
            time.sleep(0.5)  # in which what is stored behind the answer is stored
    if report is not None:
        report.add(label, median(times), "ms", baseline=median(cold))


def settle(api: CoordinatorClient, *, n_blocks: int) -> None:
    wait_until(lambda: api.tenant(TENANT).hot.blocks >= n_blocks, f"{n_blocks} blocks to be stored")


def unique(report: Report, plain: Engine, other: Engine, cluster: LocalCluster) -> None:
    """Prompts that nobody has, alone and with the connector, while our side is well and while it is not."""
    seeds = iter(range(1_000_000))
    beside(report, "nothing cached", plain, other, seeds)
    worker = cluster.workers[1]
    os.kill(worker.pid, signal.SIGSTOP)
    beside(report, "worker answers nothing", plain, other, seeds)
    os.kill(worker.pid, signal.SIGCONT)
    time.sleep(10.0)  # in which the engine attaches again
    stop_server(cluster)
    beside(report, "Redis stopped", plain, other, seeds)
    worker.kill()
    beside(report, "worker killed", plain, other, seeds)


def stop_server(cluster: LocalCluster) -> None:
    server = cluster.services[0]
    os.kill(server.pid, signal.SIGKILL)


def beside(report: Report, what: str, plain: Engine, other: Engine, seeds: Iterator[int]) -> None:
    """Pairs in turn, each first every second time. The ratio is the median of the pairs' ratios."""
    firsts: dict[Engine, list[Answer]] = {plain: [], other: []}
    for index in range(PAIRS):
        prompt = unknown(next(seeds))
        for engine in (plain, other) if index % 2 else (other, plain):
            with engine.awake():
                firsts[engine].append(engine.answer(prompt, ANSWER_TOKENS))
                time.sleep(1.0)  # what is done behind the answer is not paid for by the other one
        ours, theirs = firsts[other][-1], firsts[plain][-1]
        assert ours.tokens == theirs.tokens, f"{what}: the answers differ"
        assert ours.cached == theirs.cached == 0
        print(f"{what}: {ours.ttft_s:.3f} s, alone {theirs.ttft_s:.3f} s", flush=True)
    for metric, unit, figure in (
        ("time to first token", "ms", lambda answer: answer.ttft_s * 1e3),
        ("tokens/s", "1/s", lambda answer: answer.tokens_per_s),
    ):
        ours, theirs = ([figure(answer) for answer in firsts[engine]] for engine in (other, plain))
        ratio = median([a / b for a, b in zip(ours, theirs, strict=True)])
        report.add(f"tiered, {what}: {metric}", ratio * median(theirs), unit, baseline=median(theirs))


def unknown(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1_000, 40_000) for _ in range(2_000)]


def beside_lmcache(
    report: Report,
    prompts: list[list[int]],
    right: Right,
    cold: list[float],
    directory: Path,
    engine: Callable[[dict[str, Any]], Engine],
) -> None:
    """Its multi-process mode over a Valkey of its own: cold, a fresh engine, and a fresh engine and server."""
    [redis_port] = free_ports(1)
    data = directory / "lmcache"
    data.mkdir()
    with EmbeddedServer.start(data, maxmemory_bytes=None, port=redis_port):
        with lmcache_server(redis_port, directory) as connector:
            first = engine(connector)
            warm(report, "LMCache: first time, cached nowhere", first, prompts, right, cold, cached=0)
            time.sleep(5.0)
            first.close()
            local = engine(connector)
            warm(report, "LMCache: fresh engine, its memory", local, prompts, right, cold, cached=LMCACHE_CHUNK)
            local.close()
        with lmcache_server(redis_port, directory) as connector:
            fresh = engine(connector)
            warm(
                report, "LMCache: fresh engine and server, Valkey", fresh, prompts, right, cold, cached=LMCACHE_CHUNK
            )
            fresh.close()


@contextmanager
def lmcache_server(redis_port: int, directory: Path) -> Iterator[dict[str, Any]]:
    """The connector's configuration for it."""
    python = os.environ["TIERED_VLLM_LMCACHE_PYTHON"]
    port, http_port = free_ports(2)
    below = {"type": "resp", "host": "127.0.0.1", "port": redis_port, "num_workers": 2}
    argv = [str(Path(python).with_name("lmcache")), "server", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--chunk-size", str(LMCACHE_CHUNK), "--l1-size-gb", "2", "--eviction-policy", "LRU"]
    argv += ["--supported-transfer-mode", "engine_driven", "--http-host", "127.0.0.1", "--http-port", str(http_port)]
    argv += ["--disable-metrics", "--l2-adapter", json.dumps(below)]
    with (directory / "lmcache.log").open("ab") as log:
        server = subprocess.Popen(
            [python, *argv],
            stdout=log,
            stderr=log,
            env=os.environ | {"LMCACHE_TRACK_USAGE": "false", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
    try:
        wait_until(lambda: _answers(http_port), "LMCache's server", every_s=0.5)
        yield {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port},
        }
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthcheck", timeout=1.0).status_code < 500
    except httpx.TransportError:
        return False
