"""What the demo and its engine processes say to each other: one JSON object a line, over the engine's pipes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine has its model and, unless it runs without a cache, is attached."""

    model: str
    layout: str
    block_bytes: int


class Encode(msgspec.Struct, frozen=True, tag=True):
    messages: list[dict[str, str]]


class Encoded(msgspec.Struct, frozen=True, tag=True):
    tokens: list[int]


class Generate(msgspec.Struct, frozen=True, tag=True):
    tenant: str
    prompt: list[int]
    max_new_tokens: int


class Answer(msgspec.Struct, frozen=True, tag=True):
    """hits: prompt tokens by source. logits_digest: over the logits of all generated tokens. kv_digests: checksum of
    each whole block of the prompt's KV as this engine used it, in hex. saved_blocks: newly stored."""

    tokens: list[int]
    text: str
    hits: dict[str, int]
    ttft_s: float
    logits_digest: str
    kv_digests: list[str]
    saved_blocks: int
    save_reason: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """One sentence for a person; the engine ends after it if it could not start."""

    message: str


Request: TypeAlias = Encode | Generate
Reply: TypeAlias = Ready | Encoded | Answer | Refused

REQUESTS: Final = msgspec.json.Decoder(Request)
REPLIES: Final = msgspec.json.Decoder(Reply)


def to_line(message: Request | Reply) -> bytes:
    return msgspec.json.encode(message) + b"\n"
