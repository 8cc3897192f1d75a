"""One vLLM engine that answers prompts on demand. Not a benchmark itself.

Runs in a Python that has vLLM, and imports nothing of ours. Its argument is JSON: ``model`` and what else ``LLM``
takes. Says ``> {...}`` with its version once it is ready, then answers each line of JSON with a line: ``tokens`` and
``n`` ask for n greedy tokens after a prompt; the answer has ``ttft_s``, ``total_s``, the tokens, and how many of the
prompt's were ``cached``, by vLLM itself or by a connector.
"""

from __future__ import annotations

import itertools
import json
import sys
import time


def main() -> None:
    import vllm
    from vllm import LLM, SamplingParams, TokensPrompt

    defaults = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 4096, "max_num_seqs": 8}
    engine = LLM(**{**defaults, **json.loads(sys.argv[1])}).llm_engine
    say({"version": vllm.__version__})
    for name, line in zip(itertools.count(), sys.stdin):
        ask = json.loads(line)
        wanted = SamplingParams(max_tokens=ask["n"], temperature=0, ignore_eos=True)
        began = time.perf_counter()
        engine.add_request(str(name), TokensPrompt(prompt_token_ids=ask["tokens"]), wanted)
        first_s, last = None, None
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if outputs:
                first_s, last = first_s or time.perf_counter() - began, outputs[-1]
        total_s = time.perf_counter() - began
        answer, cached = list(last.outputs[0].token_ids), last.num_cached_tokens or 0
        say({"ttft_s": first_s, "total_s": total_s, "tokens": answer, "cached": cached})


def say(answer: dict[str, object]) -> None:
    print(">", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
