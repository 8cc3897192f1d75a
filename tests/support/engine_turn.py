"""An engine that does a few things and goes.

``python -m tests.support.engine_turn SOCKET save|take SEED N_BLOCKS ...``: a program, so that it runs with the
packages of another release too. For each it prints how many blocks it stored, or where those that it took came from,
as a line of JSON; every byte is compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from tests.support.content import SCOPE, prompt, save, take
from tests.support.later_release import popen_in
from tests.support.small_cluster import PATIENT
from tiered.client.remote import RemoteClient

TURN_S = 60.0


Turn: TypeAlias = tuple[str, str, int, int]
"""The worker's socket, save or take, seed of the prompt, its blocks."""


def turns(tree: Path, *wanted: Turn) -> list[dict[str, int]]:
    """Have an engine of that tree take them."""
    argv = ["-m", "tests.support.engine_turn", *(str(part) for turn in wanted for part in turn)]
    with popen_in(tree, argv, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=TURN_S)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def _turn(socket_path: str, what: str, seed: str, n_blocks: str) -> None:
    tokens = prompt(int(seed), int(n_blocks))
    with closing(RemoteClient.attach(socket_path, SCOPE, engine="turn", options=PATIENT)) as client:
        if what == "save":
            print(json.dumps({"stored": save(client, tokens).n_stored}))
        else:
            print(json.dumps({source.value: n for source, n in take(client, tokens).items()}))


if __name__ == "__main__":
    for first in range(1, len(sys.argv), 4):
        _turn(*sys.argv[first : first + 4])
