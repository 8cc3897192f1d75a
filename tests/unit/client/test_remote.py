"""A worker that answers nonsense is lost like one that does not answer: the engine gets a miss, never an error."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from tiered.client.remote import RemoteClient
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
