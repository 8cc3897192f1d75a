"""Runs the real Lua scripts over the store: a Lua of the version that servers have, and what they give their scripts.

Owns the way of values between the two. Which script does what is not known here, so what is simulated is what is
deployed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lupa import lua51

from tests.sim.store import Reply, ReplyError, Store

_LIBRARY = Path(__file__).with_suffix(".lua")


class Scripts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table = self._lua.table_from
        names = self._lua.globals()
        self._table_type = type(names)
        self._unpack = names[b"unpack"]
        names[b"do_command"] = self._call
        names[b"float_bits"] = _float_bits
        names[b"bits_float"] = lambda bits: struct.unpack(">f" if len(bits) == 4 else ">d", bits)[0]
        names[b"bit"] = self._table({b"bxor": lambda a, b: int(a) ^ int(b), b"tohex": lambda n: b"%08x" % int(n)})
        self._run = self._lua.execute(_LIBRARY.read_bytes())
        self._compiled: dict[bytes, Any] = {}
        self._loaded: set[bytes] = set()

    def load(self, text: bytes) -> bytes:
        """Take a script; its digest. The first line, of flags, only a server understands."""
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if sha not in self._compiled:
            self._compiled[sha] = self._lua.compile(text.partition(b"\n")[2])
        self._loaded.add(sha)
        return sha

    def forget(self) -> None:
        """As a server that has restarted."""
        self._loaded.clear()

    def run(self, sha: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
        """Errors: ReplyError for a script that was not loaded."""
        if sha not in self._loaded:
            raise ReplyError("NOSCRIPT No matching script.")
        return self._reply(self._run(self._compiled[sha], self._table(keys), self._table(args)))

    def _reply(self, value: Any) -> Reply:
        """As a server answers with what a script returns."""
        if isinstance(value, self._table_type):
            n = len(value)
            items = self._unpack(value) if n > 1 else [value[1]] if n else ()
            return [item if type(item) is bytes else self._reply(item) for item in items]
        if isinstance(value, bool):
            return 1 if value else None
        return int(value) if isinstance(value, float) else value

    def _call(self, *words: Any) -> Any:
        reply = self._store.do([word if type(word) is bytes else _text(word) for word in words])
        if type(reply) is list:
            return self._table([False if item is None else item for item in reply])
        return False if reply is None else reply


def _text(word: int | float) -> bytes:
    return b"%d" % word if isinstance(word, int) else b"%.17g" % word


def _float_bits(number: float) -> bytes:
    short = struct.pack(">f", number)
    return b"\xca" + short if struct.unpack(">f", short)[0] == number else b"\xcb" + struct.pack(">d", number)
