"""A real server for tests, and settings that keep tests on one server apart."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable

from tiered.cluster.embedded import EmbeddedServer
from tiered.config import RedisSettings
from tiered.types import BlockHash


def settings_for(server: EmbeddedServer, **changes: object) -> RedisSettings:
    """Settings with a namespace that nobody else uses; deadlines are generous unless a test is about them."""
    fields: dict[str, object] = {
        "url": server.url,
        "namespace": f"t-{uuid.uuid4().hex[:12]}",
        "lookup_timeout_s": 5.0,
        "control_timeout_s": 5.0,
        "value_timeout_s": 5.0,
    }
    return RedisSettings.model_validate(fields | changes)


def block_hash(name: object) -> BlockHash:
    """A hash made from any printable name."""
    return BlockHash(hashlib.sha256(str(name).encode()).digest())


def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Poll until the condition holds; AssertionError once the time is up."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {condition}"
        time.sleep(0.002)
