"""From a request's words to token ids, and how long an answer may be.

Owns the chat template's use and the arithmetic of the context; it knows no HTTP beyond the refusals it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from tiered.serving.bodies import ChatBody, CompletionBody, Message, Prompt
from tiered.serving.errors import bad


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A model's own tokeniser of transformers. template: Jinja text in the place of its own.

    chars_max: of text that its context can hold, were each token its longest: more is not even tokenised, which would
    take seconds for some megabytes.
    """

    inner: Any
    n_vocab: int
    chars_max: int
    template: str | None = None

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Errors: ApiError for messages that the template does not take, or a model without one."""
        if self.template is None and not self.inner.chat_template:
            raise bad(
                "messages", "this model has no chat template; use /v1/completions, or set model.chat_template to one"
            )
        # OpenAI's newer name for the same; templates know the old one.
        spoken = [
            {"role": "system" if each.role == "developer" else each.role, "content": each.content}
            for each in messages
        ]
        try:
            encoded = self.inner.apply_chat_template(
                spoken, chat_template=self.template, add_generation_prompt=True, return_dict=True
            )
        except TemplateError as error:
            raise bad("messages", f"the model's chat template refuses them: {error.message}") from None
        return list(encoded["input_ids"])

    def prompt(self, prompt: Prompt) -> list[int]:
        """Text, or ids as they are. Errors: ApiError for ids that the model does not have."""
        if isinstance(prompt, str):
            return list(self.inner(prompt)["input_ids"])
        unknown = next((token for token in prompt if token >= self.n_vocab), None)
        if unknown is not None:
            raise bad("prompt", f"token {unknown} is none of this model's {self.n_vocab}")
        return list(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.inner.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def prompts_of(self, body: ChatBody | CompletionBody) -> list[list[int]]:
        """One for each answer. Errors: ApiError."""
        if isinstance(body, ChatBody):
            self._require_short("messages", sum(len(each.content) for each in body.messages))
            return [self.chat(body.messages)]
        for each in body.prompt:
            self._require_short("prompt", len(each) if isinstance(each, str) else 0)
        return [self.prompt(each) for each in body.prompt]

    def _require_short(self, field: str, n_chars: int) -> None:
        if n_chars > self.chars_max:
            raise bad(
                field,
                f"it has {n_chars} characters, and even {self.chars_max} would fill this model's context; shorten it",
                code="context_length_exceeded",
            )


@dataclass(frozen=True, slots=True)
class Room:
    """How much fits: context_tokens for prompt and answer together, new_tokens for the answer."""

    context_tokens: int
    new_tokens: int

    def for_answer(self, n_prompt: int, asked: int | None, field: str, *, prompt_field: str) -> int:
        """How many tokens an answer may have; what is left when nothing was asked for. Errors: ApiError."""
        if not n_prompt:
            raise bad(prompt_field, "it has no tokens; write something to complete")
        if asked is not None and asked > self.new_tokens:
            raise bad(field, f"{asked} is more than an answer may have here, {self.new_tokens} tokens")
        left = self.context_tokens - n_prompt
        if left < (asked or 1):
            wish = f" and {asked} for the answer ({field})" if asked is not None and left >= 1 else ""
            raise bad(
                prompt_field,
                f"it has {n_prompt} tokens{wish}, but the context here is {self.context_tokens} tokens for prompt "
                "and answer together; shorten one of them",
                code="context_length_exceeded",
            )
        return min(left, self.new_tokens) if asked is None else asked
