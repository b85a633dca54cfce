"""Reads a document field by field and collects its problems; fields that are not read are ignored."""

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from meruit.documents.document import Document, sort_and_limit_problems
from meruit.documents.tree import Path, format_path
from meruit.documents.validation_messages import describe_value
from meruit.errors import DocumentError, Problem
from meruit.model.decoding import convert_to

R = TypeVar("R", bound=msgspec.Struct)

MAX_LABEL = 200
"""Characters of a name."""
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""The range of valid times; a time outside of it is a mistake or has another unit."""

_TIME = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})[Tt ](?P<time>\d{2}:\d{2}(:\d{2}([.,](?P<fraction>\d+))?)?)"
    r" ?(?P<zone>[Zz]|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
MAX_FRACTION = 6
"""Digits of a fraction of a second; more would be cut off silently."""
_PLACE = re.compile(r"\.(\w+)|\[(\d+)\]")


class DocumentReader:
    """Reads values by their path and collects problems. An absent value and null are the same."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._problems: list[Problem] = []

    def add_problem(self, path: Path, message: str) -> None:
        """Record a problem at a path."""
        self._problems.append(Problem(where=format_path(path), message=message, line=self.document.line_of(path)))

    @property
    def problem_count(self) -> int:
        """The number of problems so far."""
        return len(self._problems)

    def raise_if_invalid(self) -> None:
        """Raise DocumentError if there is any problem."""
        if self._problems:
            raise DocumentError(self.document.name, sort_and_limit_problems(self._problems))

    # Any: a file's value may be of any type.
    def value_at(self, path: Path, *, needed: bool = False) -> Any:
        """The value at a path, or None; an absent one is a problem if it is needed."""
        value = self.document.value
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            else:
                value = value[step] if isinstance(value, list) and isinstance(step, int) else None
        if value is None and needed:
            self.add_problem(path[:-1], f"needs {path[-1]!r}")
        return value

    def is_mapping(self, path: Path, *, needed: bool = False) -> bool:
        """Whether the value is a mapping; any other value is a problem."""
        value = self.value_at(path, needed=needed)
        if not isinstance(value, dict) and (value is not None or not path):
            self.add_problem(path, f"expected a mapping, got {describe_value(value)}")
        return isinstance(value, dict)

    def items(self, path: Path, *, needed: bool = False) -> list[Path]:
        """The paths of the mappings in the list at a path."""
        value = self.value_at(path, needed=needed)
        if value is None:
            return []
        if not isinstance(value, list):
            self.add_problem(path, f"expected a list, got {describe_value(value)}")
            return []
        return [(*path, number) for number in range(len(value)) if self._is_item((*path, number))]

    def _is_item(self, path: Path) -> bool:
        value = self.value_at(path)
        if not isinstance(value, dict):
            self.add_problem(path, f"expected a mapping, got {describe_value(value)}")
        return isinstance(value, dict)

    def text(self, path: Path, *, needed: bool = False) -> str | None:
        """A short printable text; a number is read as text."""
        value = self.value_at(path, needed=needed)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.add_problem(path, f"expected text, got {describe_value(value)}")
        elif not (value.strip() and value.isprintable() and len(value) <= MAX_LABEL):
            self.add_problem(path, f"expected 1 to {MAX_LABEL} printable characters, got {describe_value(value)}")
        else:
            return value
        return None

    def flag(self, path: Path) -> bool | None:
        """True or false."""
        value = self.value_at(path)
        if value is None or isinstance(value, bool):
            return value
        self.add_problem(path, f"expected true or false, got {describe_value(value)}")
        return None

    def count(self, path: Path, most: int, *, needed: bool = False) -> int | None:
        """A whole number from 0 to `most`."""
        value = self.value_at(path, needed=needed)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.add_problem(path, f"expected a whole number, got {describe_value(value)}")
        elif not 0 <= value <= most:
            self.add_problem(path, f"expected a number from 0 to {most:,}, got {describe_value(value)}")
        else:
            return value
        return None

    def moment(self, path: Path, *, needed: bool = False) -> datetime | None:
        """A time with its zone, or in seconds since 1970."""
        value = self.value_at(path, needed=needed)
        if value is None:
            return None
        try:
            return read_moment(value)
        except ValueError as fault:
            self.add_problem(path, str(fault))
            return None

    def record(self, path: Path, kind: type[R]) -> R | None:
        """The record at a path."""
        value = self.value_at(path)
        return None if value is None else self.convert(value, path, kind)

    def convert(self, value: Any, path: Path, kind: type[R]) -> R | None:
        """Convert a value to a record; a value that does not fit is a problem."""
        try:
            return convert_to(value, kind)
        except msgspec.ValidationError as fault:
            message, _, where = str(fault).partition(" - at `$")
            inside = [int(number) if number else name for name, number in _PLACE.findall(where)]
            self.add_problem((*path, *inside), message[:1].lower() + message[1:])
            return None


def read_moment(value: Any) -> datetime:
    """Parse a time with its zone, or seconds since 1970; raises ValueError that says what to write instead."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not EARLIEST.timestamp() <= value < LATEST.timestamp():
            raise ValueError(f"expected seconds since 1970, between 2000 and 2200, got {describe_value(value)}")
        _check_fraction(value, str(value).partition(".")[2])
        return datetime.fromtimestamp(value, UTC)
    if not isinstance(value, str):
        raise ValueError(f"expected a time such as 2025-10-15T09:15:00Z, got {describe_value(value)}")  # noqa: TRY004 - a fault of the file
    written = _TIME.fullmatch(value.strip())
    if written is None:
        raise ValueError(f"expected a time such as 2025-10-15T09:15:00Z, got {describe_value(value)}")
    if written["zone"] is None:
        bare = f"{written['date']}T{written['time']}"
        raise ValueError(f"{value.strip()} has no time zone; write {bare}Z if it is UTC, else its offset: {bare}+02:00")
    _check_fraction(value.strip(), written["fraction"] or "")
    try:
        at = datetime.fromisoformat(f"{written['date']}T{written['time'].replace(',', '.')}{written['zone'].upper()}")
        at = at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{value.strip()} is not a valid time") from None
    if not EARLIEST <= at < LATEST:
        raise ValueError(f"expected a time between 2000 and 2200, got {value.strip()}")
    return at


def _check_fraction(value: object, digits: str) -> None:
    if len(digits) > MAX_FRACTION:
        message = (
            f"{describe_value(value)} is finer than a microsecond; write at most {MAX_FRACTION} digits after the second"
        )
        raise ValueError(message)
