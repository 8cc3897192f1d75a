"""What does each codec save, how fast is it, and what does a lossy one change?

On real KV: the demo model over the demo's conversations. An answer counts as changed against the same engine whose
prompt's KV went through nothing. Each checksum candidate is timed on a 2 MiB value beside the read of that value
from the embedded server over its Unix socket: a codec needs the checksum first.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash
from _harness import Report, median, median_ms, timed_ms
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from tiered.cli.demo.conversations import Conversation, read_conversations
from tiered.cli.model import ensure_demo_model
from tiered.client.local import LocalClient
from tiered.cluster.embedded import EmbeddedServer
from tiered.codec.codecs import CODECS, Encoded, decode, encode
from tiered.codec.floats import to_float32
from tiered.codec.frame import HEADER_BYTES, checksum_of
from tiered.config import PoolSettings, RedisSettings
from tiered.connectors.transformers import CachedGenerator, GeneratorOptions, model_scope
from tiered.layout import KvLayout
from tiered.tiers.redis.answers import PutAnswer
from tiered.tiers.redis.tier import RedisTier, ToStore, Wanted
from tiered.tiers.redis.values import Fetched, ValueClient, ValueToRead, ValueToWrite
from tiered.types import BlockHash, TenantId

TENANT = TenantId("bench")
POOL_BLOCKS = 192
"""The longest prompt has 130; all of them begin alike."""

CHUNK_TOKENS = GeneratorOptions().chunk_tokens
"""The last of a prompt are always computed."""

ANSWER_TOKENS = 16
"""As in the demo."""

EVERY = 4
"""One of so many blocks is weighed and compared."""

TIMED_BLOCKS = 48
ROUNDS = 7
MIB = 1 << 20
VALUE_BYTES = 2 * MIB
VALUES = 16

CHECKSUMS: dict[str, Callable[[memoryview], object]] = {
    "xxh3_128": xxhash.xxh3_128_digest,
    "xxh3_64": xxhash.xxh3_64_digest,
    "crc32": zlib.crc32,
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=16).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


@dataclass
class Change:
    """What one codec did to the answers."""

    answers: int = 0
    changed_answers: int = 0
    changed_tokens: int = 0
    same_first_tokens: int = 0


class Engine:
    """The demo model with a cache in this process whose blocks can be sent through a codec where they lie."""

    def __init__(self, path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        model.eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        scope = model_scope(model, name=path.name)
        self.layout = scope.layout
        pool = PoolSettings(bytes=POOL_BLOCKS * self.layout.block_bytes, free_target=0.0)
        self.client = LocalClient(scope, pool)
        # verify: a block that was changed in place has another checksum, and is to be used all the same.
        self._generator = CachedGenerator(model, self.client, GeneratorOptions(verify=False))

    def prompt(self, conversation: Conversation) -> list[int]:
        """All up to the third thing that the user says: 1,458 to 2,070 tokens."""
        encoded = self._tokenizer.apply_chat_template(
            conversation.turn(3), add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def answer(self, prompt: Sequence[int], *, n_tokens: int = ANSWER_TOKENS) -> list[int]:
        generation = self._generator.generate(prompt, tenant=TENANT, max_new_tokens=n_tokens)
        assert n_tokens == 1 or generation.missed_tokens <= CHUNK_TOKENS, "the prompt's KV was not in the pool"
        return generation.tokens

    def blocks(self) -> dict[BlockHash, memoryview]:
        """All that are in the pool."""
        return {r.block_hash: self.client.pool.host_view(block_id) for block_id, r in self.client.core.resident()}


def compare_answers(engine: Engine, prompts: Sequence[list[int]]) -> tuple[dict[str, Change], list[bytes]]:
    """Per lossy codec, what changed; and blocks of all the prompts."""
    changes = {name: Change() for name, codec in CODECS.items() if not codec.is_exact}
    seen: dict[BlockHash, bytes] = {}
    for prompt in prompts:
        engine.answer(prompt, n_tokens=1)  # what follows starts from the blocks that this stores
        right = engine.answer(prompt)
        views = engine.blocks()
        originals = {block_hash: bytes(view) for block_hash, view in views.items()}
        seen.update(originals)
        for name, change in changes.items():
            for block_hash, view in views.items():
                raw = memoryview(originals[block_hash])
                decode_into(view, encode(name, raw, engine.layout), engine.layout)
            answer = engine.answer(prompt)
            wrong = [mine != theirs for mine, theirs in zip(answer, right, strict=True)]
            change.answers += 1
            change.changed_answers += any(wrong)
            change.changed_tokens += sum(wrong)
            change.same_first_tokens += wrong.index(True) if any(wrong) else len(wrong)
        for block_hash, view in views.items():  # other prompts begin with them
            view[:] = originals[block_hash]
    return changes, list(seen.values())[::EVERY]


def decode_into(out: memoryview, encoded: Encoded, layout: KvLayout) -> None:
    if encoded.codec == "none":
        out[:] = encoded.stored
    else:
        decode(encoded.codec, encoded.stored, out, layout)


def measure_codecs(report: Report, blocks: Sequence[bytes], layout: KvLayout) -> None:
    raw_bytes = len(blocks) * layout.block_bytes
    timed = [memoryview(block) for block in blocks[:: max(1, len(blocks) // TIMED_BLOCKS)]][:TIMED_BLOCKS]
    timed_mib = len(timed) * layout.block_bytes / MIB
    out = memoryview(bytearray(layout.block_bytes))
    for name in CODECS:
        encoded = [encode(name, memoryview(block), layout) for block in blocks]
        assert {one.codec for one in encoded} == {name}
        stored_bytes = sum(one.stored.nbytes for one in encoded)
        report.add(f"{name}: ratio over {len(blocks)} blocks", raw_bytes / stored_bytes, "x")
        kept = [encode(name, block, layout) for block in timed]

        def encode_all(name: str = name) -> None:
            for block in timed:
                encode(name, block, layout)

        def decode_all(kept: list[Encoded] = kept) -> None:
            for one in kept:
                decode_into(out, one, layout)

        report.add(f"{name}: encode", timed_mib / cpu_s(encode_all), "MiB/s of one core")
        report.add(f"{name}: decode", timed_mib / cpu_s(decode_all), "MiB/s of one core")
        if CODECS[name].is_exact:
            for block, one in zip(blocks, encoded, strict=True):
                decode_into(out, one, layout)
                assert out == block
        else:
            for plane, ratio in snr_db(blocks, encoded, layout).items():
                report.add(f"{name}: signal to noise, {plane}", ratio, "dB")


def cpu_s(action: Callable[[], object]) -> float:
    """What it costs one core, whoever else uses the machine: nothing in there waits."""
    took = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        action()
        took.append(time.thread_time() - start)
    return median(took)


def snr_db(blocks: Sequence[bytes], encoded: Sequence[Encoded], layout: KvLayout) -> dict[str, float]:
    signal, noise = np.zeros(2), np.zeros(2)
    out = memoryview(bytearray(layout.block_bytes))
    for block, one in zip(blocks, encoded, strict=True):
        decode_into(out, one, layout)
        before = to_float32(memoryview(block), layout).astype(np.float64)
        after = to_float32(out, layout)
        signal += energy(before)
        noise += energy(before - after)
    return {plane: 10 * math.log10(signal[i] / noise[i]) for i, plane in enumerate(("keys", "values"))}


def energy(values: NDArray[np.float64]) -> NDArray[np.float64]:
    by_plane: NDArray[np.float64] = (values**2).sum(axis=(0, 2, 3, 4))
    return by_plane


def measure_reads(report: Report, settings: RedisSettings, blocks: Sequence[bytes], layout: KvLayout) -> None:
    """Blocks of the demo model from Redis into place, verified and decoded."""
    outs = [memoryview(bytearray(layout.block_bytes)) for _ in blocks]
    mib = len(blocks) * layout.block_bytes / MIB
    scopes = {name: bytes([index]) * 32 for index, name in enumerate(("none", *CODECS))}
    plain = 0.0
    for name, scope_id in scopes.items():
        hashes = [BlockHash(n.to_bytes(31, "little") + scope_id[:1]) for n in range(len(blocks))]
        with closing(RedisTier(settings)) as tier:
            stored = tier.put(
                [
                    ToStore(block_hash, TENANT, depth, memoryview(block), None, codec=name)
                    for depth, (block_hash, block) in enumerate(zip(hashes, blocks, strict=True))
                ],
                scope_id=scope_id,
                layout=layout,
            )
            assert set(stored) == {PutAnswer.STORED}
            wanted = [Wanted(block_hash, out) for block_hash, out in zip(hashes, outs, strict=True)]

            def read(tier: RedisTier = tier, wanted: list[Wanted] = wanted, scope_id: bytes = scope_id) -> None:
                found = tier.get(wanted, scope_id=scope_id, tenant=TENANT, layout=layout)
                assert None not in found

            speed = mib / median_ms(read, runs=ROUNDS, warmup=1) * 1e3
        plain = plain or speed
        report.add(f"read from Redis, {name}", speed, "MiB/s of KV", baseline=plain)


def measure_checksums(report: Report, settings: RedisSettings, blocks: Sequence[bytes]) -> None:
    data = b"".join(blocks)
    payload = (data * (VALUE_BYTES // len(data) + 1))[:VALUE_BYTES]
    header = bytes(HEADER_BYTES)
    outs = [memoryview(bytearray(VALUE_BYTES)) for _ in range(VALUES)]
    keys = [b"bench:%d" % n for n in range(VALUES)]
    with closing(ValueClient(settings)) as values:
        list(values.put([ValueToWrite(key, header, memoryview(payload)) for key in keys], ttl_ms=600_000))

        def read() -> None:
            wanted = [ValueToRead(key, out) for key, out in zip(keys, outs, strict=True)]
            assert all(received.fetched is Fetched.HERE for received in values.get(wanted))

        read_ms: list[float] = []
        took_ms: dict[str, list[float]] = {name: [] for name in CHECKSUMS}
        for _ in range(3 * ROUNDS):  # turn by turn: a machine that others use as well is not the same all the time
            read_ms.append(timed_ms(read) / VALUES)
            for name, checksum in CHECKSUMS.items():
                took_ms[name].append(timed_ms(lambda checksum=checksum: [checksum(out) for out in outs]) / VALUES)
    assert bytes(outs[0]) == payload
    assert xxhash.xxh3_128_digest(outs[0]) == checksum_of(outs[0])
    report.add("read of a 2 MiB value over the Unix socket", median(read_ms), "ms")
    for name, took in took_ms.items():
        report.add(f"{name}", VALUE_BYTES / (1 << 30) / (median(took) / 1e3), "GiB/s")
        report.add(f"{name} of a 2 MiB value, beside its read", median(took), "ms", baseline=median(read_ms))


def main() -> None:
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine take ten times as long
    engine = Engine(ensure_demo_model())
    prompts = [engine.prompt(conversation) for conversation in read_conversations()]
    changes, blocks = compare_answers(engine, prompts)
    engine.client.close()
    report = Report("codecs")
    measure_codecs(report, blocks, engine.layout)
    for name, change in changes.items():
        report.add(f"{name}: changed answers", change.changed_answers, f"of {change.answers}")
        report.add(f"{name}: changed tokens", change.changed_tokens, f"of {change.answers * ANSWER_TOKENS}")
        mean = change.same_first_tokens / change.answers
        report.add(f"{name}: tokens before the first change, mean", mean, f"of {ANSWER_TOKENS}")
    with (
        tempfile.TemporaryDirectory(prefix="tiered-bench-") as directory,
        EmbeddedServer.start(Path(directory), maxmemory_bytes=None) as server,
    ):
        settings = RedisSettings(url=server.url, value_timeout_s=30.0, control_timeout_s=30.0)
        measure_reads(report, settings, blocks[:64], engine.layout)
        measure_checksums(report, settings, blocks)
    report.finish()


if __name__ == "__main__":
    main()
