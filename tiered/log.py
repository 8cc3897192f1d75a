"""One event per line on stderr, readable on a terminal and JSON elsewhere.

Owns how a service's own events and those of its libraries are written. It knows nothing of what the events
mean, and stdout stays free for what a command prints. In a process that never calls :func:`configure_logging`, such
as an engine's, events are ordinary records of the standard library's logging: warnings on stderr until that process
says otherwise.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
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

# Libraries that report each connection or request at INFO: one level quieter than our own events.
_CHATTY: Final = (
    "asyncio",
    "engineio",
    "httpcore",
    "httpx",
    "multipart",
    "socketio",
    "uvicorn",
    "websockets",
)


def configure_logging(settings: LogSettings) -> None:
    """Send our events and the standard library's records through one handler; call once, at start-up."""
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
    return (sentence,), {"exc_info": exc_info}


def _renderers(settings: LogSettings) -> list[Processor]:
    as_text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    if as_text:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
