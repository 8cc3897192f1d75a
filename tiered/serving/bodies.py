"""What clients send: OpenAI's request bodies, as far as they are understood here.

A field that would change the answer and is not supported is refused in one sentence; one that is unknown, or only
says who asks, is ignored, as clients expect. It knows neither the model nor its limits.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from tiered.client.hints import hints_of
from tiered.serving.errors import ApiError, bad, invalid
from tiered.types import NO_HINTS, Hints

STOPS_MAX: Final = 4
_STOP_CHARS_MAX: Final = 256
_SEED_BITS: Final = 63


def _no_truth(value: object) -> object:
    """JSON's true is an int to Python, and no number to a client."""
    return "true or false" if isinstance(value, bool) else value


def _text_of(value: object) -> str:
    """A message's text: a string, parts of type text, or nothing at all."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ValueError("a string, or a list of parts of type text")
    return "".join(_text_of_part(part) for part in value)


def _text_of_part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise ValueError(f"parts are of type text here, not {str(kind)[:32]!r}")
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise ValueError("a part of type text has a string as its text")
    return text


def _stops_of(value: object) -> tuple[str, ...]:
    """Without empty ones, which would end every answer before it begins."""
    given = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, list) or not all(isinstance(stop, str) for stop in given):
        raise ValueError("a string, or a list of strings")
    if len(given) > STOPS_MAX:
        raise ValueError(f"at most {STOPS_MAX} stop strings, not {len(given)}")
    if any(len(stop) > _STOP_CHARS_MAX for stop in given):
        raise ValueError(f"a stop string has at most {_STOP_CHARS_MAX} characters")
    return tuple(stop for stop in given if stop)


def _prompts_of(value: object) -> tuple[Prompt, ...]:
    """One prompt or several, each text or token ids."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return tuple(value)
        if all(isinstance(each, list) and each for each in value):
            return tuple(_tokens_of(each) for each in value)
        return (_tokens_of(value),)
    raise ValueError("a string, a list of strings, a list of token ids, or a list of such lists")


def _tokens_of(value: list[object]) -> tuple[int, ...]:
    if not all(type(each) is int and 0 <= each < 1 << 32 for each in value):
        raise ValueError("a string, a list of strings, a list of token ids, or a list of such lists")
    return tuple(each for each in value if isinstance(each, int))


Prompt: TypeAlias = str | tuple[int, ...]

_Int = Annotated[int, BeforeValidator(_no_truth)]
_Number = Annotated[float, BeforeValidator(_no_truth), Field(allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_text_of)] = ""


class StreamOptions(_Body):
    include_usage: bool = False


class Sampled(_Body):
    """What the two endpoints have in common."""

    model: str = Field(max_length=1_024)
    max_tokens: _Int | None = Field(default=None, ge=1)
    temperature: _Number | None = Field(default=None, ge=0, le=2)
    top_p: _Number | None = Field(default=None, gt=0, le=1)
    seed: _Int | None = Field(default=None, ge=-(1 << _SEED_BITS), lt=1 << _SEED_BITS)
    stop: Annotated[tuple[str, ...], PlainValidator(_stops_of)] = ()
    presence_penalty: _Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: _Number | None = Field(default=None, ge=-2, le=2)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: _Int | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    response_format: dict[str, Any] | None = None
    prompt_cache_key: Any = None
    metadata: Any = None

    @property
    def hints(self) -> Hints:
        """What is known of the request beyond its text; what cannot be a hint is none, and changes no answer."""
        said = self.metadata if isinstance(self.metadata, dict) else {}
        given = {name: said.get(name) for name in ("session", "continues", "ttl_s")}  # a label is no string alone
        if given.get("session") is None:
            given["session"] = self.prompt_cache_key
        try:
            return hints_of(given)
        except ValueError:
            return NO_HINTS

    @property
    def asked_tokens(self) -> tuple[int | None, str]:
        """How long the answer may be, and which field says so."""
        return self.max_tokens, "max_tokens"

    def require_supported(self) -> None:
        """Errors: ApiError for what would change the answer and cannot be done."""
        if self.n not in (None, 1):
            raise bad("n", "this server gives one answer a request; ask several times")
        if not (self.logprobs is None or self.logprobs is False) or self.top_logprobs:  # 0 asks for some, too
            raise bad("logprobs", "this server does not report log probabilities; leave it out")
        if self.logit_bias:
            raise bad("logit_bias", "this server does not bias tokens; leave it out")
        if self.response_format and self.response_format.get("type", "text") != "text":
            raise bad("response_format", "this server does not constrain its answers; only type text is taken")
        if self.stream_options is not None and not self.stream:
            raise bad("stream_options", "it goes with stream set to true only")


class ChatBody(Sampled):
    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_completion_tokens: _Int | None = Field(default=None, ge=1)
    tools: list[Any] | None = None
    functions: list[Any] | None = None

    @property
    def asked_tokens(self) -> tuple[int | None, str]:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return super().asked_tokens

    def require_supported(self) -> None:
        super().require_supported()
        if self.tools or self.functions:
            raise bad("tools" if self.tools else "functions", "this server calls no tools; leave it out")


class CompletionBody(Sampled):
    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts_of)]
    echo: bool | None = None
    suffix: str | None = None
    best_of: _Int | None = None

    @property
    def asked_tokens(self) -> tuple[int | None, str]:
        """16 when nothing is said, as OpenAI has it."""
        return (16 if self.max_tokens is None else self.max_tokens), "max_tokens"

    def require_supported(self) -> None:
        super().require_supported()
        if self.best_of not in (None, 1):
            raise bad("best_of", "this server gives one answer a request; leave it out")
        if self.echo:
            raise bad("echo", "this server does not repeat the prompt; leave it out")
        if self.suffix:
            raise bad("suffix", "this server completes at the end only; leave it out")


B = TypeVar("B", bound=Sampled)


def read_body(kind: type[B], raw: bytes) -> B:
    """Errors: ApiError."""
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise invalid(error) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    body.require_supported()
    return body
