"""``tiered serve`` beside a real worker: hits, a worker that dies and comes back, an orderly stop, wrong starts."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serve_process import ServeProcess, serve_process
from tests.support.small_cluster import SmallCluster
from tests.support.tiny_llm import save_tiny_llm
from tests.support.worker_process import until

PROMPT = "The same beginning of every prompt, again and again. " * 4
SMALL = ("--port", "0", "--set", "cache.chunk_tokens=32", "--set", "cache.block_tokens=8", "--set", "model.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llm(tmp_path_factory.mktemp("m") / "tiny-llm")


def text(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["text"])


def cached(body: dict[str, Any]) -> dict[str, int]:
    details = body["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_by_tier"].values())
    return {tier: n for tier, n in details["cached_tokens_by_tier"].items() if n}


def test_a_prompt_comes_from_the_worker_and_without_it_has_the_same_text(
    cluster: SmallCluster, folder: Path, tmp_path: Path
) -> None:
    near, far = cluster.start("w1", "w2")
    with serve_process(tmp_path, str(folder), "--socket", near.socket_path, *SMALL) as server:
        until(lambda: server.health()["cache"]["attached"], "it is attached")
        assert server.health()["cache"] == {"kind": "worker", "attached": True, "node": "w1"}
        first = server.complete(PROMPT, max_tokens=20)
        again = server.complete(PROMPT, max_tokens=20)
        assert (cached(first), cached(again)) == ({}, {"hot": 192})
        cluster.wait_announced("w1", 232 // 32 * 32 // 8)
        beside = tmp_path / "beside"
        beside.mkdir()
        with serve_process(beside, str(folder), "--socket", far.socket_path, *SMALL) as other:
            until(lambda: other.health()["cache"]["attached"], "the other is attached")
            by_peer = other.complete(PROMPT, max_tokens=20)
            assert cached(by_peer) == {"peer": 192}
        near.kill()
        alone = server.complete(PROMPT, max_tokens=20)
        assert cached(alone) == {}
        assert text(first) == text(again) == text(by_peer) == text(alone) != ""
        assert server.health()["cache"]["attached"] is False
        cluster.restart("w1")
        until(lambda: server.health()["cache"]["attached"], "it is attached again")
        server.complete(PROMPT, max_tokens=20)
        back = server.complete(PROMPT, max_tokens=20)
        assert text(back) == text(first)
        assert cached(back) != {}
        assert PROMPT[:20] not in server.log + server.said
        assert "Traceback" not in server.log


def test_a_worker_that_comes_late_is_attached_when_it_is_there(
    cluster: SmallCluster, folder: Path, tmp_path: Path
) -> None:
    path = cluster.socket_path("late")
    with serve_process(tmp_path, str(folder), "--socket", path, *SMALL) as server:
        assert cached(server.complete(PROMPT)) == {}
        warnings = [json.loads(line) for line in server.log.splitlines() if '"warning"' in line]
        assert [line["socket"] for line in warnings if "without a cache" in line["event"]] == [path]
        cluster.start("late")
        until(lambda: server.health()["cache"]["attached"], "it is attached")
        server.complete(PROMPT)
        assert cached(server.complete(PROMPT)) == {"hot": 192}


def test_sigterm_lets_an_answer_end_and_the_exit_code_is_0(folder: Path, tmp_path: Path) -> None:
    with serve_process(tmp_path, str(folder), *SMALL) as server:
        body = json.dumps({"model": "tiny-llm", "prompt": "x" * 100, "max_tokens": 300, "stream": True})
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30.0) as sock:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall((head + body).encode())
            reply = sock.recv(1 << 16)
            assert reply.startswith(b"HTTP/1.1 200")
            server.process.send_signal(signal.SIGTERM)
            while data := sock.recv(1 << 16):
                reply += data
        assert b"data: [DONE]" in reply
        assert server.exit_code() == 0
        assert "Traceback" not in server.log


def test_a_start_that_fails_after_all_is_one_sentence_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    server = ServeProcess(tmp_path, str(folder), *SMALL, "--set", "cache.bytes=10")
    try:
        assert server.exit_code() == 2
    finally:
        server.end()
    sentences = [line for line in server.log.splitlines() if line.startswith("tiered")]
    assert len(sentences) == 1
    assert "cache.bytes: 10 hold no block" in sentences[0]
    assert "Traceback" not in server.log


def test_sigterm_while_the_model_is_loaded_is_an_orderly_stop(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ServeProcess(tmp_path, str(folder), *SMALL, "--port", str(port))
    try:
        until(lambda: server.ended or answers(port), "it answers", within_s=90.0)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    finally:
        server.end()
    assert "Traceback" not in server.log


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def test_check_config_prints_every_setting_and_starts_nothing(tmp_path: Path) -> None:
    server = ServeProcess(tmp_path, "demo", "--check-config", env={"TIERED_SERVE_LIMITS__QUEUE": "5"})
    assert server.exit_code() == 0
    assert "model.id = demo  (the command line)" in server.said
    assert "limits.queue = 5  (environment TIERED_SERVE_LIMITS__QUEUE)" in server.said
