"""The command's own part: what is wrong with its settings is one sentence and exit code 2, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.cli.main import main


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "model.id: which model?"),
        (["m", "--host", "0.0.0.0"], "others can reach server.host 0.0.0.0, so callers need keys"),
        (["m", "--host", "::"], "callers need keys"),
        (["m", "--port", "70000"], "server.port"),
        (["m", "--set", "cache.nonsense=1"], "cache.nonsense: unknown setting"),
        (["m", "--set", "nonsense"], "is not KEY=VALUE"),
        (["m", "--set", "cache.chunk_tokens=100"], "multiple of cache.block_tokens (16)"),
        (["m", "--set", "limits.queue=0"], "limits.queue"),
        (["m", "--socket", "/" + "x" * 200], "cache.socket"),
        (["m", "--config", "/nowhere"], "cannot read /nowhere"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    assert main(["serve", *argv]) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("tiered serve: ")
    assert sentence.count("\n") == 1
    assert says in sentence


def test_flags_win_over_the_environment_and_that_over_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[server]\nport = 1\nhost = "::1"\n[cache]\nbytes = "1GiB"\n')
    monkeypatch.setenv("TIERED_SERVE_SERVER__HOST", "localhost")
    monkeypatch.setenv("TIERED_SERVE_SERVER__PORT", "2")
    assert main(["serve", "demo", "--config", str(file), "--port", "3", "--check-config"]) == 0
    said = capsys.readouterr().out
    assert "server.port = 3  (the command line)" in said
    assert "server.host = localhost  (environment TIERED_SERVE_SERVER__HOST)" in said
    assert f"cache.bytes = 1073741824  (file {file})" in said
    assert "limits.queue = 64  (default)" in said
