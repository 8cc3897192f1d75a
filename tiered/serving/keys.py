"""Which tenant an API key stands for: a TOML file, read again when it changes, of which only hashes stay in memory.

Owns the file's form and when it is read. It knows no request; what a tenant may do is the cache's business.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tiered.errors import ConfigError
from tiered.log import get_logger
from tiered.tenancy.policy import check_tenant_name
from tiered.types import TenantId

LOOK_S: Final = 1.0
"""A change of the file is to take effect within two seconds."""

KEYS_MAX: Final = 10_000
"""Each request compares its key with all of them, which takes 2 ms for so many."""

FILE_BYTES_MAX: Final = 4 << 20
_FORM: Final = '[keys], and below it lines such as "sha256:HEX" = "tenant"'
_HASHED: Final = "sha256:"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,512}")

_log = get_logger("tiered.serving.keys")


class Keys:
    """clock: monotonic seconds. A file that is gone or spoiled later leaves the keys that it had, and is logged."""

    def __init__(self, file: Path, *, clock: Callable[[], float]) -> None:
        """Errors: ConfigError naming auth.keys_file and the fix."""
        self._file = file
        self._clock = clock
        self._mark: object = _mark_of(file)
        self._tenants = _read(file)
        self._look_at = clock() + LOOK_S

    def tenant(self, key: str) -> TenantId | None:
        """Whose key this is. Every hash is compared, in the same time for all keys that are not known."""
        self._look()
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, given):
                found = tenant
        return found

    def read_again(self) -> None:
        """Whatever the file's dates say."""
        try:
            self._tenants = _read(self._file)
        except ConfigError as error:
            _log.error("keys not read again; those known before stay", reason=str(error))
        else:
            _log.info("keys read again", keys=len(self._tenants))

    def _look(self) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        mark = _mark_of(self._file)
        if mark != self._mark:
            self._mark = mark
            self.read_again()


def _mark_of(file: Path) -> object:
    """Differs when the file was written or replaced; a mounted secret is replaced as a whole."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _read(file: Path) -> dict[bytes, TenantId]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise _wrong(f"{file} has more than {FILE_BYTES_MAX} bytes; name a file of keys")
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(f"cannot read {file}: {error.strerror}; name a TOML file that this user may read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # Not what exactly: the message would show a part of the file.
        raise _wrong(f"{file} is not valid TOML; write {_FORM}") from None
    keys = tree.get("keys")
    if set(tree) != {"keys"} or not isinstance(keys, dict) or not keys:
        raise _wrong(f"{file} must hold one table with at least one key; write {_FORM}")
    if len(keys) > KEYS_MAX:
        raise _wrong(f"{file} holds {len(keys)} keys, {KEYS_MAX} at most are taken")
    return dict(_entries(file, keys))


def _entries(file: Path, keys: Mapping[str, Any]) -> list[tuple[bytes, TenantId]]:
    """Complaints name a line by its tenant and its number, never by its key."""
    entries = []
    for number, (key, tenant) in enumerate(keys.items(), 1):
        try:
            if not isinstance(tenant, str):
                raise ValueError("a key stands for the name of a tenant, as text; quote keys that hold a dot")
            entries.append((_digest(key), TenantId(check_tenant_name(tenant))))
        except ValueError as error:
            raise _wrong(f"{file}: key {number} under [keys]: {error}") from None
    return entries


def _digest(key: str) -> bytes:
    if key.startswith(_HASHED):
        digest = key.removeprefix(_HASHED).lower()
        if not _HEX.fullmatch(digest):
            raise ValueError("after sha256: come 64 hexadecimal digits, as sha256sum prints them")
        return bytes.fromhex(digest)
    if not _KEY.fullmatch(key):
        raise ValueError("a key is 1 to 512 printable ASCII characters without spaces")
    return hashlib.sha256(key.encode()).digest()


def _wrong(message: str) -> ConfigError:
    return ConfigError(f"auth.keys_file: {message}", field="auth.keys_file")
