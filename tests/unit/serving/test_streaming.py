"""A stream ends by itself when nobody takes it, and gives its answer up then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tiered.serving.asking import ClientGone
from tiered.serving.errors import stopping
from tiered.serving.streaming import EventStream


class Open:
    """In the place of an Asking: only whether it was closed."""

    closed = False

    def __enter__(self) -> Open:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.closed = True


class Client:
    """Takes messages until it has had ``takes`` of them; then it takes none, as a full socket does."""

    def __init__(self, takes: int) -> None:
        self.got: list[dict[str, Any]] = []
        self._takes = takes

    async def send(self, message: Any) -> None:
        if len(self.got) == self._takes:
            await asyncio.Event().wait()
        self.got.append(message)

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    @property
    def was_ended(self) -> bool:
        return self.got[-1].get("more_body") is False


async def events(n: int, error: Exception | None = None) -> AsyncIterator[bytes]:
    for number in range(n):
        yield b"%d" % number
    if error is not None:
        raise error


def stream(client: Client, source: AsyncIterator[bytes]) -> Open:
    asking = Open()

    async def run() -> None:
        response = EventStream(source, asking, send_timeout_s=0.05, headers={})  # type: ignore[arg-type]
        await asyncio.wait_for(response({"type": "http"}, None, client.send), 10.0)  # type: ignore[arg-type]

    asyncio.run(run())
    return asking


def test_a_stream_that_is_taken_ends_and_closes_its_asking() -> None:
    client = Client(takes=100)
    assert stream(client, events(5)).closed
    assert (client.text, client.was_ended) == (b"01234", True)
    assert b"content-length" not in dict(client.got[0]["headers"])


def test_a_client_that_takes_nothing_any_more_is_left() -> None:
    client = Client(takes=3)
    assert stream(client, events(1000)).closed
    assert (client.text, client.was_ended) == (b"01", False)


def test_a_client_that_has_gone_is_sent_no_end() -> None:
    client = Client(takes=100)
    assert stream(client, events(2, ClientGone())).closed
    assert (client.text, client.was_ended) == (b"01", False)


def test_an_error_is_an_event_and_then_the_end() -> None:
    client = Client(takes=100)
    assert stream(client, events(1, stopping())).closed
    assert client.text.startswith(b'0data: {"error":{"message":"the server is stopping')
    assert client.was_ended
