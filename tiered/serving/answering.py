"""A request's way from its headers to its reply. Owns the order of the steps; each of them lives elsewhere."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from tiered.serving.answer import Delta, Event, Finished, Job, Usage
from tiered.serving.asking import Asking, ClientGone
from tiered.serving.bodies import ChatBody, CompletionBody, Sampled, read_body
from tiered.serving.engine import Model
from tiered.serving.errors import ApiError, bad
from tiered.serving.prompts import Room
from tiered.serving.replies import DONE, Form, sse
from tiered.serving.sampling import Sampling
from tiered.serving.services import Serving
from tiered.serving.settings import LimitSettings
from tiered.serving.streaming import EventStream


async def answer(serving: Serving, request: Request, kind: type[ChatBody] | type[CompletionBody]) -> Response:
    """Errors: ApiError; ClientGone."""
    asked_at = time.monotonic()
    tenant = serving.callers.tenant(request.headers)
    model = serving.model()
    body = read_body(kind, await _read(request, serving))
    serving.require_name(body.model)
    loop = asyncio.get_running_loop()
    prompts = await loop.run_in_executor(serving.tokenizing, _prompts, model, body, serving.settings.limits)
    serving.model()  # time has passed
    form = _form(serving.name, body)
    sampling = _sampling(body, model.defaults)
    asking = Asking(serving.engine, request.receive)
    jobs = [
        Job(
            tenant=tenant,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stops=body.stop,
            emit=asking.emit(index),
            asked_at=asked_at,
            request_id=form.request_id,
            hints=body.hints,
        )
        for index, (prompt, max_new_tokens) in enumerate(prompts)
    ]
    headers = {"X-Request-Id": form.request_id}
    try:
        asking.ask(jobs)
        if not body.stream:
            with asking:
                return JSONResponse(await _whole(asking, form, len(jobs)), headers=headers)
        events = asking.events()
        first = await anext(events)  # what fails before there is anything to show has a status of its own
    except BaseException:
        asking.close()
        raise
    chunks = _chunks(first, events, form, len(jobs))
    return EventStream(chunks, asking, send_timeout_s=serving.settings.server.send_timeout_s, headers=headers)


async def _read(request: Request, serving: Serving) -> bytes:
    """The body. Errors: ApiError 413 or 408 when it is too long, or too long in coming; ClientGone."""
    limit = serving.settings.limits.body_bytes
    timeout_s = serving.settings.server.body_timeout_s
    raw = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                raw += message.get("body", b"")
                more = message.get("more_body", False)
                if len(raw) > limit:
                    raise ApiError(413, f"a body here has {limit} bytes at most (limits.body_bytes)")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s") from None
    return bytes(raw)


def _prompts(model: Model, body: ChatBody | CompletionBody, limits: LimitSettings) -> list[tuple[list[int], int]]:
    """Each prompt's tokens, and how many its answer may have. Errors: ApiError."""
    if isinstance(body, CompletionBody):
        # More than may wait would be told to come back for ever: they are taken together.
        most, name = min((limits.prompts, "limits.prompts"), (limits.queue, "limits.queue"))
        if len(body.prompt) > most:
            raise bad("prompt", f"{len(body.prompt)} prompts are more than {most} at once ({name})")
    room = Room(model.context_tokens, limits.new_tokens)
    asked, named = body.asked_tokens
    prompt_field = "messages" if isinstance(body, ChatBody) else "prompt"
    prompts = model.tokenizer.prompts_of(body)
    return [(each, room.for_answer(len(each), asked, named, prompt_field=prompt_field)) for each in prompts]


def _form(name: str, body: Sampled) -> Form:
    is_chat = isinstance(body, ChatBody)
    return Form(
        request_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        model=name,
        created=int(time.time()),
        is_chat=is_chat,
        with_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _sampling(body: Sampled, defaults: Sampling) -> Sampling:
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
    )


async def _whole(asking: Asking, form: Form, n_answers: int) -> dict[str, Any]:
    texts = [""] * n_answers
    ends: dict[int, Finished] = {}
    async for index, event in asking.events():
        if isinstance(event, Delta | Finished):
            texts[index] += event.text
        if isinstance(event, Finished):
            ends[index] = event
            if len(ends) == n_answers:
                break
    finished = [ends[index] for index in range(n_answers)]
    return form.whole(texts, [each.reason for each in finished], [each.usage for each in finished])


async def _chunks(
    first: tuple[int, Event], events: AsyncIterator[tuple[int, Event]], form: Form, n_answers: int
) -> AsyncIterator[bytes]:
    begun: set[int] = set()
    usages: list[Usage] = []
    index, event = first
    while True:
        if form.is_chat and index not in begun:
            begun.add(index)
            yield sse(form.opening(index))
        if isinstance(event, Delta | Finished) and event.text:
            yield sse(form.piece(index, event.text))
        if isinstance(event, Finished):
            yield sse(form.closing(index, event.reason))
            usages.append(event.usage)
            if len(usages) == n_answers:
                break
        index, event = await anext(events)
    if form.with_usage:
        yield sse(form.accounts(usages))
    yield DONE
