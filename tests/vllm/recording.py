"""The connector with a witness: what was copied to and from vLLM's memory, as it was there, and copies that wait.

Runs in vLLM's own processes, so it speaks through files in the folder that TIERED_TEST_WITNESS names: ``copied`` has
a line for each block, ``group`` is what the files begin with in which ranks meet, and while ``hold-in`` or
``hold-out`` exists no copy of that direction begins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch
import xxhash

from tiered.connectors.vllm import worker
from tiered.connectors.vllm.connector import TieredConnector
from tiered.connectors.vllm.pages import Pages, pages_of
from tiered.pool.pool import BlockPool
from tiered.types import BlockId

HOLD_S = 60.0

_folder = Path(os.environ["TIERED_TEST_WITNESS"])


class RecordingConnector(TieredConnector):
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        # For this engine alone: vLLM imports this module in the process of the tests, too.
        with patch.object(worker, "pages_of", RecordingPages):
            super().register_kv_caches(kv_caches)


class UntimedConnector(RecordingConnector):
    """Nobody hears how fast this engine computes, so that no fetch is given up because computing seems to be quicker:
    that hangs on how busy the machine is."""

    def wait_for_save(self) -> None:
        pass


class RecordingPages:
    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self._pages: Pages = pages_of(rows)
        self._rows = [row.numpy() for row in rows]
        self.batch = self._pages.batch
        (_folder / "group").write_text(os.environ["VLLM_DIST_IDENT"])

    @property
    def block_bytes(self) -> int:
        return self._pages.block_bytes

    def copy_in(self, pool: BlockPool, slots: Sequence[BlockId], targets: Sequence[int]) -> None:
        self._wait("in")
        self._pages.copy_in(pool, slots, targets)
        self._note("in", targets)

    def copy_out(self, sources: Sequence[int], pool: BlockPool, slots: Sequence[BlockId]) -> None:
        self._wait("out")
        self._pages.copy_out(sources, pool, slots)
        self._note("out", sources)

    def _note(self, direction: str, blocks: Sequence[int]) -> None:
        with (_folder / "copied").open("a") as lines:
            for block in blocks:
                digest = xxhash.xxh3_128()
                for row in self._rows:
                    digest.update(row[block])
                lines.write(f"{os.getpid()} {direction} {block} {digest.hexdigest()}\n")

    def _wait(self, direction: str) -> None:
        gate, ends_at = _folder / f"hold-{direction}", time.monotonic() + HOLD_S
        if gate.exists():
            (_folder / f"held-{direction}").touch()
        while gate.exists():
            if time.monotonic() > ends_at:
                raise TimeoutError(f"nobody removed {gate}")
            time.sleep(0.005)
