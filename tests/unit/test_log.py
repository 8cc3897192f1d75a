"""One event per line on stderr."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tiered.config import LogSettings
from tiered.log import configure_logging, get_logger


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Logging belongs to the whole process: leave it as it was found."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_events_are_json_where_nobody_reads_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    get_logger("tests.a").info("node retired", node="n1", epoch=3)
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["node"], event["epoch"]) == ("node retired", "n1", 3)
    assert (event["level"], event["logger"]) == ("info", "tests.a")
    assert event["timestamp"].endswith("Z")


def test_events_are_text_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="text"))
    get_logger("tests.b").warning("view is stale", reason="refused")
    line = capsys.readouterr().err
    assert "view is stale" in line
    assert "reason=refused" in line


def test_a_librarys_records_come_out_in_the_same_shape(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings())
    logging.getLogger("somelibrary").warning("slow %s", "disk")
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["logger"], event["level"]) == ("slow disk", "somelibrary", "warning")


def test_events_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(level="error"))
    get_logger("tests.c").warning("quiet")
    logging.getLogger("somelibrary").warning("quiet too")
    assert capsys.readouterr().err == ""


def test_an_exception_is_one_line_of_json_with_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="json"))
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("tests.d").exception("round failed")
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert "ValueError: broken" in json.loads(written)["exception"]


def unconfigured(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, as an engine that knows nothing of our logging."""
    lines = ["import logging", "from tiered.log import get_logger", code]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=30, check=True
    )


def test_an_engines_process_that_configured_nothing_sees_warnings_on_stderr_and_nothing_on_stdout() -> None:
    done = unconfigured(
        "log = get_logger('tests.e'); log.info('quiet'); log.warning('worker lost', socket='/s 100%')"
    )
    assert (done.stdout, done.stderr) == ("", "worker lost socket=/s 100%\n")


def test_an_engines_own_logging_gets_our_events_as_plain_records() -> None:
    done = unconfigured(
        "logging.basicConfig(level='INFO', format='%(name)s|%(levelname)s|%(message)s')\n"
        "get_logger('tests.f').info('attached again', socket='/s')"
    )
    assert (done.stdout, done.stderr) == ("", "tests.f|INFO|attached again socket=/s\n")


def test_an_exception_keeps_its_stack_where_nothing_was_configured() -> None:
    done = unconfigured("try: 1 / 0\nexcept ZeroDivisionError: get_logger('tests.g').exception('fetch failed', n=1)")
    assert done.stdout == ""
    assert done.stderr.startswith("fetch failed n=1\nTraceback")
