"""Parses YAML into events, each with its line; aliases are expanded."""

import re
from collections.abc import Iterator

import yaml

from meruit.documents.tree import MAX_NODES, TOO_MANY, ParseEvent, ParseEventKind
from meruit.errors import DocumentUnreadable

LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser where PyYAML was built with it; only its events are used, never its values."""

_STANDARD = "tag:yaml.org,2002:"
_NOT_PRINTABLE = "[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
_NOT_PRINTABLE_ASCII = "[^\t\n\r -~]"
"""The same for a text in ASCII, as most are: the other takes milliseconds to compile."""


class _Anchors:
    """The events so far, and which of them each anchor names."""

    def __init__(self) -> None:
        self.given: list[ParseEvent] = []
        self._nodes = 0
        self._ranges: dict[str, tuple[int, int | None]] = {}
        self._opened: list[tuple[str | None, int]] = []

    def add_events(self, events: list[ParseEvent]) -> None:
        """Record the next events."""
        self.given += events
        self._nodes += _nodes(events)

    def scalar(self, anchor: str | None) -> None:
        """Name the scalar that comes next."""
        if anchor is not None:
            self._ranges[anchor] = (len(self.given), len(self.given) + 1)

    def open(self, anchor: str | None) -> None:
        """Name the collection that comes next; an alias cannot refer to it before its end."""
        self._opened.append((anchor, len(self.given)))
        if anchor is not None:
            self._ranges[anchor] = (len(self.given), None)

    def close(self) -> None:
        """End the innermost collection with the event that comes next."""
        anchor, start = self._opened.pop()
        # An anchor of the same name inside is the later one, and stays.
        if anchor is not None and self._ranges[anchor] == (start, None):
            self._ranges[anchor] = (start, len(self.given) + 1)

    def events_of(self, anchor: str | None, line: int) -> list[ParseEvent]:
        """The events of the anchored node; refused before they exceed the document's limit."""
        start, end = self._ranges.get(anchor or "", (0, 0))
        if end == 0:
            return [ParseEvent(ParseEventKind.SCALAR, line, fault=f"*{anchor} has no anchor &{anchor} above it")]
        if end is None:
            return [ParseEvent(ParseEventKind.SCALAR, line, fault=f"*{anchor} is inside its own anchor")]
        events = self.given[start:end]
        if self._nodes + _nodes(events) > MAX_NODES:
            raise DocumentUnreadable(TOO_MANY, line)
        return events


def _nodes(events: list[ParseEvent]) -> int:
    return sum(event.kind is not ParseEventKind.END for event in events)


def yaml_events(text: str) -> Iterator[ParseEvent]:
    """Yield each event of the document; raises DocumentUnreadable."""
    _refuse_unprintable(text)
    anchors = _Anchors()
    documents = 0
    try:
        for event in yaml.parse(text, Loader=LOADER):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise DocumentUnreadable("a second document starts here; put each document in its own file", line)
            events = _translate(event, line, anchors)
            anchors.add_events(events)
            yield from events
    except yaml.YAMLError as fault:
        raise _syntax_error(fault, text) from None
    except (ValueError, OverflowError) as fault:
        # PyYAML's own scanner lets a few impossible escapes and version numbers through to Python.
        raise DocumentUnreadable(f"not valid YAML: {fault}") from None


def _translate(event: yaml.Event, line: int, anchors: _Anchors) -> list[ParseEvent]:
    """Turn one event of PyYAML into ours: none for the stream's own, many for an alias."""
    match event:
        case yaml.ScalarEvent():
            # A bare `---` is an empty document.
            if not (anchors.given or event.value or event.style or event.tag or event.anchor):
                return []
            anchors.scalar(event.anchor)
            # PyYAML calls a scalar implicit when it is unquoted and has no tag.
            return [
                ParseEvent(
                    kind=ParseEventKind.SCALAR,
                    line=line,
                    text=event.value,
                    plain=event.implicit[0],
                    fault=_fault_of_tag(event.tag),
                    text_line=line + 1 if event.style == "|" else None,
                )
            ]
        case yaml.CollectionStartEvent():
            anchors.open(event.anchor)
            kind = ParseEventKind.MAP if isinstance(event, yaml.MappingStartEvent) else ParseEventKind.LIST
            return [ParseEvent(kind, line, fault=_fault_of_tag(event.tag))]
        case yaml.CollectionEndEvent():
            anchors.close()
            return [ParseEvent(ParseEventKind.END, line)]
        case yaml.AliasEvent():
            return anchors.events_of(event.anchor, line)
        case _:
            return []


def _fault_of_tag(tag: str | None) -> str:
    if tag is None or tag == f"{_STANDARD}str":
        return ""
    shown = f"!!{tag.removeprefix(_STANDARD)}" if tag.startswith(_STANDARD) else tag
    return f"the tag {shown[:60]} is not supported; only !!str is"


def _refuse_unprintable(text: str) -> None:
    found = re.search(_NOT_PRINTABLE_ASCII if text.isascii() else _NOT_PRINTABLE, text)
    if found is not None:
        hint = "; is the file UTF-16? Save it as UTF-8" if found[0] == "\0" else ""
        line = text.count("\n", 0, found.start()) + 1
        raise DocumentUnreadable(f"the character U+{ord(found[0]):04X} is not allowed in YAML{hint}", line)


def _syntax_error(fault: yaml.YAMLError, text: str) -> DocumentUnreadable:
    if not isinstance(fault, yaml.MarkedYAMLError) or fault.problem_mark is None:
        return DocumentUnreadable(f"not valid YAML: {fault}")
    message = f"not valid YAML: {fault.problem}"
    line, column = fault.problem_mark.line, fault.problem_mark.column
    if fault.context and fault.context_mark is not None and fault.context_mark.line != line:
        message += f", {fault.context} that starts on line {fault.context_mark.line + 1}"
    lines = text.splitlines()
    culprit = lines[line][column : column + 1] if line < len(lines) else ""
    if culprit == "\t":
        message += "; indent with spaces, not tabs"
    elif culprit and culprit in "@`%":
        message += f"; quote text that starts with {culprit}"
    # The C parser puts the end of a file one line below its last.
    return DocumentUnreadable(message, min(line + 1, len(lines)))
