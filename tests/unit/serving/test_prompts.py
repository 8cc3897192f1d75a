"""Bodies and prompts: what is taken, what is refused and in which words, how much fits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.tiny_llm import byte_tokenizer
from tiered.serving.bodies import ChatBody, CompletionBody, read_body
from tiered.serving.errors import ApiError
from tiered.serving.prompts import Room, Tokenizer

SIZES: dict[str, Any] = {"n_vocab": 264, "chars_max": 10_000}
TOKENIZER = Tokenizer(byte_tokenizer(), **SIZES)


def chat(**fields: object) -> ChatBody:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_body(ChatBody, json.dumps(body).encode())


def completion(**fields: object) -> CompletionBody:
    return read_body(CompletionBody, json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def test_parts_of_text_are_joined_and_a_message_may_have_no_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(
        messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "tool"}]
    )
    assert [message.content for message in body.messages] == ["ab", "", ""]


def test_the_chat_template_makes_the_prompt_and_a_developer_is_a_system() -> None:
    body = chat(messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": "h\u00e9"}])
    (tokens,) = TOKENIZER.prompts_of(body)
    text = TOKENIZER.inner.decode(tokens)
    assert text == "<|start|>system: be brief<|end|><|start|>user: h\u00e9<|end|><|start|>assistant: "


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("ab", [[97, 98]]), (["a", "b"], [[97], [98]]), ([97, 98], [[97, 98]]), ([[97], [98]], [[97], [98]])],
)
def test_a_prompt_is_text_or_tokens_and_may_be_several(prompt: object, tokens: list[list[int]]) -> None:
    assert TOKENIZER.prompts_of(completion(prompt=prompt)) == tokens


def test_unknown_fields_and_who_the_user_is_are_ignored() -> None:
    assert chat(user="u", metadata={"a": 1}, store=True, top_k=5, parallel_tool_calls=False).stop == ()


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ("a", ("a",)), (["a", "", "b"], ("a", "b")), ("", ())])
def test_stop_is_a_string_or_up_to_four(stop: object, stops: tuple[str, ...]) -> None:
    assert chat(stop=stop).stop == stops


def test_the_newer_name_of_an_answers_length_counts() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).asked_tokens == (7, "max_completion_tokens")
    assert chat(max_tokens=5).asked_tokens == (5, "max_tokens")
    assert chat().asked_tokens == (None, "max_tokens")
    assert completion().asked_tokens == (16, "max_tokens")


@pytest.mark.parametrize("logprobs", [None, False])
def test_what_asks_for_nothing_is_taken(logprobs: object) -> None:
    fields = {"n": 1, "logprobs": logprobs, "logit_bias": {}, "response_format": {"type": "text"}, "stream": None}
    assert chat(**fields, tools=[], stream_options=None)
    assert completion(**fields, best_of=1, echo=False, suffix="")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content"),
        ({"messages": "hi"}, "messages"),
        ({"model": None}, "model"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 32]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_a_completion_that_cannot_be_done_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(ApiError) as caught:
        read_body(ChatBody, b'{"model": "m", "messages": [{"role": "secret words", "content": "secret words"}]}')
    assert "secret" not in caught.value.message


def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ApiError, match="token 264 is none of this model's 264"):
        TOKENIZER.prompts_of(completion(prompt=[263, 264]))


def test_a_model_without_a_template_says_what_to_do() -> None:
    bare = Tokenizer(byte_tokenizer(template=None), **SIZES)
    with pytest.raises(ApiError, match=r"no chat template; use /v1/completions"):
        bare.prompts_of(chat())
    given = Tokenizer(byte_tokenizer(template=None), **SIZES, template="{{ messages[0]['content'] }}")
    assert given.prompts_of(chat()) == [[*b"hi"]]


def test_what_the_template_refuses_is_the_callers_mistake() -> None:
    picky = Tokenizer(byte_tokenizer(), **SIZES, template="{{ raise_exception('one role after the other') }}")
    with pytest.raises(ApiError, match="messages: the model's chat template refuses them: one role after the other"):
        picky.prompts_of(chat())


ROOM = Room(context_tokens=100, new_tokens=50)


@pytest.mark.parametrize(
    ("n_prompt", "asked", "n_answer"), [(50, 50, 50), (99, 1, 1), (10, None, 50), (80, None, 20), (99, None, 1)]
)
def test_an_answer_has_what_was_asked_for_or_what_is_left(n_prompt: int, asked: int | None, n_answer: int) -> None:
    assert ROOM.for_answer(n_prompt, asked, "max_tokens", prompt_field="prompt") == n_answer


@pytest.mark.parametrize(
    ("n_prompt", "asked", "says"),
    [
        (0, 1, "it has no tokens"),
        (1, 51, "max_tokens: 51 is more than an answer may have here, 50 tokens"),
        (90, 11, "it has 90 tokens and 11 for the answer"),
        (100, None, "it has 100 tokens, but the context here is 100 tokens"),
        (100, 1, "it has 100 tokens, but the context here is 100 tokens"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(n_prompt: int, asked: int | None, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        ROOM.for_answer(n_prompt, asked, "max_tokens", prompt_field="prompt")
    assert says in caught.value.message
    assert caught.value.status == 400
