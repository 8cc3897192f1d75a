"""``tiered drain`` shows how far a drain is, and ends when nothing is asked any more."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tiered.cli import drain as drain_module
from tiered.cli.drain import _watch
from tiered.errors import ConfigError
from tiered.types import DrainProgress, DrainState

ASKED = DrainProgress()
DRAINING = DrainProgress(state=DrainState.DRAINING, left_blocks=3)


class FakeClient:
    def __init__(self, *progress: DrainProgress) -> None:
        self._progress = list(progress)

    def drain_progress(self, node: str) -> DrainProgress:
        return self._progress.pop(0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "_POLL_S", 0.0)


def test_a_drain_that_nobody_asks_for_any_more_ends_the_wait() -> None:
    client = cast(Any, FakeClient(ASKED, ASKED, DRAINING, ASKED))
    with pytest.raises(ConfigError, match=r"w1: 0 moved, 3 left, and it drains no more.*; ask again"):
        _watch(client, "w1", timeout_s=60.0)


def test_a_drain_whose_node_has_not_told_of_it_yet_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    drained = DrainProgress(state=DrainState.DRAINED, moved_blocks=3)
    client = cast(Any, FakeClient(ASKED, DRAINING, DRAINING, drained))
    assert _watch(client, "w1", timeout_s=60.0) == drained
    assert capsys.readouterr().err == "w1: 0 moved, 3 left\n"
