"""A load for the engines of docker-compose.yml: conversations of two tenants, each request with one turn more.

A conversation's turns go to the engines in turn, so that its beginning is found in the hot tier of a node, at a peer
or in Redis. Prints a line a request, and sums every minute. Runs until it is stopped.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from tiered.cli.demo.conversations import Conversation, Message, deal, read_conversations

MODEL: Final = "smollm2-135m-instruct"
TURNS_MAX: Final = 4
"""Of a conversation: later ones are longer than a small machine computes quickly."""

ANSWER_TOKENS: Final = 16
ANSWER_S: Final = 120.0
REPORT_S: Final = 60.0
RETRY_S: Final = 2.0


class Load:
    def __init__(self, engines: str, keys: Path, *, pause_s: float) -> None:
        self._host, _, self._port = engines.partition(":")
        self._keys = keys
        self._pause_s = pause_s
        self._sums: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self) -> None:
        dealt = deal(read_conversations())
        for seed in itertools.count(1):
            threads = [
                threading.Thread(target=self._play, args=(tenant, conversations, seed))
                for tenant, conversations in dealt.items()
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def report(self) -> None:
        while True:
            time.sleep(REPORT_S)
            with self._lock:
                print(f"load: in all {dict(self._sums)}", flush=True)

    def _play(self, tenant: str, conversations: list[Conversation], seed: int) -> None:
        key = (self._keys / tenant).read_text(encoding="utf-8").strip()
        turns = (turn for conversation in conversations for turn in _turns(conversation))
        for number, messages in enumerate(turns, seed):
            engines = self._engines()
            if not engines:
                print(f"load: no address for {self._host}", flush=True)
                time.sleep(RETRY_S)
                continue
            self._ask(engines[number % len(engines)], tenant, key, messages)
            time.sleep(self._pause_s)

    def _engines(self) -> list[str]:
        """Asked for again each time: engines come and go."""
        try:
            found = socket.getaddrinfo(self._host, int(self._port), socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return []
        return sorted({f"http://{address[0]!s}:{self._port}" for *_, address in found})

    def _ask(self, engine: str, tenant: str, key: str, messages: list[Message]) -> None:
        body = {"model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        headers = {"Authorization": f"Bearer {key}"}
        began = time.monotonic()
        try:
            answer = httpx.post(f"{engine}/v1/chat/completions", json=body, headers=headers, timeout=ANSWER_S)
            answer.raise_for_status()
            usage = answer.json()["usage"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            print(f"load: {tenant} at {engine}: {type(error).__name__}: {error}", flush=True)
            with self._lock:
                self._sums["failed"] += 1
            time.sleep(RETRY_S)
            return
        tiers = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
        took_ms = (time.monotonic() - began) * 1e3
        print(f"load: {tenant} at {engine}: {usage['prompt_tokens']} tokens, {tiers}, {took_ms:.0f} ms", flush=True)
        with self._lock:
            self._sums.update(requests=1, prompt_tokens=usage["prompt_tokens"], **tiers)


def _turns(conversation: Conversation) -> Iterator[list[Message]]:
    for number in range(1, TURNS_MAX + 1):
        try:
            yield conversation.turn(number)
        except ValueError:  # it has fewer
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="load")
    parser.add_argument("--engines", required=True, help="HOST:PORT; every address of that name is asked")
    parser.add_argument("--keys", type=Path, required=True, help="folder with a file for each tenant")
    parser.add_argument("--pause", type=float, default=0.5, metavar="S", help="of a tenant between two requests")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing here is worth waiting for
    load = Load(arguments.engines, arguments.keys, pause_s=arguments.pause)
    threading.Thread(target=load.report, daemon=True).start()
    load.run()


if __name__ == "__main__":
    main()
