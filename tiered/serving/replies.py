"""What clients get: OpenAI's objects, whole or in pieces. Owns their form and nothing of how they come about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tiered.serving.answer import FinishReason, Usage
from tiered.types import Source

DONE: Final = b"data: [DONE]\n\n"


def sse(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def usage_of(usages: Sequence[Usage]) -> dict[str, Any]:
    """What one request used, over all its prompts."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    by_tier = {str(source): sum(usage.hit_tokens.get(source, 0) for usage in usages) for source in Source}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(by_tier.values()), "cached_tokens_by_tier": by_tier},
    }


@dataclass(frozen=True, slots=True)
class Form:
    """Of one request's replies. created: seconds since 1970."""

    request_id: str
    model: str
    created: int
    is_chat: bool
    with_usage: bool = False

    def whole(self, texts: Sequence[str], reasons: Sequence[FinishReason], usages: Sequence[Usage]) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        answers = zip(texts, reasons, strict=True)
        choices = [self._choice(index, text, reason) for index, (text, reason) in enumerate(answers)]
        return {**self._head(kind), "choices": choices, "usage": usage_of(usages)}

    def opening(self, index: int) -> dict[str, Any]:
        """A chat's first chunk says who speaks."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, {"content": text}, None) if self.is_chat else self._chunk(index, text, None)

    def closing(self, index: int, reason: FinishReason) -> dict[str, Any]:
        return self._chunk(index, {} if self.is_chat else "", reason)

    def accounts(self, usages: Sequence[Usage]) -> dict[str, Any]:
        """The chunk before the last, for those who asked for it."""
        return {**self._head(self._chunk_kind), "choices": [], "usage": usage_of(usages)}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _chunk(self, index: int, content: dict[str, str] | str, reason: FinishReason | None) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta" if self.is_chat else "text": content,
            "logprobs": None,
            "finish_reason": None if reason is None else str(reason),
        }
        chunk = {**self._head(self._chunk_kind), "choices": [choice]}
        return {**chunk, "usage": None} if self.with_usage else chunk

    def _choice(self, index: int, text: str, reason: FinishReason) -> dict[str, Any]:
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {"text": text}
        )
        return {"index": index, **content, "logprobs": None, "finish_reason": str(reason)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.model}
