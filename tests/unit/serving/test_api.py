"""The server over HTTP, with a model that says what the test wrote: forms, limits, order, and who goes away."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.served import NAME, ScriptedGenerator, Served, scripted, scripted_model, served, settings_of
from tests.support.tiny_llm import CONTEXT_TOKENS, EOS
from tests.support.worker_process import until
from tiered.errors import ConfigError
from tiered.listening import listen
from tiered.serving.keys import Keys
from tiered.types import NO_HINTS, Continues, Hints, Source


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Served, ScriptedGenerator]]:
    """For tests that leave it as it was."""
    with scripted() as running:
        yield running


@pytest.fixture
def server(shared: tuple[Served, ScriptedGenerator]) -> Served:
    return shared[0]


@pytest.fixture
def model(shared: tuple[Served, ScriptedGenerator]) -> Iterator[ScriptedGenerator]:
    yield shared[1]
    fresh = ScriptedGenerator()
    shared[1].script, shared[1].hits, shared[1].failing = fresh.script, {}, None
    shared[1].gate.set()
    shared[1].asked.clear()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def streamed_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def says(text: str) -> ScriptedGenerator:
    return ScriptedGenerator(script=lambda prompt: [*text.encode(), EOS])


# Forms


def test_a_chat_is_answered_in_openais_form(server: Served, model: ScriptedGenerator) -> None:
    model.hits = {Source.HOT: 8, Source.PEER: 4, Source.REDIS: 2}
    body = server.chat("hi").json()
    assert body["object"] == "chat.completion"
    assert body["model"] == NAME
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert body["usage"] == {
        "prompt_tokens": 22,
        "completion_tokens": 6,
        "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 14, "cached_tokens_by_tier": {"hot": 8, "peer": 4, "redis": 2}},
    }


def test_a_stream_says_who_speaks_then_the_text_then_why_it_ended(server: Served, model: ScriptedGenerator) -> None:
    response = server.chat(stream=True)
    chunks = chunks_of(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {response.headers["x-request-id"]}
    assert all("usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:] == [{"content": letter} for letter in "hello"] + [{}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["stop"]


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({}, NO_HINTS),
        ({"prompt_cache_key": "chat-7"}, Hints(session="chat-7")),
        (
            {"prompt_cache_key": "x", "metadata": {"session": "chat-7", "continues": "no", "ttl_s": "60"}},
            Hints(session="chat-7", continues=Continues.NO, ttl_s=60.0),
        ),
        ({"metadata": {"labels": "a", "order": "17"}}, NO_HINTS),
        ({"metadata": {"ttl_s": "soon"}, "prompt_cache_key": "chat-7"}, NO_HINTS),
        ({"metadata": [1], "prompt_cache_key": 7}, NO_HINTS),
        ({"metadata": {"session": "x" * 257}}, NO_HINTS),
    ],
)
def test_what_a_request_says_of_its_conversation_are_hints_and_never_an_error(
    server: Served, model: ScriptedGenerator, fields: dict[str, Any], hints: Hints
) -> None:
    assert text_of(server.chat("hi", **fields)) == "hello"
    assert [asked.hints for asked in model.asked] == [hints]


def test_usage_comes_in_a_last_chunk_of_its_own_for_who_asks(server: Served, model: ScriptedGenerator) -> None:
    model.hits = {Source.REDIS: 16}
    *others, last = chunks_of(server.chat(stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"] == {"hot": 0, "peer": 0, "redis": 16}


def test_several_prompts_have_an_answer_each_and_one_account(server: Served, model: ScriptedGenerator) -> None:
    model.script = lambda prompt: [*prompt.upper(), EOS]
    body = server.complete(["ab", "c", "d"]).json()
    assert body["object"] == "text_completion"
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "AB"), (1, "C"), (2, "D")]
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 7
    texts = ["", "", ""]
    for chunk in chunks_of(server.complete(["ab", "c", "d"], stream=True)):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["AB", "C", "D"]


def test_the_one_model_is_listed_and_any_other_is_not_found(server: Served, model: ScriptedGenerator) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert (card["id"], card["object"]) == (NAME, "model")
    assert server.http.get(f"/v1/models/{NAME}").json() == card
    for response in (server.chat(model="other/one"), server.http.get("/v1/models/other/one")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"
    assert model.asked == []


def test_health_tells_of_the_model_and_its_cache(server: Served) -> None:
    for path in ("/health", "/healthz", "/ready", "/readyz"):
        response = server.http.get(path)
        assert response.status_code == server.http.head(path).status_code == 200
        assert response.json() == {
            "status": "ok",
            "model": NAME,
            "ready": True,
            "cache": {"kind": "none", "attached": False, "node": ""},
        }


def test_metrics_count_tokens_by_source_and_requests_by_status(server: Served, model: ScriptedGenerator) -> None:
    names = ("hot", "peer", "redis", "computed")

    def tokens() -> list[float]:
        return [server.metric("tiered_serve_prompt_tokens_total", source=name) for name in names]

    before, refused = tokens(), server.metric("tiered_serve_requests_total", endpoint="chat", status="400")
    model.hits = {Source.HOT: 8, Source.REDIS: 4}
    server.chat()
    server.chat(n=3)
    assert [now - then for now, then in zip(tokens(), before, strict=True)] == [8, 0, 4, 10]
    assert server.metric("tiered_serve_requests_total", endpoint="chat", status="400") == refused + 1
    text = server.http.get("/metrics").text
    for name in ("time_to_first_token_seconds_count", "time_per_token_seconds_count", "queue_length", "ready"):
        assert f"tiered_serve_{name}" in text


# Streams


def test_no_chunk_has_half_a_character(server: Served, model: ScriptedGenerator) -> None:
    text = "na\u00efve \u20ac5 \U0001f600\U0001f601 end"
    model.script = lambda prompt: [*text.encode(), EOS]
    chunks = chunks_of(server.chat(stream=True))
    assert streamed_text(chunks) == text
    assert all("\ufffd" not in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)
    assert text_of(server.chat()) == text


def test_an_answer_cut_within_a_character_ends_before_it(server: Served, model: ScriptedGenerator) -> None:
    model.script = lambda prompt: "a\u20ac".encode()
    body = server.chat(max_tokens=2).json()
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("a", "length")
    assert body["usage"]["completion_tokens"] == 2


def test_a_stop_string_over_several_tokens_is_never_shown(server: Served, model: ScriptedGenerator) -> None:
    model.script = lambda prompt: [*b"one two END three", EOS]
    chunks = chunks_of(server.chat(stream=True, stop=["never", " END"]))
    assert streamed_text(chunks) == "one two"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert text_of(server.chat(stop="END")) == "one two "
    until(lambda: all(asked.ended for asked in model.asked), "both answers ended")
    assert [asked.n_tokens for asked in model.asked] == [11, 11]  # nothing is generated after it


def test_what_only_looked_like_a_stop_string_is_shown_at_the_end(server: Served, model: ScriptedGenerator) -> None:
    model.script = lambda prompt: [*b"the EN", EOS]
    assert streamed_text(chunks_of(server.chat(stream=True, stop="END"))) == "the EN"


def test_an_answer_ends_at_its_length_or_at_its_end(server: Served, model: ScriptedGenerator) -> None:
    for asked, text, reason in ((5, "hello", "length"), (6, "hello", "stop"), (1, "h", "length")):
        choice = server.chat(max_tokens=asked).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)


def test_an_answer_may_be_empty(server: Served, model: ScriptedGenerator) -> None:
    model.script = lambda prompt: [EOS]
    assert text_of(server.chat()) == ""
    chunks = chunks_of(server.chat(stream=True))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


# Limits


def test_what_does_not_fit_the_context_is_refused_with_the_numbers(server: Served, model: ScriptedGenerator) -> None:
    error = server.complete("x" * 500, max_tokens=13).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "500 tokens and 13 for the answer" in error["message"]
    assert str(CONTEXT_TOKENS) in error["message"]
    assert server.chat("x" * 600).json()["error"]["param"] == "messages"
    assert server.chat("x" * 400).status_code == 200
    assert [asked.max_new_tokens for asked in model.asked] == [CONTEXT_TOKENS - 420]


def test_a_body_too_long_is_refused_before_it_is_read_to_its_end() -> None:
    with scripted(limits={"body_bytes": 1000}) as (server, model):
        assert server.chat("x" * 1000).status_code == 413
        assert server.chat("x").status_code == 200
        assert len(model.asked) == 1


def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    with (
        scripted(server={"body_timeout_s": 0.1}) as (server, _),
        socket.create_connection(("127.0.0.1", server.port)) as sock,
    ):
        sock.settimeout(10.0)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_text_that_no_tokeniser_could_make_fit_is_refused_without_tokenising_it(server: Served) -> None:
    for response in (server.complete("x" * 3_000_000), server.chat("x" * 3_000_000)):
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "3000000 characters" in error["message"]


def test_too_many_prompts_at_once_are_refused() -> None:
    with scripted(limits={"prompts": 2}) as (server, _):
        assert server.complete(["a", "b"]).status_code == 200
        assert server.complete(["a", "b", "c"]).json()["error"]["param"] == "prompt"


def test_prompts_that_could_never_wait_together_are_refused_for_good() -> None:
    with scripted(limits={"queue": 4}) as (server, _):
        assert server.complete(["a"] * 4).status_code == 200
        response = server.complete(["a"] * 5)
        assert response.status_code == 400
        assert "retry-after" not in response.headers
        error = response.json()["error"]
        assert error["param"] == "prompt"
        assert error["message"] == "prompt: 5 prompts are more than 4 at once (limits.queue)"


def test_a_full_queue_answers_429_and_when_to_come_back(pool: ThreadPoolExecutor) -> None:
    with scripted(limits={"queue": 2}) as (server, model):
        model.gate.clear()
        waiting = queued(pool, server, model, 3)
        response = server.chat()
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.json()["error"]["code"] == "queue_full"
        assert server.complete(["a", "b"], stream=True).status_code == 429
        model.gate.set()
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert server.chat().status_code == 200


def queued(
    pool: ThreadPoolExecutor, server: Served, model: ScriptedGenerator, n: int
) -> list[Future[httpx.Response]]:
    """One that runs, held up by the gate, and the others behind it."""
    assert server.server is not None
    engine = server.server.engine
    futures = [pool.submit(server.chat, "first")]
    until(lambda: len(model.asked) == 1, "the first is being answered")
    for index in range(1, n):
        futures.append(pool.submit(server.chat, f"number {index}"))
        until(lambda index=index: engine.n_waiting == index, f"{index} wait")
    return futures


def test_tenants_take_turns_and_one_that_fills_the_queue_makes_way(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    keys = keys_file(tmp_path, {"ka": "a", "kb": "b"})
    with scripted(keys=keys, limits={"queue": 4}) as (server, model):
        model.gate.clear()
        engine = server.server.engine if server.server is not None else None
        assert engine is not None

        def ask(key: str, text: str) -> Future[httpx.Response]:
            body = {"model": NAME, "prompt": text}
            headers = {"Authorization": f"Bearer {key}"}
            return pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, headers=headers, timeout=30.0)

        asked = [ask("ka", "a0")]
        until(lambda: len(model.asked) == 1, "the first is being answered")
        for index in range(1, 5):
            asked.append(ask("ka", f"a{index}"))
            until(lambda index=index: engine.n_waiting == index, f"{index} wait")
        late = ask("kb", "b0")
        assert asked[4].result().status_code == 429  # the last of who had most
        model.gate.set()
        assert late.result().status_code == 200
        assert [each.result().status_code for each in asked[:4]] == [200] * 4
        assert [bytes(each.prompt).decode() for each in model.asked] == ["a0", "a1", "b0", "a2", "a3"]
        assert [str(each.tenant) for each in model.asked] == ["a", "a", "b", "a", "a"]


# Clients that go away, answers that fail, and the end


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_answer_at_the_next_token(stream: bool) -> None:
    endless = ScriptedGenerator(script=lambda prompt: [120] * 400)
    with scripted(endless) as (server, model):
        model.gate.clear()
        body = json.dumps({"model": NAME, "prompt": "x", "max_tokens": 400, "stream": stream}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(head + body)
            until(lambda: len(model.asked) == 1, "it is being answered")
        until(lambda: model.asked[0].ended == "abandoned", "the answer was given up")
        assert model.asked[0].n_tokens == 0
        gone = lambda: server.metric("tiered_serve_requests_total", endpoint="completions", status="499")  # noqa: E731
        until(lambda: gone() == 1, "it was counted")
        model.gate.set()
        assert server.complete(max_tokens=3).json()["choices"][0]["text"] == "xxx"


def test_a_client_that_leaves_in_the_middle_of_its_stream_is_noticed() -> None:
    endless = ScriptedGenerator(script=lambda prompt: [120] * 400, pause_after=1)
    with scripted(endless) as (server, model):
        with server.http.stream(
            "POST", "/v1/completions", json={"model": NAME, "prompt": "x", "max_tokens": 400, "stream": True}
        ) as reply:
            next(reply.iter_bytes())
        until(lambda: model.asked[0].ended != "", "the answer was given up")
        assert (model.asked[0].ended, model.asked[0].n_tokens) == ("abandoned", 1)


def test_who_goes_away_while_waiting_makes_room(pool: ThreadPoolExecutor) -> None:
    with scripted(limits={"queue": 1}) as (server, model):
        model.gate.clear()
        first = pool.submit(server.chat)
        until(lambda: len(model.asked) == 1, "the first is being answered")
        assert server.server is not None
        engine = server.server.engine
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json={"model": NAME, "prompt": "x"}, timeout=0.2)
        until(lambda: engine.n_waiting == 0, "its place is free")
        model.gate.set()
        assert first.result().status_code == 200
        assert len(model.asked) == 1


def test_an_answer_that_fails_is_500_without_a_cause_and_the_next_is_answered(
    server: Served, model: ScriptedGenerator
) -> None:
    for stream in (False, True):
        model.failing = RuntimeError("secret words")
        response = server.chat(stream=stream)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
        assert "Traceback" not in response.text
    assert server.chat().status_code == 200


def test_what_fails_before_the_model_is_asked_is_500_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted() as (server, _):
        with monkeypatch.context() as broken:
            broken.setattr("tiered.serving.engine.Sampler", lambda sampling: 1 // 0)
            response = server.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
        assert server.chat().status_code == 200
        assert server.http.get("/health").status_code == 200


def test_an_answer_that_fails_in_its_middle_ends_the_stream_with_an_error_and_not_as_done() -> None:
    with scripted(BreaksOff()) as (server, _):
        text = server.chat(stream=True).text
        *_, last = [line for line in text.split("\n\n") if line]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
        assert "[DONE]" not in text
        assert "secret" not in text


class BreaksOff(ScriptedGenerator):
    """Says two letters and fails."""

    def generate(self, prompt: Any, **asked: Any) -> object:
        for token in b"ab":
            asked["steering"].on_token(token, {})
        raise RuntimeError("secret words")


def test_stopping_lets_answers_end_and_takes_nothing_on(pool: ThreadPoolExecutor) -> None:
    with scripted(server={"grace_s": 30.0}) as (server, model):
        model.gate.clear()
        accepted = queued(pool, server, model, 2)
        server.stop()
        until(lambda: server.http.get("/readyz").status_code == 503, "it is not ready any more")
        refused = server.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert "retry-after" in refused.headers
        assert server.http.get("/health").status_code == 200
        model.gate.set()
        assert [each.result().status_code for each in accepted] == [200, 200]
        until(lambda: not server.running, "the server ended by itself")
        assert server.error is None


@pytest.mark.parametrize("how", ["the grace is over", "asked a second time"])
def test_what_has_not_ended_is_cut_with_503(pool: ThreadPoolExecutor, how: str) -> None:
    with scripted(server={"grace_s": 0.1 if how == "the grace is over" else 600.0}) as (server, model):
        model.gate.clear()
        accepted = queued(pool, server, model, 3)
        server.stop()
        if how == "asked a second time":
            server.stop()
        assert [each.result().status_code for each in accepted] == [503] * 3
        until(lambda: not server.running, "the server ended")
        assert server.error is None


def test_a_stream_that_is_cut_ends_with_an_error(pool: ThreadPoolExecutor) -> None:
    with scripted() as (server, model):
        body = {"model": NAME, "prompt": "x", "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_text()
            assert next(lines)
            model.gate.clear()
            server.stop()
            rest = "".join(lines)
        assert '"stopping"' in rest or "[DONE]" in rest


def test_while_the_model_is_loaded_the_server_lives_and_is_not_ready() -> None:
    go_on = threading.Event()

    def load() -> Any:
        assert go_on.wait(20.0)
        return scripted_model(ScriptedGenerator())

    server = Served(load, settings_of(), None)
    try:
        until(lambda: server.http.get("/healthz").status_code == 200, "it answers")
        assert server.http.get("/readyz").json()["status"] == "loading"
        assert server.http.get("/readyz").status_code == 503
        assert server.chat().json()["error"]["code"] == "loading"
        go_on.set()
        server.wait_ready()
        assert server.http.get("/readyz").status_code == 200
    finally:
        go_on.set()
        server.end()


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error() -> None:
    def load() -> Any:
        raise ConfigError("model.id: no")

    server = Served(load, settings_of(), None)
    until(lambda: not server.running, "it ended")
    assert isinstance(server.error, ConfigError)
    server.http.close()


# Keys


def keys_file(folder: Path, tenants: dict[str, str]) -> Keys:
    file = folder / "keys.toml"
    lines = [f'"sha256:{hashlib.sha256(key.encode()).hexdigest()}" = "{tenant}"' for key, tenant in tenants.items()]
    file.write_text("\n".join(["[keys]", *lines]))
    return Keys(file, clock=lambda: 0.0)


def test_the_tenant_comes_from_the_key_alone(tmp_path: Path) -> None:
    with scripted(keys=keys_file(tmp_path, {"sk-a": "acme"})) as (server, model):
        for given in (None, "Bearer nope", "sk-a", "Bearer", "Basic sk-a"):
            server.http.headers.pop("Authorization", None)
            server.http.headers.update({} if given is None else {"Authorization": given})
            for response in (server.chat(), server.http.get("/v1/models")):
                assert response.status_code == 401
                assert response.json()["error"]["type"] == "authentication_error"
                assert response.headers["www-authenticate"] == "Bearer"
        assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200
        server.http.headers["Authorization"] = "Bearer sk-a"
        body = {"user": "globex", "tenant": "globex", "kv_transfer_params": {"tenant": "globex"}}
        assert server.chat(**body).status_code == 200
        assert [str(asked.tenant) for asked in model.asked] == ["acme"]


def test_without_keys_everybody_is_default_and_other_sites_pages_are_refused(
    server: Served, model: ScriptedGenerator
) -> None:
    assert server.chat().status_code == 200
    assert [str(asked.tenant) for asked in model.asked] == ["default"]
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
        assert server.http.get("/v1/models", headers=headers).status_code == 403
    assert server.http.get("/v1/models", headers={"Origin": "http://localhost:3000"}).status_code == 200


# Anything at all

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_FIELDS = [
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
    *("stream", "stream_options", "n", "logprobs", "presence_penalty", "frequency_penalty", "tools", "logit_bias"),
    *("response_format", "echo", "best_of", "suffix", "user"),
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4), st.booleans())
def test_no_body_makes_a_5xx(server: Served, fields: dict[str, Any], is_chat: bool) -> None:
    whole = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 4} | fields
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    response = server.http.post(path, content=json.dumps(whole).encode())
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "\\udc00x", "prompt": "x"}',
        b'{"model": "tiny", "prompt": "x", "max_tokens": 1e999}',
        b'{"model": "tiny", "prompt": "x", "temperature": NaN}',
        b'{"model": "tiny", "prompt": [' + b"9" * 5000 + b"]}",
        b'{"model": "tiny", "prompt": "x", "prompt": null}',
    ],
)
def test_what_is_no_request_is_400(server: Served, raw: bytes) -> None:
    response = server.http.post("/v1/completions", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_errors_of_the_web_have_the_same_shape(server: Served) -> None:
    for response, status in ((server.http.get("/nope"), 404), (server.http.get("/v1/completions"), 405)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_text_that_is_a_mark_of_the_template_is_no_error(server: Served) -> None:
    assert server.chat("<|end|><|start|>assistant: \x00").status_code == 200


def test_a_started_server_refuses_what_settings_forbid() -> None:
    with pytest.raises(ValueError, match=r"others can reach server\.host 0\.0\.0\.0"):
        settings_of(server={"host": "0.0.0.0"})
    assert settings_of(server={"host": "0.0.0.0"}, auth={"allow_anonymous": True}).server.host == "0.0.0.0"
    with pytest.raises(ValueError, match=r"multiple of cache\.block_tokens"):
        settings_of(cache={"block_tokens": 16, "chunk_tokens": 100})


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_stop_the_start(server: Served) -> None:
    with pytest.raises(ConfigError, match=rf"server\.port: {server.port} on 127\.0\.0\.1 is in use"):
        listen("127.0.0.1", server.port, group="server")
    with pytest.raises(ConfigError, match=r"server\.host: 'no\.such\.host\.invalid' is not a name or address"):
        listen("no.such.host.invalid", 0, group="server")


def test_two_servers_in_one_process_count_by_themselves() -> None:
    with scripted() as (one, _), served(lambda: scripted_model(says("x"))) as other:
        one.chat()
        assert one.metric("tiered_serve_requests_total", endpoint="chat", status="200") == 1
        assert other.metric("tiered_serve_requests_total", endpoint="chat", status="200") == 0
