"""The server over a real model, small and random, loaded as users' models are, with a cache in its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.pins import overwrite_pinned
from tests.support.served import NAME, Served, served, settings_of
from tests.support.tiny_llm import byte_tokenizer, save_tiny_llm
from tiered.client.local import LocalClient
from tiered.connectors.transformers import CachedGenerator, Generation, Steering
from tiered.errors import ConfigError
from tiered.serving.engine import Model
from tiered.serving.loading import load_model
from tiered.types import Source

CACHE = {"bytes": "4MiB", "block_tokens": 8, "chunk_tokens": 32}
LONG = "The same beginning of every prompt, again and again. " * 4
"""212 bytes, so as many tokens."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llm(tmp_path_factory.mktemp("llm"))


def serving(folder: Path, **groups: dict[str, Any]) -> Any:
    settings = settings_of(**{"cache": CACHE, **groups})
    return served(lambda: load_model(settings, source=str(folder), name=NAME), **{"cache": CACHE, **groups})


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def uncached(folder: Path) -> Iterator[Served]:
    with serving(folder, cache={"bytes": 0, "chunk_tokens": 32}) as running:
        yield running


@dataclass(slots=True)
class LosingPins:
    """A generator whose pins, where an answer has any, end when so many of its tokens have been told."""

    inner: CachedGenerator
    client: LocalClient
    after: int
    n_lost: int = 0

    def generate(self, prompt: Sequence[int], *, steering: Steering, **asked: Any) -> Generation:
        n_told = 0

        def on_token(token: int, hit_tokens: Mapping[Source, int]) -> bool:
            nonlocal n_told
            n_told += 1
            if n_told == self.after and self.client.core.leases:
                overwrite_pinned(self.client)
                self.n_lost += 1
            return steering.on_token(token, hit_tokens)

        return self.inner.generate(prompt, steering=replace(steering, on_token=on_token), **asked)


def cached(body: dict[str, Any]) -> int:
    details = body["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_by_tier"].values())
    return int(details["cached_tokens"])


def text(body: dict[str, Any]) -> str:
    (choice,) = body["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_a_prompt_asked_again_comes_from_the_cache_with_the_same_text(server: Served, uncached: Served) -> None:
    asked = {"prompt": LONG, "max_tokens": 40, "temperature": 0}
    first, again = server.complete(**asked).json(), server.complete(**asked).json()
    without = uncached.complete(**asked).json()
    assert text(first) == text(again) == text(without) != ""
    assert (cached(first), cached(again), cached(without)) == (0, 192, 0)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"] == {"hot": 192, "peer": 0, "redis": 0}
    assert server.http.get("/health").json()["cache"] == {"kind": "local", "attached": True, "node": ""}


def test_a_seed_gives_the_same_text_with_and_without_a_cache(server: Served, uncached: Served) -> None:
    asked = {"prompt": LONG + "seeded", "max_tokens": 30, "temperature": 1.0, "top_p": 0.9}
    texts = [text(each.complete(seed=5, **asked).json()) for each in (server, server, uncached)]
    assert len(set(texts)) == 1
    assert text(server.complete(seed=6, **asked).json()) != texts[0]


@pytest.mark.parametrize("reuse", ["exact", "block"])
def test_a_chats_next_turn_finds_the_answer_too(folder: Path, reuse: str) -> None:
    with serving(folder, cache=CACHE | {"reuse": reuse}) as server:
        prompt = list(range(1, 101))
        logged: list[Any] = []
        generator = server.server.engine.model.generator
        inner = generator.generate
        generator.generate = lambda *a, **kw: logged.append(inner(*a, **kw)) or logged[-1]
        assert cached(server.complete(prompt, max_tokens=100, temperature=0).json()) == 0
        assert cached(server.complete([1] * 40, max_tokens=1).json()) == 0  # by now the answer has been kept
        history = prompt + logged[0].tokens[:-1]
        found = cached(server.complete([*history, 7, 8, 9], max_tokens=1).json())
        grain = 32 if reuse == "exact" else 8
        assert found == len(history) // grain * grain > 100


def test_answers_are_not_kept_where_that_is_not_wanted(folder: Path) -> None:
    with serving(folder, cache=CACHE | {"keep_answers": False, "reuse": "block"}) as server:
        prompt = list(range(1, 65))
        server.complete(prompt, max_tokens=40, temperature=0)
        assert cached(server.complete([*prompt, 5], max_tokens=1).json()) == 64


def test_a_stream_of_noise_is_the_text_of_the_whole_answer(server: Served) -> None:
    for seed in range(5):
        asked = {"prompt": "noise", "max_tokens": 60, "seed": seed, "temperature": 2.0}
        whole = server.complete(**asked).json()
        lines = server.complete(stream=True, **asked).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text(whole)
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_read_in_place_says_everything_once_when_pins_end_in_its_middle(
    folder: Path, uncached: Served, temperature: float
) -> None:
    """The seed's next number is for the next token, not for one that was streamed before."""
    settings = settings_of(cache=CACHE | {"reuse": "block", "keep_answers": False})

    def load() -> Model:
        model = load_model(settings, source=str(folder), name=NAME)
        own = model.generator
        assert isinstance(own, CachedGenerator)
        assert isinstance(own._client, LocalClient)
        paged = CachedGenerator(own._model, own._client, replace(own._options, storage="paged"))
        return replace(model, generator=LosingPins(paged, own._client, after=5))

    asked = {"prompt": LONG, "max_tokens": 30, "temperature": temperature, "seed": 3}
    with served(load, cache=CACHE | {"keep_answers": False}) as server:
        first = server.complete(**asked).json()
        lines = server.complete(stream=True, **asked).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text(first) != ""
        assert text(first) == text(uncached.complete(**asked).json())
        generator = server.server.engine.model.generator  # type: ignore[union-attr]
        assert generator.n_lost == 1  # type: ignore[attr-defined]
        assert server.metric("tiered_serve_completion_tokens_total") == 2 * first["usage"]["completion_tokens"]


def test_openais_own_client_is_served(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30.0) as client:
        messages: Any = [{"role": "user", "content": LONG}]
        asked: Any = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 12}
        whole = client.chat.completions.create(**asked)
        *pieces, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content
        assert last.usage is not None
        assert last.usage.prompt_tokens_details is not None
        assert (last.usage.prompt_tokens_details.cached_tokens or 0) > 0
        assert [model.id for model in client.models.list()] == [NAME]
        with pytest.raises(openai.NotFoundError, match="only 'tiny'"):
            client.chat.completions.create(**asked | {"model": "gpt"})
        with pytest.raises(openai.BadRequestError, match="one answer a request"):
            client.chat.completions.create(**asked, n=2)


def test_models_that_differ_in_their_weights_share_nothing(folder: Path, tmp_path: Path) -> None:
    settings = settings_of(cache=CACHE)
    scopes = []
    for each in (folder, save_tiny_llm(tmp_path / "other", seed=1)):
        model = load_model(settings, source=str(each), name=NAME)
        scopes.append(model.generator._client.scope)  # type: ignore[attr-defined]
        model.close()
    assert scopes[0].weights_version != scopes[1].weights_version
    assert {scope.model for scope in scopes} == {NAME}


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"cache": {"bytes": 100}}, "cache.bytes: 100 hold no block of this model"),
        ({"model": {"device": "cuda:99"}}, "model.device: there is no cuda:99"),
        ({"model": {"chat_template": "/nowhere"}}, "model.chat_template: cannot read /nowhere"),
    ],
)
def test_settings_that_do_not_fit_the_model_stop_the_start(
    folder: Path, groups: dict[str, dict[str, Any]], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model(settings_of(**groups), source=str(folder), name=NAME)
    assert says in str(caught.value)


@pytest.mark.parametrize("spoiled", ["nothing", "config", "weights"])
def test_a_folder_that_is_no_model_stops_the_start_in_one_sentence(tmp_path: Path, spoiled: str) -> None:
    source = tmp_path / "m"
    if spoiled == "nothing":
        source.mkdir()
    else:
        save_tiny_llm(source)
        file = source / ("config.json" if spoiled == "config" else "model.safetensors")
        file.write_text('{"model_type": "unheard-of"}' if spoiled == "config" else "")
    with pytest.raises(ConfigError, match="holds no model that transformers can load") as caught:
        load_model(settings_of(), source=str(source), name=NAME)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_in_the_hugging_face_cache_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"hf download no-such/model"):
        load_model(settings_of(), source="no-such/model", name=NAME)


def test_a_model_whose_kv_cannot_be_kept_is_served_without_a_cache_alone(tmp_path: Path) -> None:
    save_tiny_llm(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="no prefix fits another"):
        load_model(settings_of(), source=str(tmp_path), name=NAME)
    load_model(settings_of(cache={"bytes": 0}), source=str(tmp_path), name=NAME).close()


def test_a_models_own_sampling_is_the_default(tmp_path: Path) -> None:
    save_tiny_llm(tmp_path)
    own = {"do_sample": True, "temperature": 0.3, "top_p": 0.8, "eos_token_id": [256, 257]}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    model = load_model(settings_of(), source=str(tmp_path), name=NAME)
    model.close()
    assert (model.defaults.temperature, model.defaults.top_p) == (0.3, 0.8)
    assert model.stop_tokens == {256, 257}


def test_the_context_may_be_made_shorter_and_never_longer(folder: Path) -> None:
    for limit, context in ((0, 512), (100, 100), (10_000, 512)):
        model = load_model(settings_of(limits={"context_tokens": limit}), source=str(folder), name=NAME)
        model.close()
        assert model.context_tokens == context


def test_the_support_model_is_what_it_says(folder: Path) -> None:
    config = LlamaForCausalLM.from_pretrained(folder).config
    assert isinstance(config, LlamaConfig)
    assert byte_tokenizer()("h\u00e9")["input_ids"] == [*"h\u00e9".encode()]
