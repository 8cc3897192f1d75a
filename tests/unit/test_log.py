"""One event per line on stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

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
    structlog.reset_defaults()


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
