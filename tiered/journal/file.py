"""The journal's file: SQLite in WAL mode, one table of blocks, a few words about what they speak of.

Owns the format, what makes a file ours, and what becomes of one that is not: it is set aside under another name, a
few at most, and never read. Knows nothing of threads: its caller gives it one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tiered.errors import ConfigError
from tiered.journal.rows import JournalRow, decode_row, encode_row
from tiered.log import get_logger
from tiered.types import BlockHash

APPLICATION_ID: Final = 0x544B564A
"""``TKVJ`` in the file's header: told from every other program's SQLite file."""

FORMAT_VERSION: Final = 1
ASIDES_MAX: Final = 3
"""Files set aside that are kept; the oldest makes room."""

ABSENT_ROWS_MAX: Final = 16_384
"""Blocks without bytes here that are remembered, for warming up from Redis: 512 MiB of them at 32 KiB each."""

_PRUNE_EVERY: Final = 4_096
_SYNCHRONOUS: Final[Mapping[str, str]] = {"batched": "NORMAL", "strict": "FULL"}
_NOT_OURS: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""What SQLite says of bytes that are no database, of torn pages, and of tables that are not there."""

_SIDE_FILES: Final = ("-wal", "-shm")

_SCHEMA: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE block (
        hash BLOB PRIMARY KEY, parent BLOB NOT NULL, scope BLOB NOT NULL, tenants TEXT NOT NULL,
        depth INTEGER NOT NULL, hits INTEGER NOT NULL, touched INTEGER NOT NULL,
        slot INTEGER, checksum BLOB, seal BLOB
    ) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
_STORE: Final = """
INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hash) DO UPDATE SET
    parent = excluded.parent, scope = excluded.scope, tenants = excluded.tenants, depth = excluded.depth,
    hits = max(hits, excluded.hits), touched = excluded.touched, slot = excluded.slot,
    checksum = excluded.checksum, seal = excluded.seal
"""
_REMOVE: Final = "UPDATE block SET slot = NULL, checksum = NULL, seal = NULL WHERE hash = ?"
_HIT: Final = "UPDATE block SET hits = hits + ?, touched = ? WHERE hash = ?"
_PRUNE: Final = """
DELETE FROM block WHERE hash IN (
    SELECT hash FROM block WHERE slot IS NULL ORDER BY touched DESC, depth LIMIT -1 OFFSET ?
)
"""

_log = get_logger("tiered.journal")


class ForeignJournal(Exception):
    """Not a journal that this release can read; the text says why."""


@dataclass(frozen=True, slots=True)
class About:
    """What the rows speak of.

    pool:   name of the file in RAM that holds the bytes, empty when there is none.
    layout: of its blocks, as one line; empty until a first pool was made.
    """

    node: str
    layout: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to blocks since the last time; no hash is both stored and removed."""

    stored: Sequence[JournalRow] = ()
    removed: Sequence[BlockHash] = ()
    hits: Mapping[BlockHash, int] | None = None

    def __len__(self) -> int:
        return len(self.stored) + len(self.removed) + len(self.hits or ())


class JournalFile:
    """Open on construction, in place of what cannot be read there.

    Errors: ConfigError when there can be no journal at this path.
    """

    def __init__(self, path: Path, *, mode: Literal["batched", "strict"], node: str) -> None:
        self._path = path
        self._mode = mode
        self._node = node
        self._unpruned = self._touched = 0
        try:
            self._db = self._open()
        except ForeignJournal as reason:
            self.set_aside(str(reason))

    def about(self) -> About:
        found = {str(name): str(value) for name, value in self._db.execute("SELECT name, value FROM about")}
        return About(node=found.get("node", ""), layout=found.get("layout", ""), pool=found.get("pool", ""))

    def rows(self) -> list[JournalRow]:
        """All that can be read; a file that turns out to be torn is set aside, and there is nothing."""
        pool = self.about().pool
        try:
            found = [decode_row(values, pool=pool) for values in self._db.execute("SELECT * FROM block")]
        except sqlite3.DatabaseError as error:
            self.set_aside(f"torn: {error}")
            return []
        rows = [row for row in found if row is not None]
        if len(rows) < len(found):
            _log.warning("journal rows make no sense and are left out", n_rows=len(found) - len(rows))
        return rows

    def begin(self, about: About, rows: Iterable[JournalRow]) -> None:
        """A new pool: these rows lie in it, all others' bytes are gone. Errors: sqlite3.Error."""
        self._touched += 1
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._say(about)
            self._db.execute("UPDATE block SET slot = NULL, checksum = NULL, seal = NULL WHERE slot IS NOT NULL")
            self._db.executemany(_STORE, [encode_row(row, pool=about.pool) for row in rows])
            self._prune()

    def apply(self, changes: Sequence[Changes], *, pool: str) -> None:
        """One transaction, durable as the mode says. Errors: sqlite3.Error; nothing is changed then."""
        self._touched += 1
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for each in changes:
                if each.removed:
                    self._db.executemany(_REMOVE, [(block_hash,) for block_hash in each.removed])
                if each.stored:
                    self._db.executemany(_STORE, [self._fresh(row, pool) for row in each.stored])
                if each.hits:
                    now = self._touched
                    self._db.executemany(_HIT, [(n, now, block_hash) for block_hash, n in each.hits.items()])
            self._unpruned += sum(len(each.removed) for each in changes)
            self._unpruned += sum(row.slot is None for each in changes for row in each.stored)
            if self._unpruned >= _PRUNE_EVERY:
                self._prune()

    def forget_pool(self) -> None:
        """The bytes go with an orderly stop; what is known of the blocks stays. Errors: sqlite3.Error."""
        self.begin(About(self._node, self.about().layout), [])

    def remove_if_empty(self) -> None:
        """Leave nothing where there was nothing to remember. Errors: sqlite3.Error, OSError."""
        [n_rows] = self._db.execute("SELECT count(*) FROM block").fetchone()
        if n_rows == 0:
            self.close()
            for suffix in ("", *_SIDE_FILES):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def set_aside(self, reason: str) -> None:
        """Go on with an empty file; keep this one under another name, for whoever wants to know."""
        self.close()
        aside = _free_name(self._path)
        try:
            for suffix in ("", *_SIDE_FILES):
                source, target = Path(f"{self._path}{suffix}"), Path(f"{aside}{suffix}")
                target.unlink(missing_ok=True)
                if source.exists():
                    source.rename(target)
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from None
        _log.warning("journal set aside; starting without one", journal=str(self._path), aside=str(aside), why=reason)
        try:
            self._db = self._open()
        except ForeignJournal as again:
            raise _unusable(self._path, str(again)) from None

    def close(self) -> None:
        """Harmless when done before."""
        db = getattr(self, "_db", None)
        if db is not None:
            db.close()

    # Inside.

    def _open(self) -> sqlite3.Connection:
        _make_private(self._path)
        try:
            # isolation_level None: transactions begin and end where the code says so.
            db = sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise _unusable(self._path, str(error)) from None
        try:
            self._prepare(db)
        except sqlite3.OperationalError as error:
            db.close()
            if error.sqlite_errorcode & 0xFF in _NOT_OURS:
                raise ForeignJournal(f"torn: {error}") from None
            raise _unusable(self._path, str(error)) from None
        except sqlite3.DatabaseError as error:
            db.close()
            raise ForeignJournal(f"torn: {error}") from None
        except ForeignJournal:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one process by the claim: no shared-memory file is needed
        [is_empty] = db.execute("SELECT count(*) = 0 FROM sqlite_schema").fetchone()
        if not is_empty:
            _check_ours(db)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._mode]}")
        if is_empty:
            with db:
                db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO about VALUES ('node', ?)", (self._node,))
            return
        [verdict] = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise ForeignJournal(f"torn: {verdict}")
        [node] = db.execute("SELECT value FROM about WHERE name = 'node'").fetchone() or ("",)
        if node != self._node:
            raise ForeignJournal(f"it belongs to node {node}, this is {self._node}")
        [last] = db.execute("SELECT max(touched) FROM block").fetchone()
        self._touched = last if isinstance(last, int) else 0

    def _fresh(self, row: JournalRow, pool: str) -> tuple[object, ...]:
        encoded = encode_row(row, pool=pool)
        return (*encoded[:6], self._touched, *encoded[7:])

    def _say(self, about: About) -> None:
        said = (("node", about.node), ("layout", about.layout), ("pool", about.pool))
        self._db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", said)

    def _prune(self) -> None:
        self._db.execute(_PRUNE, (ABSENT_ROWS_MAX,))
        self._unpruned = 0


def _check_ours(db: sqlite3.Connection) -> None:
    [application_id] = db.execute("PRAGMA application_id").fetchone()
    [version] = db.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise ForeignJournal("it is a database of another program")
    if version != FORMAT_VERSION:
        raise ForeignJournal(f"it is of version {version}, this release reads {FORMAT_VERSION}")


def _make_private(path: Path) -> None:
    """The file exists afterwards, and nobody else may read it. Errors: ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    about = os.fstat(descriptor)
    os.close(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise _unusable(path, "it is not a file of this user")


def _free_name(path: Path) -> Path:
    names = [path.with_name(f"{path.name}.aside-{n}") for n in range(1, ASIDES_MAX + 1)]
    for name in names:
        if not name.exists():
            return name
    return min(names, key=lambda name: name.stat().st_mtime_ns)


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"journal.path: cannot keep a journal at {path}: {reason}; choose a path in a directory of yours that exists "
        "and may be written, or set journal.mode to off",
        field="journal.path",
    )
