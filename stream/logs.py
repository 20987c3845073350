"""Logs on stderr: one JSON object per line, or text on a terminal. Repeated warnings are logged from time to time."""

import logging
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

QUIET_SECONDS, REPEAT_SECONDS = 10.0, 600.0
"""A warning is logged again after it was absent for the first time span, or continued for the second."""
_MOST_KEYS = 1_000
_KAFKA = "aiokafka"


@dataclass
class _Logged:
    """When a warning was logged, when it last occurred, and how often since it was logged."""

    logged: float
    came: float
    suppressed: int = 0


class Repeats:
    """Decides which warnings and errors are logged: each when it begins, then from time to time with a count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[Hashable, _Logged] = {}

    def __len__(self) -> int:
        """How many kinds of warning are remembered."""
        return len(self._logged)

    def suppressed(self, key: Hashable) -> int | None:
        """How often ``key`` was suppressed since it was last logged; None if it is to be suppressed now."""
        now, last = self._clock(), self._logged.get(key)
        if last is not None and now - last.came < QUIET_SECONDS and now - last.logged < REPEAT_SECONDS:
            last.came, last.suppressed = now, last.suppressed + 1
            return None
        if len(self._logged) >= _MOST_KEYS:
            self._logged.clear()
        self._logged[key] = _Logged(now, now)
        return 0 if last is None else last.suppressed


class _LibraryRepeats(logging.Filter):
    """Filters repeated messages of libraries. aiokafka's various messages about a broker that is down count as one."""

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        key = _KAFKA if record.name.partition(".")[0] == _KAFKA else (record.name, record.msg)
        count = self._repeats.suppressed(key)
        record.repeated = count
        return count is not None


def _add_repeated(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    count = getattr(event.get("_record"), "repeated", 0)
    return {**event, "repeated": count} if count else event


def _fold(repeats: Repeats) -> Processor:
    def fold(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method not in ("warning", "error"):
            return event
        # The same fault of two windows, partitions or topics counts as two faults.
        count = repeats.suppressed((event["event"], *(event.get(name) for name in ("window", "partition", "topic"))))
        if count is None:
            raise structlog.DropEvent
        return {**event, "repeated": count} if count else event

    return fold


def configure_logs() -> None:
    """Set up logging of this process, including libraries and warnings of Python."""
    repeats = Repeats()
    shared: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[_fold(repeats), *shared, *renderers],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_LibraryRepeats(repeats))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_add_repeated, structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    logging.captureWarnings(True)


def log_clients(wanted: bool) -> None:
    """Switch messages of Kafka's client on for services, or off for commands, which report errors themselves."""
    logging.getLogger(_KAFKA).setLevel(logging.NOTSET if wanted else logging.CRITICAL)
