"""The shared state as one process that everybody talks to: the store with the real scripts, and what befalls a
server.

What it was asked and had done counts as done, whoever hears the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.sim.scripting import Scripts
from tests.sim.store import Reply, ReplyError, Store


class SharedState:
    def __init__(self, now: Callable[[], float], *, page: int = 2_000) -> None:
        self.store = Store(now, page=page)
        self.scripts = Scripts(self.store)
        self.n_commands = 0
        self.after: Callable[[], None] = lambda: None
        """Called once what one client sent was done."""

    def execute(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        """In order, each one's reply or the error in its place."""
        replies = [self._one(words) for words in commands]
        self.n_commands += len(commands)
        self.after()
        return replies

    def restart_empty(self) -> None:
        self.store.flush()
        self.scripts.forget()

    def _one(self, words: Sequence[bytes]) -> Reply:
        try:
            name = words[0].upper()
            if name == b"EVALSHA":
                n_keys = int(words[2])
                return self.scripts.run(words[1], words[3 : 3 + n_keys], words[3 + n_keys :])
            if name == b"SCRIPT":
                return self.scripts.load(words[2])
            return self.store.do(words)
        except ReplyError as error:
            return error
