"""Which weights a folder holds, told without reading all of them.

A digest of names, sizes, every safetensors header and a few KiB out of every tensor: a fine-tune changes nearly all
of a tensor's bytes, so it changes these. Whoever edits single numbers of a tensor names the result himself, by
``weights_version``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

WEIGHT_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})

SAMPLE_BYTES: Final = 4096
"""Of each tensor: from its middle, since the ends of embeddings are often padding."""

SAMPLES: Final = 256
"""Of a file whose tensors cannot be told apart from outside, at even distances."""

HEADER_BYTES_MAX: Final = 100 << 20
"""What the safetensors format allows."""


def folder_digest(folder: Path, *, beside: Sequence[str] = ()) -> str:
    """32 hex digits. beside: names of files that say what the weights do, each of which may be absent.

    Errors: ValueError where there are no weights, or they cannot be read.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
        if not files:
            raise ValueError("there are none")
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.name}|{path.stat().st_size}|".encode())
            for piece in _samples(path):
                digest.update(piece)
        for name in beside:
            content = (folder / name).read_bytes() if (folder / name).exists() else b""
            digest.update(f"{name}|{len(content)}|".encode() + content)
    except (OSError, ValueError) as error:
        raise ValueError(f"the weights in {folder} cannot be told: {error}") from None
    return digest.hexdigest()[:32]


def _samples(path: Path) -> Iterator[bytes]:
    if path.suffix == ".safetensors":
        yield from _tensor_samples(path)
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        for index in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * index // (SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)


def _tensor_samples(path: Path) -> Iterator[bytes]:
    """The header, then some bytes of each tensor in it. ValueError for a file that is none of the format."""
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if n_header > HEADER_BYTES_MAX:
            raise ValueError(f"{path.name} is no safetensors file")
        header = file.read(n_header)
        yield header
        for begin, end in _spans(json.loads(header)):
            middle = (begin + end - SAMPLE_BYTES) // 2
            file.seek(8 + n_header + max(begin, middle))
            yield file.read(min(SAMPLE_BYTES, end - begin))


def _spans(header: object) -> list[tuple[int, int]]:
    if not isinstance(header, dict):
        raise ValueError("its header is no map")
    try:
        return sorted(
            (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
            for name, entry in header.items()
            if name != "__metadata__"
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its header lacks {error}") from None
