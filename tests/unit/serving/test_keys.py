"""API keys: whose they are, that a change takes effect, and that no complaint shows one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tiered.errors import ConfigError
from tiered.serving.keys import LOOK_S, Keys


class Now:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def keys_in(folder: Path, text: str) -> tuple[Path, Keys, Now]:
    file, now = folder / "keys.toml", Now()
    file.write_text(text)
    return file, Keys(file, clock=now), now


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def test_a_key_stands_for_its_tenant_whether_it_is_written_plain_or_hashed(tmp_path: Path) -> None:
    upper = "sha256:" + hashed("sk-two").removeprefix("sha256:").upper()
    _, keys, _ = keys_in(tmp_path, f'[keys]\n"sk-one" = "acme"\n"{upper}" = "globex"\n')
    assert [keys.tenant(key) for key in ("sk-one", "sk-two")] == ["acme", "globex"]
    for unknown in ("", "sk-on", "sk-one ", hashed("sk-two"), "\u00e9", "x" * 100_000):
        assert keys.tenant(unknown) is None


def test_a_changed_file_is_read_again_and_a_removed_key_is_not_known_any_more(tmp_path: Path) -> None:
    file, keys, now = keys_in(tmp_path, '[keys]\n"a" = "acme"\n')
    file.write_text('[keys]\n"bb" = "globex"\n')
    now.s += LOOK_S
    assert (keys.tenant("a"), keys.tenant("bb")) == (None, "globex")


def test_a_file_that_was_replaced_by_another_is_read_again(tmp_path: Path) -> None:
    file, keys, now = keys_in(tmp_path, '[keys]\n"a" = "acme"\n')
    other = tmp_path / "other"
    other.write_text('[keys]\n"b" = "acme"\n')
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    os.replace(other, file)
    now.s += LOOK_S
    assert (keys.tenant("a"), keys.tenant("b")) == (None, "acme")


@pytest.mark.parametrize("spoiled", ["[keys", "", None])
def test_a_spoiled_or_missing_file_leaves_the_keys_that_were_known(tmp_path: Path, spoiled: str | None) -> None:
    file, keys, now = keys_in(tmp_path, '[keys]\n"a" = "acme"\n')
    file.unlink() if spoiled is None else file.write_text(spoiled)
    now.s += LOOK_S
    assert keys.tenant("a") == "acme"
    file.write_text('[keys]\n"again" = "acme"\n')
    now.s += LOOK_S
    assert (keys.tenant("a"), keys.tenant("again")) == (None, "acme")


def test_it_is_read_at_once_when_somebody_says_so(tmp_path: Path) -> None:
    file, keys, _ = keys_in(tmp_path, '[keys]\n"a" = "acme"\n')
    file.write_text('[keys]\n"b" = "acme"\n')
    keys.read_again()
    assert keys.tenant("b") == "acme"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not valid TOML"),
        ("", "one table"),
        ("[keys]\n", "at least one key"),
        ('[keys]\n"a" = "t"\n[more]\n', "one table"),
        ('keys = ["a"]', "one table"),
        ('[keys]\n"SECRET" = 7\n', "key 1 under [keys]"),
        ('[keys]\nSEC.RET = "t"\n', "quote keys that hold a dot"),
        ('[keys]\n"good" = "t"\n"SECRET" = "a/b"\n', "key 2 under [keys]: a tenant name is"),
        ('[keys]\n"sha256:SECRET" = "t"\n', "64 hexadecimal digits"),
        ('[keys]\n"SECRET key" = "t"\n', "without spaces"),
        ('[keys]\n"" = "t"\n', "1 to 512"),
        ("\ufeff\0", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start_in_one_sentence_without_showing_a_key(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=r"auth\.keys_file") as caught:
        keys_in(tmp_path, text)
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        Keys(tmp_path / "none", clock=Now())
