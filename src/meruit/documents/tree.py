"""Builds plain values and their lines from the events of a YAML or JSON document."""

import re
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import msgspec

from meruit.errors import DocumentUnreadable, Problem
from meruit.model.numbers import MAX_DIGITS, WRITTEN, Number, plain

MAX_DEPTH = 64
"""The deepest nesting of lists and mappings."""

MAX_NODES = 200_000
"""The most keys and values of one document, with aliases expanded."""


TOO_MANY = f"the document has more than {MAX_NODES:,} keys and values with its aliases expanded"

DUPLICATE = "duplicate key"
"""The beginning of the message about a duplicate key."""

Path = tuple[str | int, ...]

TEXT = -1
"""The last step of the path of a literal block's text; no list has an item of this number."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_EXPONENT_DIGITS = 4
_OUT_OF_RANGE = f"expected a number between 1e-{MAX_DIGITS} and 1e{MAX_DIGITS} in size"


class ParseEventKind(Enum):
    """The kind of an event."""

    MAP = auto()
    LIST = auto()
    SCALAR = auto()
    END = auto()


class ParseEvent(msgspec.Struct, frozen=True):
    """One step through a document, in reading order."""

    kind: ParseEventKind
    line: int
    text: str = ""
    """A scalar as written, its quotes and escapes resolved."""
    plain: bool = False
    """Whether a scalar is unquoted, so that it may be a number or a word such as true."""
    fault: str = ""
    """What is wrong with this node, where reading can go on."""
    text_line: int | None = None
    """For a literal block, whose lines are those of the file: the line where its text begins."""


class Tree(msgspec.Struct, frozen=True):
    """The value of a document, its lines and its problems."""

    value: Any
    lines: dict[Path, int]
    problems: list[Problem]
    numbers: dict[Path, str]
    """The numbers whose text their value does not keep, as written: 450.00."""


def format_path(path: Path) -> str:
    """`criteria[2].threshold`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def build(events: Iterable[ParseEvent]) -> Tree:
    """Build the tree from the events; reading stops at the first syntax error."""
    builder = _Builder()
    try:
        for event in events:
            builder.take(event)
        if not builder.lines:
            builder.problems.append(Problem("", "the file is empty"))
    except DocumentUnreadable as refused:
        builder.problems.append(refused.problem)
    return Tree(value=builder.value, lines=builder.lines, problems=builder.problems, numbers=builder.numbers)


class _OpenCollection:
    """A list or mapping whose end event has not come yet."""

    __slots__ = ("holder", "key", "path")

    def __init__(self, holder: dict[str, Any] | list[Any], path: Path) -> None:
        self.holder = holder
        self.path = path
        self.key: str | None = None
        """The key that waits for its value."""


class _Builder:
    """Builds a value without recursion, so that MAX_DEPTH is the only limit on depth."""

    def __init__(self) -> None:
        self.value: Any = None
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.numbers: dict[Path, str] = {}
        self._opened: list[_OpenCollection] = []
        self._nodes = 0

    def take(self, event: ParseEvent) -> None:
        """Process one event."""
        if event.kind is ParseEventKind.END:
            self._opened.pop()
            return
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise DocumentUnreadable(TOO_MANY, event.line)
        parent = self._opened[-1] if self._opened else None
        if parent is not None and isinstance(parent.holder, dict) and parent.key is None:
            self._key(parent, event)
        else:
            self._value(parent, event)

    def _key(self, parent: _OpenCollection, event: ParseEvent) -> None:
        path = (*parent.path, event.text)
        self._complain(path, event, event.fault)
        if event.kind is not ParseEventKind.SCALAR:
            self._complain(parent.path, event, "a key must be text, not a list or a mapping")
            # The key's content is still read, to report its problems too.
            parent.key = "?"
            self.lines[*parent.path, "?"] = event.line
            self._open({} if event.kind is ParseEventKind.MAP else [], parent.path, event.line)
            return
        parent.key = event.text
        self._complain(path, event, _fault_of_text(event.text))
        if event.plain and event.text == "<<":
            self._complain(path, event, "merge keys are not supported; write the keys out, or alias a whole value")
        if event.text in parent.holder:
            self._complain(path, event, f"{DUPLICATE} {event.text!r}: it is already on line {self.lines[path]}")
        else:
            self.lines[path] = event.line

    def _value(self, parent: _OpenCollection | None, event: ParseEvent) -> None:
        path: Path = ()
        value: Any = {} if event.kind is ParseEventKind.MAP else []
        if parent is not None:
            path = (*parent.path, len(parent.holder) if parent.key is None else parent.key)
        # A mapping's entry keeps the line of its key.
        if parent is None or parent.key is None:
            self.lines[path] = event.line
        if event.text_line is not None:
            self.lines[*path, TEXT] = event.text_line
        self._complain(path, event, event.fault)
        if event.kind is ParseEventKind.SCALAR:
            try:
                value = scalar(event.text) if event.plain else event.text
            except ValueError as problem:
                self._complain(path, event, str(problem))
            self._complain(path, event, _fault_of_text(event.text))
            if event.plain and (isinstance(value, float | Decimal) or _is_other_text(value, event.text)):
                self.numbers[path] = event.text
        else:
            self._open(value, path, event.line)
        self._put(parent, value)

    def _put(self, parent: _OpenCollection | None, value: Any) -> None:
        if parent is None:
            self.value = value
        elif isinstance(parent.holder, list):
            parent.holder.append(value)
        elif parent.key is not None:
            parent.holder[parent.key] = value
            parent.key = None

    def _open(self, holder: dict[str, Any] | list[Any], path: Path, line: int) -> None:
        if len(self._opened) == MAX_DEPTH:
            raise DocumentUnreadable(f"nested deeper than {MAX_DEPTH} levels", line)
        self._opened.append(_OpenCollection(holder, path))

    def _complain(self, path: Path, event: ParseEvent, fault: str) -> None:
        if fault:
            self.problems.append(Problem(where=format_path(path), message=fault, line=event.line))


def scalar(text: str) -> Number | str | bool | None:
    """Parse an unquoted scalar: JSON's words and numbers; everything else, such as 01, NO and 10:15, is text."""
    if text in _WORDS:
        return _WORDS[text]
    if (number := WRITTEN.fullmatch(text)) is not None:
        return _number(*number.group(0, 1, 2, 3))
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("expected a finite number, not infinity or NaN")
    return text


# Any: a scalar.
def _is_other_text(value: Any, text: str) -> bool:
    """Whether a whole number was written in another way than Python writes it."""
    return type(value) is int and str(value) != text


def _number(text: str, whole: str, decimals: str | None, exponent: str | None) -> Number:
    if len(whole) + len(decimals or ".") - 1 > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits; quote it if it is text")
    if decimals is None and exponent is None:
        return int(text)
    # The exponent's length is checked as text first: Decimal accepts at most 18 digits.
    if exponent is not None and len(exponent.lstrip("eE+-0")) > _EXPONENT_DIGITS:
        raise ValueError(_OUT_OF_RANGE)
    number = Decimal(text)
    if abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError(_OUT_OF_RANGE)
    return plain(number)


def _fault_of_text(text: str) -> str:
    if text.isascii() or _LONE_SURROGATE.search(text) is None:
        return ""
    return "half of a surrogate pair (\\ud800 to \\udfff) is not a character"
