"""The demo's conversations: read from the package, dealt to tenants with a stated seed, cut into prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

TENANTS: Final = ("acme", "globex")
SEED: Final = 7

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One real conversation with an airline's agent; messages as a chat template takes them."""

    session_id: str
    messages: tuple[Message, ...]

    def turn(self, number: int) -> list[Message]:
        """Everything up to and including the ``number``-th thing the user says (from 1): one request's prompt."""
        seen = 0
        for index, message in enumerate(self.messages):
            seen += message["role"] == "user"
            if seen == number:
                return list(self.messages[: index + 1])
        raise ValueError(f"{self.session_id} has {seen} user turns, not {number}")


def read_conversations() -> list[Conversation]:
    """All that the package ships, in the order of the file."""
    text = files("tiered.cli.demo").joinpath("data/conversations.jsonl").read_text(encoding="utf-8")
    return [_conversation(json.loads(line)) for line in text.splitlines()]


def deal(conversations: Sequence[Conversation], *, seed: int = SEED) -> dict[str, list[Conversation]]:
    """Half to each tenant. The source has no tenants: who gets which is ours, and the same for the same seed."""
    shuffled = list(conversations)
    random.Random(seed).shuffle(shuffled)
    return {tenant: shuffled[index :: len(TENANTS)] for index, tenant in enumerate(TENANTS)}


def _conversation(row: dict[str, Any]) -> Conversation:
    return Conversation(row["session_id"], tuple(_message(message) for message in row["messages"]))


def _message(message: dict[str, Any]) -> Message:
    """A tool call is written out as the text of its function and arguments."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    called = "\n".join(f"{call['name']}({call['arguments']})" for call in calls)
    return {"role": message["role"], "content": message.get("content") or called}
