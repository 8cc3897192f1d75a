"""From settings to a model that is ready: weights, tokeniser, cache, and what its configuration says of answers.

Owns what transformers is asked for, and the sentence for each way in which that fails. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from tiered.client.local import LocalClient
from tiered.client.port import CacheClient
from tiered.client.remote import RemoteClient
from tiered.config import PoolSettings
from tiered.connectors.transformers import CachedGenerator, GeneratorOptions, Reuse, model_scope
from tiered.errors import ConfigError
from tiered.log import get_logger
from tiered.serving.engine import CacheState, Model
from tiered.serving.prompts import Tokenizer
from tiered.serving.sampling import Sampling
from tiered.serving.settings import CacheSettings, ModelSettings, Settings
from tiered.types import TenantId

_log = get_logger("tiered.serving")


def load_model(settings: Settings, *, source: str, name: str) -> Model:
    """source: a folder, or a name in the Hugging Face cache. Errors: ConfigError naming the setting and the fix."""
    _require_device(settings.model.device)
    if settings.model.threads:
        torch.set_num_threads(settings.model.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one prompt at a time is tokenised
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    template = _template_in(settings.model.chat_template)
    inner, model = _pretrained(settings.model, source)
    options = GeneratorOptions(
        chunk_tokens=settings.cache.chunk_tokens,
        reuse=Reuse(settings.cache.reuse),
        load_deadline_s=settings.cache.load_deadline_s,
    )
    client, state = _cache(settings.cache, model, options, name=name)
    try:
        generator = CachedGenerator(model, client, options)
        context_tokens = _context(model, settings.limits.context_tokens)
        _warm_up(model, options, context_tokens)
    except BaseException:
        _close(client)
        raise
    return Model(
        generator=generator,
        tokenizer=Tokenizer(
            inner,
            n_vocab=model.get_input_embeddings().num_embeddings,
            chars_max=context_tokens * max(len(token) for token in inner.get_vocab()),
            template=template,
        ),
        stop_tokens=_stop_tokens(model, inner),
        context_tokens=context_tokens,
        defaults=_defaults(model),
        cache=state,
        close=lambda: _close(client),
    )


def _pretrained(settings: ModelSettings, source: str) -> tuple[Any, Any]:
    wanted: dict[str, Any] = {"local_files_only": True}
    if settings.revision:
        wanted["revision"] = settings.revision
    dtype = settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **wanted)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **wanted)
    except Exception as error:  # of its own libraries' kinds, too; what is wrong is the model
        _log.debug("the model was not loaded", exc_info=True)
        if Path(source).is_dir():
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"model.id: {source} holds no model that transformers can load ({why}); name a folder with config, "
                "weights and tokeniser of a causal language model",
                field="model.id",
            ) from error
        raise ConfigError(
            f"model.id: {source!r} is no folder, and no whole model of that name is in the Hugging Face cache; "
            f"download it first (hf download {source}), name a folder, or write demo",
            field="model.id",
        ) from error
    return tokenizer, model.to(settings.device).eval()


def _require_device(device: str) -> None:
    kind, _, index = device.partition(":")
    if kind == "cuda" and int(index or 0) >= (n_devices := torch.cuda.device_count()):
        raise ConfigError(
            f"model.device: there is no {device}, torch sees {n_devices} CUDA devices; choose one of them, or cpu",
            field="model.device",
        )


def _template_in(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"model.chat_template: cannot read {file} ({why}); name a Jinja file", field="model.chat_template"
        ) from None


def _cache(
    settings: CacheSettings, model: Any, options: GeneratorOptions, *, name: str
) -> tuple[CacheClient | None, Callable[[], CacheState]]:
    """The client, and how to ask for its state. Errors: ConfigError for a model whose KV cannot be kept."""
    if settings.socket is None and not settings.bytes:
        return None, lambda: CacheState("none", attached=False)
    scope = options.scope(model_scope(model, name=name, block_tokens=settings.block_tokens))
    if settings.socket is not None:
        engine = f"tiered-serve-{os.getpid()}"
        if settings.socket.is_dir():
            remote = RemoteClient.attach_in_folder(settings.socket, scope, engine=engine)
        else:
            remote = RemoteClient.attach_later(str(settings.socket), scope, engine=engine)
        return remote, lambda: CacheState("worker", attached=remote.attached, node=remote.node)
    if settings.bytes < scope.layout.block_bytes:
        raise ConfigError(
            f"cache.bytes: {settings.bytes} hold no block of this model, which has {scope.layout.block_bytes}; give "
            "room for some hundred of them, or 0 for no cache",
            field="cache.bytes",
        )
    pool = PoolSettings(bytes=settings.bytes, device=str(model.device))
    return LocalClient(scope, pool), lambda: CacheState("local", attached=True)


def _close(client: CacheClient | None) -> None:
    if client is not None:
        client.close()


def _context(model: Any, limit: int) -> int:
    own = int(model.config.get_text_config().max_position_embeddings)
    return min(own, limit) if limit else own


def _stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    named = model.generation_config.eos_token_id
    ids = named if isinstance(named, list) else [named]
    return frozenset(int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None)


def _defaults(model: Any) -> Sampling:
    """The model's own where it has any; else OpenAI's."""
    own = model.generation_config
    if not own.do_sample:
        return Sampling()
    return Sampling(
        temperature=1.0 if own.temperature is None else float(own.temperature),
        top_p=1.0 if own.top_p is None else float(own.top_p),
    )


def _warm_up(model: Any, options: GeneratorOptions, context_tokens: int) -> None:
    """First use of a kernel costs more than any later one; no request should pay for it."""
    n_tokens = min(2 * options.chunk_tokens + 1, context_tokens - 2)
    if n_tokens > 0:
        uncached = CachedGenerator(model, None, options)
        uncached.generate([0] * n_tokens, tenant=TenantId("warm-up"), max_new_tokens=2)
