"""Turns a GGUF file into a plain bfloat16 checkpoint: ``python -m tiered.cli.dequantize FILE OUT``.

A process of its own, so that the memory it needs is given back when it ends and what the libraries print
stays out of the command's output. It refuses to know where the file came from and who will read the
checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path


def dequantize(gguf: Path, out: Path) -> None:
    """Write config, safetensors and tokenizer of the model in gguf into the folder out.

    Cost: about a minute and 2 GB of memory for 135 M parameters on two cores.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The loader leaves some tensors in float32; every engine should see one dtype.
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    dequantize(Path(sys.argv[1]), Path(sys.argv[2]))
