"""``python -m tiered.cli.demo.engine``: one inference process: a model, and a cache client or none.

Reads requests as lines on stdin and answers on the stdout it was started with; whatever libraries print goes to
stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from tiered.cli.demo.messages import REQUESTS, Answer, Encode, Encoded, Generate, Ready, Refused, Reply, to_line
from tiered.client.remote import RemoteClient
from tiered.client.saving import block_checksum
from tiered.connectors.transformers import CachedGenerator, GeneratorOptions, model_scope
from tiered.connectors.transformers.kv import blocks_from_cache
from tiered.errors import TieredError
from tiered.layout import KvLayout
from tiered.pool.pool import BlockPool
from tiered.types import BlockId, TenantId


def main() -> None:
    replies = _own_stdout()
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model: Any = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    model.eval()
    scope = model_scope(model, name=Path(arguments.model).name)
    options = GeneratorOptions(chunk_tokens=arguments.chunk_tokens)
    client = None
    if arguments.socket:
        try:
            client = RemoteClient.attach(arguments.socket, options.scope(scope), engine=f"demo-{os.getpid()}")
        except TieredError as error:
            _say(replies, Refused(str(error)))
            sys.exit(2)
    generator = CachedGenerator(model, client, options)
    _warm_up(model, options)
    _say(replies, Ready(scope.model, scope.layout.describe(), scope.layout.block_bytes))
    for line in sys.stdin.buffer:
        request = REQUESTS.decode(line)
        reply: Reply
        if isinstance(request, Encode):
            reply = Encoded(_encode(tokenizer, request))
        else:
            reply = _answer(generator, tokenizer, scope.layout, options.chunk_tokens, request)
        _say(replies, reply)
    if client is not None:
        client.close()


def _answer(
    generator: CachedGenerator, tokenizer: Any, layout: KvLayout, chunk_tokens: int, request: Generate
) -> Answer:
    try:
        generation = generator.generate(
            request.prompt,
            tenant=TenantId(request.tenant),
            max_new_tokens=request.max_new_tokens,
            stop_tokens=frozenset({tokenizer.eos_token_id}),
        )
    except ValueError as error:
        raise SystemExit(str(error)) from error
    assert generation.cache is not None  # copied storage, so the request's own
    n_blocks = len(request.prompt) // chunk_tokens * chunk_tokens // layout.block_tokens
    return Answer(
        tokens=generation.tokens,
        text=tokenizer.decode(generation.tokens, skip_special_tokens=True),
        hits={str(source): n for source, n in generation.hit_tokens.items()},
        ttft_s=generation.ttft_s,
        logits_digest=generation.logits_digest,
        kv_digests=_kv_digests(generation.cache, layout, n_blocks),
        saved_blocks=generation.saved.n_stored,
        save_reason=generation.saved.reason,
    )


def _kv_digests(cache: DynamicCache, layout: KvLayout, n_blocks: int) -> list[str]:
    """What the prompt's KV would be stored as, block by block: equal digests mean equal bits."""
    if not n_blocks:
        return []
    scratch = BlockPool(layout, n_blocks)
    block_ids = [BlockId(index) for index in range(n_blocks)]
    blocks_from_cache(cache, scratch, block_ids, 0)
    digests = [(block_checksum(scratch, block_id) or b"").hex() for block_id in block_ids]
    scratch.close()
    return digests


def _encode(tokenizer: Any, request: Encode) -> list[int]:
    encoded = tokenizer.apply_chat_template(request.messages, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def _warm_up(model: Any, options: GeneratorOptions) -> None:
    """First use of a kernel costs more than any later one; no measured request should pay for it."""
    uncached = CachedGenerator(model, None, options)
    uncached.generate([1] * (2 * options.chunk_tokens + 1), tenant=TenantId("warm-up"), max_new_tokens=2)


def _own_stdout() -> BinaryIO:
    """The pipe to the demo; anything else that writes to stdout reaches stderr instead."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return replies


def _say(replies: BinaryIO, reply: Reply) -> None:
    replies.write(to_line(reply))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tiered-demo-engine")
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--socket", default="", help="the worker's socket; without it there is no cache")
    parser.add_argument("--threads", type=int, required=True, help="of torch; the same for engines to be compared")
    parser.add_argument("--chunk-tokens", type=int, default=128)
    return parser.parse_args()


if __name__ == "__main__":
    main()
