"""One event per line on stderr, readable on a terminal and JSON elsewhere.

Owns how a service's own events and those of its libraries are written. It knows nothing of what the events
mean, and stdout stays free for what a command prints. In a process that never calls :func:`configure_logging`, such
as an engine's, events are ordinary records of the standard library's logging: warnings on stderr until that process
says otherwise.

Nobody is to read secrets or prompts here: stacks are written without their variables, and what looks like the
password of a URL or a bearer token is blotted out, whoever put it into a message. On a terminal only a stack takes
several lines; nothing that is logged can look like an event of its own.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final

import structlog
from structlog.typing import Processor, ProcessorReturnValue, WrappedLogger

from tiered.config import LogSettings

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_ABOUT_THE_EVENT: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.PositionalArgumentsFormatter(),
)
_ABOUT_THE_RECORD: Final[tuple[Processor, ...]] = (
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)

_SECRET: Final = re.compile(r"(?<=://)[^/\s@]*:[^\s@]*(?=@)|(?<=[Bb]earer )[^\s'\",]+")
_BLOT: Final = "***"

_CONTROL: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""Escapes for what would begin a new line, or speak to the terminal."""

_UNCAUGHT: Final = "tiered.uncaught"

# Libraries that report each connection or request at INFO: one level quieter than our own events.
_CHATTY: Final = (
    "asyncio",
    "engineio",
    "httpcore",
    "httpx",
    "multipart",
    "python_multipart",
    "socketio",
    "uvicorn",
    "websockets",
)


def configure_logging(settings: LogSettings) -> None:
    """Send our events, the standard library's records and what nobody caught through one handler; call once, at
    start-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_ABOUT_THE_EVENT, *_ABOUT_THE_RECORD],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[settings.level])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(_LEVELS[settings.level], logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events carry this name; usable before and after :func:`configure_logging`."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, *_ABOUT_THE_EVENT, _hand_over],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger


def _hand_over(logger: WrappedLogger, method: str, event: MutableMapping[str, Any]) -> ProcessorReturnValue:
    """The last step before the standard library: a whole event for our formatter, a plain sentence for others."""
    if any(isinstance(each.formatter, structlog.stdlib.ProcessorFormatter) for each in logging.getLogger().handlers):
        for processor in _ABOUT_THE_RECORD:
            processor(logger, method, event)
        return structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, method, event)
    exc_info = event.pop("exc_info", None)
    sentence = " ".join([str(event.pop("event", "")), *(f"{key}={value}" for key, value in event.items())])
    return (_one_line(_blotted(sentence)),), {"exc_info": exc_info}


def _renderers(settings: LogSettings) -> list[Processor]:
    as_text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    if as_text:
        # Its own choice, where rich is installed, would show the variables of every frame.
        plain = structlog.dev.plain_traceback
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
        return [structlog.processors.format_exc_info, _without_secrets, _in_one_line, console]
    return [structlog.processors.format_exc_info, _without_secrets, structlog.processors.JSONRenderer()]


def _without_secrets(logger: WrappedLogger, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _blotted(value)
        elif value is not None and not isinstance(value, bool | int | float):
            text = str(value)
            if (blotted := _blotted(text)) != text:
                event[key] = blotted
    return event


def _in_one_line(logger: WrappedLogger, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key != "exception" and not isinstance(value, bool | int | float):
            event[key] = _one_line(str(value))
    return event


def _blotted(text: str) -> str:
    return _SECRET.sub(_BLOT, text)


def _one_line(text: str) -> str:
    return text.translate(_CONTROL)


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.getLogger(_UNCAUGHT).critical("nobody caught this", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        name = "?" if failed.thread is None else failed.thread.name
        stack = (failed.exc_type, failed.exc_value, failed.exc_traceback)
        logging.getLogger(_UNCAUGHT).critical("nobody caught this in thread %s", name, exc_info=stack)
