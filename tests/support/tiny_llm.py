"""A causal LM of random weights with a tokeniser of single bytes, as a folder that transformers loads.

What it says is noise, and mostly no valid UTF-8; it says the same each time.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_TOKENS = 512
EOS = 256
LONGEST_TOKEN = len("<|start|>")
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('a role of its own') }}{% endif %}<|start|>{{ m['role'] }}: {{ m['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def byte_tokenizer(*, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Token n is byte n; then come the end of an answer and the marks of the chat template."""
    letters = ByteLevel.alphabet()
    by_byte = dict(zip(range(256), _byte_letters(), strict=True))
    assert set(by_byte.values()) == set(letters)
    inner = Tokenizer(BPE(vocab={letter: byte for byte, letter in by_byte.items()}, merges=[]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = ByteLevelDecoder()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|end|>",
        additional_special_tokens=["<|start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    assert tokenizer.eos_token_id == EOS
    return tokenizer


def save_tiny_llm(folder: Path, *, seed: int = 0) -> Path:
    """Write model and tokeniser there."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: itself if it can be seen, else a later one."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]
