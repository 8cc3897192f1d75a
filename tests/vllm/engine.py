"""A real vLLM engine: its core and its worker in processes of their own, stepped from the test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.worker_process import until

BLOCK = 32
ANSWER = 12
PATIENCE_S = 10.0
"""For lookups: the machine may be busy, and what is tested here is not when they are given up."""


@dataclass
class Answer:
    """cached: prompt tokens that were not computed."""

    tokens: list[int]
    cached: int


@dataclass
class Engine:
    engine: Any
    witness: Path
    _n: int = 0
    _answers: dict[str, Answer] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def ask(self, prompt: Sequence[int], *, n_answer: int = ANSWER, tenant: str = "", salt: str | None = None) -> str:
        """Hand a request in; its name."""
        from vllm import SamplingParams

        self._n += 1
        name = f"r{self._n}"
        extra = {"kv_transfer_params": {"tenant": tenant}} if tenant else None
        params = SamplingParams(max_tokens=n_answer, temperature=0.0, ignore_eos=True, extra_args=extra)
        wanted: dict[str, Any] = {"prompt_token_ids": list(prompt)}
        if salt is not None:
            wanted["cache_salt"] = salt
        self.engine.add_request(name, wanted, params)
        self._open.add(name)
        return name

    def abort(self, name: str) -> None:
        self.engine.abort_request([name])
        self._open.discard(name)

    def answers(self) -> dict[str, Answer]:
        """Of all that was asked and not aborted, by name; the test's timeout bounds the wait."""
        while self._open:
            for output in self.engine.step():
                if output.finished:
                    name = output.request_id
                    self._answers[name] = Answer(list(output.outputs[0].token_ids), output.num_cached_tokens or 0)
                    self._open.discard(name)
        answers, self._answers = self._answers, {}
        return answers

    def answer(self, prompt: Sequence[int], **how: Any) -> Answer:
        name = self.ask(prompt, **how)
        return self.answers()[name]

    def forget(self) -> None:
        """Empty vLLM's own prefix cache, which it refuses while blocks are in use."""
        until(lambda: self.engine.reset_prefix_cache(), "vLLM's own cache is empty", within_s=30)

    # What the witness says.

    def copied(self, direction: str) -> list[str]:
        """A digest of every block copied so far, in order."""
        return [digest for _, digest in self._copies(direction)]

    def copied_by_rank(self, direction: str) -> dict[str, list[str]]:
        """The same by the rank that copied it, under a name that says no more than that it is one."""
        by_rank: dict[str, list[str]] = {}
        for process, digest in self._copies(direction):
            by_rank.setdefault(process, []).append(digest)
        return by_rank

    def _copies(self, direction: str) -> list[tuple[str, str]]:
        path = self.witness / "copied"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(process, digest) for process, told, _, digest in map(str.split, lines) if told == direction]

    @contextmanager
    def held(self, direction: str) -> Iterator[None]:
        """No copy of that direction begins until the end of the ``with``."""
        gate = self.witness / f"hold-{direction}"
        (self.witness / f"held-{direction}").unlink(missing_ok=True)
        gate.touch()
        try:
            yield
        finally:
            gate.unlink()

    def wait_held(self, direction: str) -> None:
        held = self.witness / f"held-{direction}"
        try:
            until(held.exists, f"a copy {direction} is held up", within_s=30)
        except AssertionError as error:
            error.add_note(f"the connector's counters: {self.counters()}")
            raise

    def counters(self) -> dict[str, float]:
        """What the connector counted, by the names under which vLLM exports it."""
        found = {one.name: getattr(one, "value", 0) for one in self.engine.get_metrics()}
        return {name: value for name, value in found.items() if name.startswith("vllm:tiered_") and value}


@contextmanager
def engine(
    model: Path,
    witness: Path,
    *,
    socket: str = "",
    n_blocks: int = 1_000,
    connector: str = "RecordingConnector",
    settings: Mapping[str, Any] | None = None,
    ranks: int = 1,
) -> Iterator[Engine]:
    """socket: the worker's; '': vLLM alone. ranks: of tensor parallelism, one thread each."""
    witness.mkdir(exist_ok=True)
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # With a connector vLLM leaves one core more alone, and takes all where there are not as many: kernels on
        # another number of threads round differently.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TIERED_TEST_WITNESS": str(witness),
    }
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    transfer: dict[str, Any] = {}
    if socket:
        transfer["kv_transfer_config"] = {
            "kv_connector": connector,
            "kv_connector_module_path": "tests.vllm.recording",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "socket": socket,
                "lookup_timeout_s": PATIENCE_S,
                "attach_timeout_s": 60.0,
                **(settings or {}),
            },
        }
    args = EngineArgs(
        model=str(model),
        skip_tokenizer_init=not (model / "tokenizer.json").exists(),
        tensor_parallel_size=ranks,
        max_model_len=2_200,
        max_num_seqs=8,
        block_size=BLOCK,
        num_gpu_blocks_override=n_blocks,
        enforce_eager=True,
        dtype="bfloat16",
        disable_log_stats=False,
        **transfer,
    )
    # vLLM would bind each rank to a NUMA node of its own, and refuses where there are not as many.
    unbound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"} if ranks > 1 else {}
    with patch.dict(os.environ, unbound):
        made = LLMEngine.from_engine_args(args)
    started = Engine(made, witness)
    try:
        yield started
    finally:
        made.engine_core.shutdown(timeout=30.0)
        _remove_left_by_ranks(witness)


def _remove_left_by_ranks(witness: Path) -> None:
    """Ranks that do not end in time are killed by vLLM, and leave what they met in."""
    told = witness / "group"
    if told.exists():
        group = told.read_text()
        for folder in (Path(tempfile.gettempdir()), Path("/dev/shm")):
            for left in folder.glob(f"{group}*"):
                left.unlink()
