"""One event per line on stderr."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Literal

import pytest

from tiered.config import LogSettings
from tiered.log import configure_logging, get_logger


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Logging belongs to the whole process: leave it as it was found."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
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


def test_a_stack_shows_no_variables_and_is_plain_text_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="text"))

    def fail(hidden: str) -> None:
        raise ValueError("broken")

    try:
        fail("the-" + "password")
    except ValueError:
        get_logger("tests.h").exception("round failed")
    written = capsys.readouterr().err
    assert "ValueError: broken" in written
    assert "the-password" not in written


@pytest.mark.parametrize("format_", ["json", "text"])
@pytest.mark.parametrize(
    "said",
    [
        "cannot reach redis://me:s3cret@host:6379/0 now",
        "cannot reach redis://:s3cret@host:6379/0 now",
        "cannot reach unix://me:s3cret@/run/r.sock now",
        "Authorization: Bearer s3cret",
        "{'authorization': 'Bearer s3cret', 'x': 1}",
    ],
)
def test_what_looks_like_a_secret_is_blotted_out_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], format_: Literal["json", "text"], said: str
) -> None:
    configure_logging(LogSettings(format=format_))
    log = get_logger("tests.i")
    log.warning(said, reason=said, error=ValueError(said), several=[said])
    logging.getLogger("somelibrary").warning("%s", said)
    try:
        raise ValueError(said)
    except ValueError:
        log.exception("failed")
    written = capsys.readouterr().err
    assert "s3cret" not in written
    assert "***" in written


@pytest.mark.parametrize("said", ["http://host:80/path", "peer 10.0.0.1:7400", "a@b", "unix:///run/w.sock"])
def test_what_is_no_secret_stays(capsys: pytest.CaptureFixture[str], said: str) -> None:
    configure_logging(LogSettings(format="json"))
    get_logger("tests.j").warning("x", said=said)
    assert json.loads(capsys.readouterr().err)["said"] == said


def test_nothing_that_is_logged_can_look_like_an_event_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="text"))
    forged = "x\n2026-01-01 [error] forged\r\x1b[2J\u2028y"
    get_logger("tests.k").warning(forged, tenant=forged)
    logging.getLogger("somelibrary").warning("%s", forged)
    written = capsys.readouterr().err
    assert written.count("\n") == len(written.splitlines()) == 2
    assert "\x1b[2J" not in written


def test_what_nobody_caught_is_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="json"))

    def fail() -> None:
        raise ValueError("broken")

    thread = threading.Thread(target=fail, name="mover-1")
    thread.start()
    thread.join(10)
    try:
        fail()
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    written = capsys.readouterr().err
    events = [json.loads(line) for line in written.splitlines()]
    assert [event["event"] for event in events] == ["nobody caught this in thread mover-1", "nobody caught this"]
    assert all("ValueError: broken" in event["exception"] for event in events)


def test_a_warning_of_several_lines_is_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogSettings(format="json"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("two\nlines", stacklevel=1)
    assert len(capsys.readouterr().err.splitlines()) == 1


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
