"""Parse a large JSON document in slices, so that other threads run between them.

A parser holds the interpreter until it is done: fifteen megabytes of small objects take half a second. So the document
is cut at the outermost comma of each block, and at the brackets of those containers that reach over such a comma. What
lies between two cuts are members of one container, which the usual parser reads.
"""

import json
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import accumulate, compress
from typing import Any

import msgspec

from meruit.errors import BodyError

BLOCK_BYTES = 64 * 1024
"""How much is searched for a cut at once."""
SMALL_BYTES = 1024 * 1024
"""Documents up to this size are parsed at once, in some milliseconds."""
MAX_LEVELS = 254
"""Deepest nesting of documents that Meruit writes."""
MAX_BRACKETS = 1_024
"""More brackets without a comma between them than any document has that is not nested too deep."""
NOT_JSON = "not_json"
TOO_DEEP = "lists and objects may be nested at most {} deep"
_OPENING, _CLOSING, _COMMA = b"[{", b"]}", ord(",")
_STEPS = [1 if char in _OPENING else -1 if char in _CLOSING else 0 for char in range(256)]
_STRUCTURE = bytes(char in _OPENING + _CLOSING + b"," for char in range(256))
_SPACE = b" \t\n\r"


class _Place(Enum):
    """Where in a container the reader is."""

    START = "start"
    AFTER_VALUE = "after a value"
    AFTER_COMMA = "after a comma"


class _Cut(msgspec.Struct, frozen=True, gc=False):
    """A cut at a comma, or at a bracket of a container that reaches over a comma where the document is cut."""

    place: int
    char: int


class _Container:
    """A list or an object whose end is not reached yet."""

    __slots__ = ("key", "place", "value")

    # Any: a list of any values, or an object with such.
    def __init__(self, value: Any) -> None:
        self.value = value
        self.place = _Place.START
        self.key: str | None = None
        """Of the member that is being read, in an object."""


# Any: the value of a document.
def parse_in_slices(body: bytes, parse: Callable[[bytes], Any], max_depth: int) -> Any:
    """Parse a document, with `parse` for what lies between two cuts; raises BodyError."""
    reader = _SliceReader(body, parse)
    for cut in _find_cuts(body, max_depth):
        reader.read_to(cut)
    return reader.finish()


def load_json(content: bytes, parse: Callable[[bytes], Any] = json.loads) -> Any:
    """Parse a document that may be large, with `parse` for its parts; raises ValueError for what is not JSON."""
    if len(content) <= SMALL_BYTES:
        return parse(content)
    try:
        return parse_in_slices(content, parse, MAX_LEVELS)
    except BodyError as refused:
        raise ValueError(str(refused)) from None


class _SliceReader:
    def __init__(self, body: bytes, parse: Callable[[bytes], Any]) -> None:
        self._body, self._parse = body, parse
        self._start = 0
        self._stack = [_Container([])]

    def read_to(self, cut: _Cut) -> None:
        """Read the members up to a cut, and begin or end a container where the cut is one of its brackets."""
        inner = self._stack[-1]
        text = self._skip_comma(inner, self._body[self._start : cut.place].strip(_SPACE))
        if cut.char in _OPENING:
            self._open(inner, text, cut.char)
        else:
            self._add(inner, text)
            if cut.char == _COMMA:
                self._require(inner.place is _Place.AFTER_VALUE)
                inner.place = _Place.AFTER_COMMA
            else:
                self._close(inner, cut.char)
        self._start = cut.place + 1

    def finish(self) -> Any:
        """Read the rest; the document must be one value."""
        top = self._stack[-1]
        self._require(len(self._stack) == 1)
        self._add(top, self._skip_comma(top, self._body[self._start :].strip(_SPACE)))
        self._require(len(top.value) == 1 and top.place is _Place.AFTER_VALUE)
        return top.value[0]

    def _skip_comma(self, inner: _Container, text: bytes) -> bytes:
        if text and inner.place is _Place.AFTER_VALUE:
            self._require(text.startswith(b","))
            inner.place = _Place.AFTER_COMMA
            return text[1:].lstrip(_SPACE)
        return text

    def _open(self, inner: _Container, text: bytes, bracket: int) -> None:
        if isinstance(inner.value, dict):
            text, inner.key = self._split_key(text)
        if text:
            self._require(text.endswith(b","))
            members = text[:-1].rstrip(_SPACE)
            self._require(members != b"")
            self._add(inner, members)
            inner.place = _Place.AFTER_COMMA
        self._require(inner.place is not _Place.AFTER_VALUE)
        self._stack.append(_Container([] if bracket == ord("[") else {}))

    def _close(self, inner: _Container, bracket: int) -> None:
        self._require(inner.place is not _Place.AFTER_COMMA and len(self._stack) > 1)
        self._require(isinstance(inner.value, list) is (bracket == ord("]")))
        self._stack.pop()
        outer = self._stack[-1]
        if isinstance(outer.value, dict):
            self._update(outer.value, {outer.key: inner.value})
        else:
            outer.value.append(inner.value)
        outer.place = _Place.AFTER_VALUE

    def _add(self, inner: _Container, text: bytes) -> None:
        if not text:
            return
        if isinstance(inner.value, dict):
            self._update(inner.value, self._parse_piece(b"{" + text + b"}"))
        else:
            inner.value += self._parse_piece(b"[" + text + b"]")
        inner.place = _Place.AFTER_VALUE

    def _update(self, members: dict[Any, Any], more: dict[Any, Any]) -> None:
        count = len(members) + len(more)
        members.update(more)
        if len(members) != count:
            raise BodyError("a key is a duplicate in one object", reason="duplicate_key")

    def _split_key(self, text: bytes) -> tuple[bytes, str]:
        """The members before the last key of an object, with their comma, and the key."""
        self._require(text.endswith(b":"))
        text = text[:-1].rstrip(_SPACE)
        self._require(text.endswith(b'"'))
        start = text.rfind(b'"', 0, len(text) - 1)
        while start > 0 and _is_escaped(text, start):
            start = text.rfind(b'"', 0, start)
        self._require(start >= 0)
        key: str = self._parse_piece(b"[" + text[start:] + b"]")[0]
        return text[:start].rstrip(_SPACE), key

    def _parse_piece(self, piece: bytes) -> Any:
        try:
            return self._parse(piece)
        except BodyError as refused:
            if refused.reason != NOT_JSON:
                raise
            raise self._refusal() from None

    def _require(self, holds: bool) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            raise self._refusal()

    def _refusal(self) -> BodyError:
        return BodyError(f"the body is not valid JSON, at or after byte {self._start}", reason=NOT_JSON)


def _is_escaped(text: bytes, place: int) -> bool:
    before = text[:place]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _find_cuts(body: bytes, max_depth: int) -> Iterator[_Cut]:
    """Cuts in order: the outermost comma of each block, and the brackets that reach over it."""
    if b"\\" in body:
        # Every quote that is left begins or ends a text.
        body = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    inside, depth = False, 0
    begun = 0
    """The depth at the last comma where the document was cut."""
    chars, depths, places = bytearray(), list[int](), list[int]()
    for offset in range(0, len(body), BLOCK_BYTES):
        parts = body[offset : offset + BLOCK_BYTES].split(b'"')
        # Texts are blanked out: every second part, and the first one where the block begins inside a text.
        block = b'"'.join(
            [b"_" * len(part) if (number % 2 == 1) is not inside else part for number, part in enumerate(parts)]
        )
        inside = (len(parts) % 2 == 1) is inside
        marks = block.translate(_STRUCTURE)
        found = bytes(compress(block, marks))
        if not found:
            continue
        reached = [*accumulate(map(_STEPS.__getitem__, found), initial=depth)][1:]
        depth = reached[-1]
        if min(reached) < 0 or max(reached) > max_depth:
            raise _unbalanced(offset) if min(reached) < 0 else BodyError(TOO_DEEP.format(max_depth), reason="too_deep")
        chars += found
        depths += reached
        places += compress(range(offset, offset + len(block)), marks)
        cut = _outermost_comma(chars, depths)
        if cut is None:
            if len(chars) > MAX_BRACKETS:
                raise _unbalanced(offset)
            continue
        yield from _spine(chars[:cut], depths[:cut], places, begun, depths[cut])
        yield _Cut(places[cut], _COMMA)
        begun = depths[cut]
        del chars[: cut + 1], depths[: cut + 1], places[: cut + 1]
    if depth or inside:
        raise _unbalanced(len(body))
    yield from _spine(chars, depths, places, begun, 0)


def _unbalanced(offset: int) -> BodyError:
    why = f"the body is not valid JSON: brackets or quotes do not match, at or after byte {offset}"
    return BodyError(why, reason=NOT_JSON)


def _outermost_comma(chars: bytearray, depths: list[int]) -> int | None:
    """The last of those commas that are nested least."""
    of_commas = [depth for char, depth in zip(chars, depths, strict=True) if char == _COMMA]
    if not of_commas:
        return None
    least = min(of_commas)
    return next(place for place in range(len(chars) - 1, -1, -1) if chars[place] == _COMMA and depths[place] == least)


def _spine(chars: bytearray, depths: list[int], places: list[int], begun: int, ended: int) -> Iterator[_Cut]:
    """The brackets that end containers which were open at the start, and that begin those which are open at the end."""
    least = min(begun, ended, min(depths, default=begun))
    place = 0
    for depth in range(begun - 1, least - 1, -1):
        place = depths.index(depth, place)
        yield _Cut(places[place], chars[place])
    backwards = depths[::-1]
    for depth in range(least, ended):
        # After the last time at this depth, the next bracket begins a container that stays open.
        last = len(depths) - 1 - backwards.index(depth) if depth in backwards else -1
        yield _Cut(places[last + 1], chars[last + 1])
