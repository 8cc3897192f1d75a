"""The next release, made from this tree: what a minor version may change is changed, by the rules of docs/formats.md.

Every message and every record of the shared state has a field more, there is a message more, block values and the
journal are of the next version. A release of the next major version, which may not take part, differs in that alone.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tiered

THIS_TREE = Path(tiered.__file__).parents[1]
PACKAGES = ("tiered", "coordinator", "worker")

LATER_VERSION = "0.9.9"

_MINOR = {
    "tiered/__init__.py": (('version("tiered-kv")', f'"{LATER_VERSION}"'),),
    "tiered/tenancy/policy.py": (("    copies: Copies = 1\n", "    copies: Copies = 1\n    later: int = 0\n"),),
    "tiered/wire/messages.py": (
        ("WIRE_MINOR: Final = 0", "WIRE_MINOR: Final = 1"),
        (
            "PeerRequest: TypeAlias = ",
            "class Whisper(Message, frozen=True):\n    text: str\n\n\nPeerRequest: TypeAlias = ",
        ),
        ("Proof | Fetch | Explain | Recent", "Proof | Fetch | Explain | Recent | Whisper"),
        (
            "Challenge | Welcome | Holding | Failure | Explained",
            "Challenge | Welcome | Holding | Failure | Explained | Whisper",
        ),
    ),
    # The new message goes to who knows it: whoever does not would end the connection.
    "tiered/wire/handshake.py": (
        ("WIRE_MINOR, Challenge", "WIRE_MINOR, Whisper, Challenge"),
        (
            "    except BaseException:\n",
            "        if connection.minor >= 1:\n"
            '            assert isinstance(connection.call(Whisper("psst"), timeout_s=5.0), Whisper)\n'
            "    except BaseException:\n",
        ),
    ),
    "worker/peer_server.py": (
        ("    WIRE_MINOR,\n", "    WIRE_MINOR,\n    Whisper,\n"),
        (
            "        if not isinstance(request, Fetch):\n",
            "        if isinstance(request, Whisper):\n"
            '            _log.info("whispered to")\n'
            "            connection.send(request, timeout_s=self._timeout_s)\n"
            "            return\n"
            "        if not isinstance(request, Fetch):\n",
        ),
        # Who has not said that it reads the later value is sent the earlier one.
        ("[encode_header(header), ", "[encode_header(header, 2 if connection.minor >= 1 else 1), "),
    ),
    "tiered/codec/frame.py": (
        ("FORMAT_VERSION: Final = 1", "FORMAT_VERSION: Final = 2"),
        ("(header: BlockHeader) -> bytes:", "(header: BlockHeader, version: int = FORMAT_VERSION) -> bytes:"),
        ("_PREFIX.pack(MAGIC, FORMAT_VERSION, ", "_PREFIX.pack(MAGIC, version, "),
    ),
    "tiered/cluster/lua/record.lua": (
        (
            "    local packed = cmsgpack.pack(record)\n",
            "    record[8] = 'later'\n    local packed = cmsgpack.pack(record)\n",
        ),
    ),
    "tiered/journal/file.py": (("FORMAT_VERSION: Final = 1", "FORMAT_VERSION: Final = 2"),),
}
_MAJOR = {"tiered/wire/messages.py": (("WIRE_VERSION: Final = 1", "WIRE_VERSION: Final = 2"),)}

_COUNTED = frozenset({"TokenCounts"})
"""Its fields are numbers; those of all others may be anything."""


def later_release(directory: Path) -> Path:
    """A tree of the next minor version."""
    tree = _copy(directory, _MINOR)
    for name in ("tiered/wire/messages.py", "tiered/types.py"):
        _append_fields(tree / name)
    return tree


def next_major_release(directory: Path) -> Path:
    return _copy(directory, _MAJOR)


class Spawned:
    """``python argv`` in another tree; what tests use of the interface of multiprocessing's processes."""

    def __init__(self, tree: Path, argv: Sequence[str], environ: Mapping[str, str], *, out: Path, err: Path) -> None:
        with out.open("ab") as stdout, err.open("ab") as stderr:
            self._process = popen_in(tree, argv, environ, stdout=stdout, stderr=stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def join(self, timeout: float | None = None) -> None:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return


def popen_in(
    tree: Path, argv: Sequence[str], environ: Mapping[str, str] = os.environ, **streams: object
) -> subprocess.Popen[bytes]:
    """``python argv`` with the packages of that tree, and the tests of this one."""
    path = f"{tree}{os.pathsep}{THIS_TREE}"
    return subprocess.Popen([sys.executable, *argv], cwd=tree, env={**environ, "PYTHONPATH": path}, **streams)  # type: ignore[call-overload,no-any-return]


def _copy(directory: Path, changes: Mapping[str, Sequence[tuple[str, str]]]) -> Path:
    for package in PACKAGES:
        shutil.copytree(THIS_TREE / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, pairs in changes.items():
        text = (directory / name).read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times, not once"
            text = text.replace(old, new)
        (directory / name).write_text(text)
    return directory


def _append_fields(path: Path) -> None:
    """A field at the end of every message or record of a module, with a default, as a later release may have it."""
    lines = path.read_text().splitlines()
    for node in reversed(ast.parse("\n".join(lines)).body):
        if isinstance(node, ast.ClassDef) and node.name != "Message" and _is_record(node):
            assert node.end_lineno is not None
            field = "later: int = 1" if node.name in _COUNTED else 'later: str = "later"'
            lines.insert(_end_of_fields(node), f"    {field}")
    path.write_text("\n".join(lines) + "\n")


def _is_record(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) in ("Message", "msgspec.Struct") for base in node.bases)


def _end_of_fields(node: ast.ClassDef) -> int:
    """The line after the last field, or after the first statement where there is none."""
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    last = (fields or node.body)[-1]
    assert last.end_lineno is not None
    return last.end_lineno
