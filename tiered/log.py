"""One event per line on stderr, readable on a terminal and JSON elsewhere.

Owns how a service's own events and those of its libraries are written. It knows nothing of what the events
mean, and stdout stays free for what a command prints.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog
from structlog.typing import Processor

from tiered.config import LogSettings

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

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
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[settings.level])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(_LEVELS[settings.level], logging.WARNING))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events carry this name; usable before and after :func:`configure_logging`."""
    return structlog.stdlib.get_logger(name)


def _renderers(settings: LogSettings) -> list[Processor]:
    as_text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    if as_text:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
