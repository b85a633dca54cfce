"""Parses a YAML or JSON file into plain values that know their lines."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from meruit.documents.json_events import json_events
from meruit.documents.tree import TEXT, Path, Tree, build
from meruit.errors import DocumentError, DocumentUnreadable, JsonSyntaxError, Problem

MAX_BYTES = 5_000_000
"""The largest file that is read."""

MAX_PROBLEMS = 100
"""The most problems reported for one file."""

_WIDE = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")


class Document(msgspec.Struct, frozen=True):
    """The values of a file, and the line of each."""

    name: str
    """The file's name in errors."""
    value: Any
    lines: Mapping[Path, int]
    """Counted from 1: a mapping's entry has the line of its key, a list's item its own."""
    numbers: Mapping[Path, str] = MappingProxyType({})
    """The numbers whose text their value does not keep, as written: 450.00."""

    def line_of(self, path: Path) -> int | None:
        """The line of a path, or of the nearest path around it that the file has; None without a file."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1) if self.lines else None

    def line_in_text(self, path: Path, number: int | None) -> int | None:
        """The file's line of one line of a text, counted from 1; the line of its path where the text is not a block."""
        first = self.lines.get((*path, TEXT))
        return self.line_of(path) if first is None or number is None else first + number - 1


def parse(text: str | bytes, name: str) -> Document:
    """Parse the text; raises DocumentError with every problem and its line."""
    try:
        tree = _tree(_decode(text), name)
    except DocumentUnreadable as refused:
        raise DocumentError(name, [refused.problem]) from None
    if tree.problems:
        raise DocumentError(name, sort_and_limit_problems(tree.problems))
    return Document(name=name, value=tree.value, lines=tree.lines, numbers=tree.numbers)


def sort_and_limit_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Order the problems by line, and cut the list at MAX_PROBLEMS."""
    ordered = sorted(problems, key=lambda problem: (problem.line is None, problem.line))
    rest = [Problem("", "and more problems; fix these first")] if len(ordered) > MAX_PROBLEMS else []
    return ordered[:MAX_PROBLEMS] + rest


def _tree(text: str, name: str) -> Tree:
    declared = name.lower().endswith(".json")
    if declared or text.lstrip()[:1] in ("{", "["):
        try:
            return build(json_events(text))
        except JsonSyntaxError as fault:
            # It may be YAML in braces, which needs no quotes.
            if declared:
                raise DocumentUnreadable(str(fault), fault.line) from None
    # JSON needs no YAML parser, which takes a moment to load.
    from meruit.documents.yaml_events import yaml_events

    return build(yaml_events(text))


def _decode(text: str | bytes) -> str:
    size = len(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    if size > MAX_BYTES:
        raise DocumentUnreadable(f"the file has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
    if isinstance(text, bytes):
        if text.startswith(_WIDE):
            raise DocumentUnreadable("the file is UTF-16 or UTF-32; save it as UTF-8")
        try:
            text = text.decode()
        except UnicodeDecodeError as fault:
            found = f"byte 0x{fault.object[fault.start]:02x} at offset {fault.start}"
            line = fault.object.count(b"\n", 0, fault.start) + 1
            raise DocumentUnreadable(f"not UTF-8: {found}; save the file as UTF-8", line) from None
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise DocumentUnreadable("the file is empty")
    return text
