"""The hash chain against vectors that this test computes by itself, and what each extra changes."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiered.hashing.chain import Extras, MultimodalItem, chain_hashes, join_hashes, split_hashes
from tiered.hashing.scope import ModelScope, scope_id
from tiered.layout import KvLayout

ROOT = sha256(b"root").digest()
TOKEN_IDS = st.integers(0, 2**32 - 1)


def by_hand(tokens: Sequence[int], block_tokens: int, extras_of: dict[int, bytes] | None = None) -> list[bytes]:
    """The documented chain, written a second time with nothing but hashlib and struct."""
    link, hashes = ROOT, []
    for index in range(len(tokens) // block_tokens):
        block = tokens[index * block_tokens : (index + 1) * block_tokens]
        digest = sha256()
        digest.update(link)
        digest.update(struct.pack(f"<{block_tokens}I", *block))
        digest.update((extras_of or {}).get(index, b""))
        link = digest.digest()
        hashes.append(link)
    return hashes


@given(tokens=st.lists(TOKEN_IDS, max_size=40), block_tokens=st.integers(1, 17))
def test_hashes_are_the_documented_chain(tokens: list[int], block_tokens: int) -> None:
    assert chain_hashes(ROOT, tokens, block_tokens=block_tokens) == by_hand(tokens, block_tokens)


def test_a_known_vector_never_changes() -> None:
    """Hashes live in Redis across releases: a change here is a new layout version, not a refactoring."""
    hashes = chain_hashes(bytes(32), [1, 2, 3, 2**32 - 1], block_tokens=2)
    assert [h.hex() for h in hashes] == [
        sha256(bytes(32) + bytes.fromhex("0100000002000000")).hexdigest(),
        sha256(
            sha256(bytes(32) + bytes.fromhex("0100000002000000")).digest() + bytes.fromhex("03000000ffffffff")
        ).hexdigest(),
    ]


def test_extras_are_a_tagged_list_behind_the_tokens() -> None:
    item = MultimodalItem(content_hash=b"image", offset=3, length=4)
    extras = Extras(adapter="lora", salt="pepper", items=(item,))
    tagged = {
        0: [["adapter", "lora"], ["salt", "pepper"], ["item", [b"image", 3, 4]]],
        1: [["item", [b"image", -1, 4]]],
    }
    encoded = {index: msgspec.msgpack.encode(value) for index, value in tagged.items()}
    tokens = list(range(12))
    assert chain_hashes(ROOT, tokens, block_tokens=4, extras=extras) == by_hand(tokens, 4, encoded)


def first_changed(extras: Extras, *, against: Extras | None = None) -> int | None:
    """Index of the first block whose hash the extras change; all after it must change too."""
    tokens = list(range(32))
    plain = chain_hashes(ROOT, tokens, block_tokens=4, extras=against)
    other = chain_hashes(ROOT, tokens, block_tokens=4, extras=extras)
    same = [a == b for a, b in zip(plain, other, strict=True)]
    first = same.index(False) if False in same else None
    assert first is None or not any(same[first:])
    return first


def test_no_extras_and_empty_extras_are_the_same() -> None:
    assert first_changed(Extras()) is None


def test_adapter_and_salt_change_every_block_and_are_not_each_other() -> None:
    assert first_changed(Extras(adapter="a")) == 0
    assert first_changed(Extras(salt="a")) == 0
    assert first_changed(Extras(salt="a"), against=Extras(adapter="a")) == 0
    assert first_changed(Extras(adapter="ab"), against=Extras(adapter="a", salt="b")) == 0


@pytest.mark.parametrize(
    ("offset", "length", "first"),
    [(0, 1, 0), (3, 1, 0), (4, 1, 1), (3, 2, 0), (7, 2, 1), (8, 20, 2), (31, 1, 7), (31, 9, 7), (32, 4, None)],
)
def test_an_item_changes_the_blocks_from_its_first_on(offset: int, length: int, first: int | None) -> None:
    assert first_changed(Extras(items=(MultimodalItem(b"x", offset, length),))) == first


@pytest.mark.parametrize(
    "other", [MultimodalItem(b"y", 6, 3), MultimodalItem(b"x", 5, 3), MultimodalItem(b"x", 6, 2)]
)
def test_an_items_content_place_and_extent_are_part_of_the_identity(other: MultimodalItem) -> None:
    assert first_changed(Extras(items=(other,)), against=Extras(items=(MultimodalItem(b"x", 6, 3),))) == 1


def test_the_second_block_of_an_item_is_not_the_first_of_another() -> None:
    """The same tokens and content, shifted by a block: only the place in the item differs."""
    whole = Extras(items=(MultimodalItem(b"x", 0, 8),))
    rest = Extras(items=(MultimodalItem(b"x", 4, 8),))
    assert whole.of_block(1, 4) != rest.of_block(1, 4)


@pytest.mark.parametrize("index", range(8))
def test_a_token_changes_its_block_and_all_after_it(index: int) -> None:
    tokens = list(range(8))
    plain = chain_hashes(ROOT, tokens, block_tokens=2)
    tokens[index] += 1
    changed = [a != b for a, b in zip(plain, chain_hashes(ROOT, tokens, block_tokens=2), strict=True)]
    assert changed == [block >= index // 2 for block in range(4)]


def test_only_full_blocks_have_a_hash() -> None:
    assert chain_hashes(ROOT, [], block_tokens=4) == []
    assert chain_hashes(ROOT, [1, 2, 3], block_tokens=4) == []
    assert len(chain_hashes(ROOT, list(range(11)), block_tokens=4)) == 2


@pytest.mark.parametrize("bad", [-1, 2**32, 2**64, 1.0, 1.5, "1", None, b"1", np.float32(1), np.int64(-1), [1]])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_what_is_no_token_id_is_refused_wherever_it_stands(bad: object, place: int) -> None:
    tokens: list[object] = list(range(6))  # the last two are in no full block
    tokens[place] = bad
    with pytest.raises(ValueError, match="tokens"):
        chain_hashes(ROOT, tokens, block_tokens=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", ["abcdefgh", np.ones(8), torch.ones(8), array("d", [1.0] * 8), np.array([[1], [2], [3], [4]])]
)
def test_a_sequence_of_something_else_is_refused(bad: Sequence[int]) -> None:
    with pytest.raises(ValueError, match="tokens"):
        chain_hashes(ROOT, bad, block_tokens=2)


@pytest.mark.parametrize(
    "tokens",
    [
        (1, 2, 250, 0),
        array("I", [1, 2, 250, 0]),
        array("q", [1, 2, 250, 0]),
        np.array([1, 2, 250, 0], dtype=np.int64),
        np.array([1, 2, 250, 0], dtype=np.uint8),
        [np.uint32(1), np.int16(2), 250, 0],
        torch.tensor([1, 2, 250, 0]),
        [True, 2, 250, False],  # a bool is an int in Python, and worth 1 or 0
        bytes([1, 2, 250, 0]),
        bytearray([1, 2, 250, 0]),
        memoryview(bytes([1, 2, 250, 0])),
        range(250, 254),
    ],
)
def test_equal_ids_hash_alike_whatever_holds_them(tokens: Sequence[int]) -> None:
    plain = [int(token) for token in tokens]
    assert chain_hashes(ROOT, tokens, block_tokens=2) == by_hand(plain, 2)


def test_another_process_with_another_hash_seed_agrees() -> None:
    layout = KvLayout(n_layers=2, n_kv_heads=1, head_dim=8, dtype="bfloat16", block_tokens=4)
    scope = ModelScope(model="m", weights_version="w", layout=layout)
    extras = Extras(adapter="a", items=(MultimodalItem(b"i", 1, 2),))
    tokens = random.Random(7).choices(range(2**32), k=40)
    code = """
import json, sys
from tiered.hashing.chain import Extras, MultimodalItem, chain_hashes
from tiered.hashing.scope import ModelScope, scope_id
from tiered.layout import KvLayout
layout = KvLayout(n_layers=2, n_kv_heads=1, head_dim=8, dtype="bfloat16", block_tokens=4)
root = scope_id(ModelScope(model="m", weights_version="w", layout=layout), label="group:g")
extras = Extras(adapter="a", items=(MultimodalItem(b"i", 1, 2),))
print(json.dumps([h.hex() for h in chain_hashes(root, json.load(sys.stdin), block_tokens=4, extras=extras)]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(tokens),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
    )
    root = scope_id(scope, label="group:g")
    assert json.loads(ran.stdout) == [h.hex() for h in chain_hashes(root, tokens, block_tokens=4, extras=extras)]


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5))
def test_joined_hashes_come_apart_again(hashes: list[bytes]) -> None:
    assert split_hashes(join_hashes(hashes)) == hashes  # type: ignore[arg-type]


@pytest.mark.parametrize("n_bytes", [1, 31, 33, 63])
def test_a_torn_run_of_hashes_is_refused(n_bytes: int) -> None:
    with pytest.raises(ValueError, match="whole number"):
        split_hashes(bytes(n_bytes))
