"""A worker that answers nonsense is lost like one that does not answer: the engine gets a miss, never an error."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import tiered.client.link
import tiered.client.worker
from tests.support.worker_process import until
from tiered.client.link import Link, open_link
from tiered.client.remote import RemoteClient
from tiered.errors import TierUnavailable
from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.pool.share import send_with_descriptor
from tiered.types import TenantId
from tiered.wire.framing import ENGINE_REQUESTS, FrameReader, encode
from tiered.wire.messages import Attached, Committed, EngineRequest, Matched, Message, Open, Shared, Sharing

LAYOUT = KvLayout(n_layers=1, n_kv_heads=1, head_dim=4, dtype="float32", block_tokens=4)
SCOPE = ModelScope(model="m", weights_version="w", layout=LAYOUT)
N_BLOCKS = 4
TENANT = TenantId("t")


class OddWorker:
    """Attaches one engine properly and says how its tenant shares; any other request gets the one reply given."""

    def __init__(self, path: Path, reply: Message) -> None:
        self._reply = reply
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.asked: list[EngineRequest] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        frames: FrameReader[EngineRequest] = FrameReader(ENGINE_REQUESTS)
        memory = os.memfd_create("odd")
        os.ftruncate(memory, N_BLOCKS * LAYOUT.block_bytes)
        attached = Attached(
            node="odd", connection=1, layout=LAYOUT, n_blocks=N_BLOCKS, device="cpu", match_lease_s=1.0
        )
        with sock:
            first = True
            while data := sock.recv(1 << 16):
                for request in frames.feed(data):
                    if first:
                        send_with_descriptor(sock.fileno(), encode(attached), memory)
                        os.close(memory)
                        first = False
                    elif isinstance(request, Sharing):
                        sock.sendall(encode(Shared(label=f"tenant:{request.tenant}")))
                    else:
                        self.asked.append(request)
                        sock.sendall(encode(self._reply))

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5.0)


def matched(*, block_ids: bytes = b"", checksums: bytes = b"") -> Matched:
    return Matched(lease=1, block_ids=block_ids, checksums=checksums, n_peer=0, n_redis=0)


@pytest.fixture(params=["half an id", "half a checksum", "outside the pool", "another message"])
def odd_reply(request: pytest.FixtureRequest) -> Message:
    return {
        "half an id": matched(block_ids=b"\0\0\0"),
        "half a checksum": matched(checksums=b"\0" * 15),
        "outside the pool": matched(block_ids=N_BLOCKS.to_bytes(4, "little")),
        "another message": Committed(n_blocks=1),
    }[request.param]


def test_a_reply_that_makes_no_sense_is_a_miss_and_loses_the_worker(tmp_path: Path, odd_reply: Message) -> None:
    worker = OddWorker(tmp_path / "s", odd_reply)
    client = RemoteClient.attach(str(tmp_path / "s"), SCOPE)
    assert client.attached
    assert client.match([1, 2, 3, 4], tenant=TENANT).lease is None
    assert not client.attached
    client.close()
    worker.close()


def test_a_save_that_is_answered_with_nonsense_says_unavailable(tmp_path: Path) -> None:
    worker = OddWorker(tmp_path / "s", Committed(n_blocks=1))
    client = RemoteClient.attach(str(tmp_path / "s"), SCOPE)
    saved = client.save([1, 2, 3, 4], tenant=TENANT, fill=lambda pool, block_ids, first: None)
    assert saved.reason == "unavailable"
    assert isinstance(worker.asked[0], Open)
    client.close()
    worker.close()


def test_a_want_of_files_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, n_failures = OddWorker(tmp_path / "s", Committed(n_blocks=1)), 3

    def open_when_there_is_room(*args: Any, **kwargs: Any) -> Link:
        nonlocal n_failures
        if n_failures:
            n_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return open_link(*args, **kwargs)

    monkeypatch.setattr(tiered.client.worker, "open_link", open_when_there_is_room)
    monkeypatch.setattr(tiered.client.worker, "RETRY_MAX_S", 0.01)
    client = RemoteClient.attach_later(str(tmp_path / "s"), SCOPE)
    until(lambda: client.attached, "attached")
    client.close()
    worker.close()


def test_a_want_of_threads_is_a_miss_and_the_next_call_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = OddWorker(tmp_path / "s", Committed(n_blocks=1))
    start = threading.Thread.start

    def start_none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start_none)
    client = RemoteClient.attach_later(str(tmp_path / "s"), SCOPE)
    for _ in range(3):
        assert client.match([1, 2, 3, 4], tenant=TENANT).lease is None
    assert [record.getMessage().count("can't start new thread") for record in caplog.records] == [1]
    monkeypatch.setattr(threading.Thread, "start", start)
    client.match([1, 2, 3, 4], tenant=TENANT)
    until(lambda: client.attached, "attached")
    client.close()
    worker.close()


def test_a_pool_whose_memory_did_not_come_is_no_cuda_pool() -> None:
    attached = Attached(node="w", connection=1, layout=LAYOUT, n_blocks=N_BLOCKS, device="cpu", match_lease_s=1.0)
    with pytest.raises(TierUnavailable, match="cpu: no memory came with the worker's answer"):
        tiered.client.link._open_pool(attached, None)
