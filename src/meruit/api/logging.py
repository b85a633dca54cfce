"""Structured logs: one JSON object per line on stderr, with known fields only, so that no payload is logged."""

import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, TextIO

import orjson

from meruit.errors import OutboundFailed, OutboundRefused, StoreUnavailable

Level = Literal["debug", "info", "warning", "error"]

FIELDS = frozenset(
    {
        "agent_id", "agent_run_id", "attempt", "benchmark_run_id", "bytes_in", "contract_id", "count", "criteria_id",
        "error", "event_id", "event_type", "host", "key_id", "method", "ms", "outcome_id", "port", "reason",
        "request_id", "role", "route", "status", "subject", "task_run_id", "tenant", "url_host", "version",
        "webhook_id", "work_id", "worker",
    }
)  # fmt: skip
"""The fields of log lines. A field that could hold what a client sent must not be added."""
MAX_TEXT = 500
"""Most characters of one field."""
MAX_FRAMES = 5
"""Most stack frames that an error names, the innermost last."""

_LEVELS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
# Messages of these describe other systems or this process; other messages may quote what a client sent.
_SAFE_TO_QUOTE = (OSError, RuntimeError, OutboundFailed, OutboundRefused, StoreUnavailable)
_logger = logging.getLogger("meruit")
_SERVER = "uvicorn"


def log(event: str, *, level: Level = "info", **fields: Any) -> None:
    """Write one line; raises TypeError for a field that is not in FIELDS."""
    log_each(event, [fields], level=level)


def log_each(event: str, several: Sequence[Mapping[str, Any]], *, level: Level = "info") -> None:
    """Write several lines at once; raises TypeError for a field that is not in FIELDS."""
    for fields in several:
        if not fields.keys() <= FIELDS:
            unknown = ", ".join(sorted(fields.keys() - FIELDS))
            raise TypeError(f"log lines have no field {unknown}; add it to FIELDS only if it can never hold a payload")
    number = _LEVELS[level]
    if _logger.isEnabledFor(number):
        # Finding the caller of this function would double the cost of a line.
        record = logging.LogRecord(_logger.name, number, "", 0, event, None, None)
        record.several = several
        _logger.handle(record)


def describe(error: BaseException) -> str:
    """An exception's class, with its message where that cannot quote a payload."""
    name = type(error).__name__
    return f"{name}: {error}"[:MAX_TEXT] if isinstance(error, _SAFE_TO_QUOTE) else name


class JsonFormatter(logging.Formatter):
    """A record as lines of JSON; of other libraries' records only the server's keep their message."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines, the last without its end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head: dict[str, Any] = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower()}
        several: Sequence[Mapping[str, Any]] | None = getattr(record, "several", None)
        if several is None:
            return _to_json_line(head | _library_line(record))
        head["event"] = record.msg
        return "\n".join(_to_json_line(_to_log_fields(head, fields)) for fields in several)


def _to_log_fields(head: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    line = {**head, **fields}
    for name, value in fields.items():
        kind = type(value)
        if (kind is str and len(value) <= MAX_TEXT) or kind is int or kind is float or value is None:
            continue
        line[name] = _to_log_value(value)
    if "error" in fields:
        _add_frames(line, fields["error"])
    return line


def _to_json_line(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line).decode()
    except TypeError:
        # Half a surrogate pair or a long integer, which orjson does not write.
        return json.dumps(line)


def configure_logs(level: Level = "info", stream: TextIO | None = None) -> logging.Handler:
    """Write every log line to stderr as JSON: ours, the server's, and the warnings of other libraries."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    for earlier in [old for old in root.handlers if isinstance(old.formatter, JsonFormatter)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    _logger.setLevel(_LEVELS[level])
    server = logging.getLogger(_SERVER)
    server.setLevel(_LEVELS[level])
    server.handlers.clear()
    server.propagate = True
    return handler


def _library_line(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {"event": "server" if record.name.startswith(_SERVER) else "library", "logger": record.name}
    if record.name.startswith(_SERVER):
        # The end of a traceback holds the error.
        line["message"] = record.getMessage().strip()[-MAX_TEXT:]
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        line["error"] = describe(error)
        _add_frames(line, error)
    return line


def _to_log_value(value: Any) -> Any:
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    # A list or an object could hold a payload.
    return value if value is None or isinstance(value, int | float) else type(value).__name__


def _add_frames(line: dict[str, Any], error: Any) -> None:
    """Add where an error was raised; stack frames quote no payload."""
    if isinstance(error, BaseException) and error.__traceback__ is not None:
        frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        line["at"] = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
