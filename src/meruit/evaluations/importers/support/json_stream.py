"""Foreign JSON: large documents list by list, JSON Lines line by line, and NaN where Python wrote it."""

import json
import re
from collections.abc import Collection, Iterator, Set
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from meruit.errors import ImportDamaged

CHUNK_BYTES = 1 << 20
MAX_ELEMENT_BYTES = 64 * 1024 * 1024
"""The longest line, element of a list, or rest of a document that is read."""
MAX_LEVELS = 1_000
"""Levels of a document that are followed."""
MAX_DEPTH = 200
"""Levels of a value that are read; lists and objects below them are read as empty."""
CUT = "\x00cut"
"""In place of a path: the document ends before its time."""
_FOREIGN = (b"NaN", b"Infinity", b"\\ud", b"\\uD")
"""What only a reader less strict than ours may accept; the last two begin half a character, of a text that was cut."""
_TOKEN = re.compile(rb'["{}\[\],:]')
_STRING_END = re.compile(rb'["\\]')


def load(text: bytes) -> Any:
    """Read JSON as other tools write it; raises ImportDamaged.

    NaN becomes None, half a character a question mark, and what is too deep is left out.
    """
    try:
        return _cut_depth(text, msgspec.json.decode(text))
    except (ValueError, RecursionError) as first:
        if not any(sign in text for sign in _FOREIGN):
            raise ImportDamaged(f"not JSON: {first}") from None
    try:
        return _clean_texts(_cut_depth(text, json.loads(text, parse_constant=lambda _name: None)))
    except (ValueError, RecursionError) as problem:
        raise ImportDamaged(f"not JSON: {problem}") from None


def _cut_depth(text: bytes, value: Any) -> Any:
    """The value with at most MAX_DEPTH levels, because importers follow it by recursion."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return value
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        parts = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in parts if isinstance(part, dict | list)]
    for one in level:
        one.clear()
    return value


def _clean_texts(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean_texts(part) for part in value]
    return {clean(key): _clean_texts(part) for key, part in value.items()} if isinstance(value, dict) else value


def clean(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 holds."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def load_lines(file: BinaryIO) -> Iterator[Any]:
    """The values of JSON Lines; ends with CUT where the last line is cut off, raises ImportDamaged for any other."""
    number = 0
    while line := file.readline(MAX_ELEMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_ELEMENT_BYTES:
            raise ImportDamaged(f"line {number} is longer than {MAX_ELEMENT_BYTES // 2**20} MiB")
        if not line.strip():
            continue
        try:
            yield load(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except ImportDamaged as problem:
            if line.endswith(b"\n") or number == 1:
                raise ImportDamaged(f"line {number} is {problem}") from None
            yield CUT
            return


class _Level:
    """One open object or list."""

    __slots__ = ("expects_key", "key", "wanted")

    def __init__(self, *, is_object: bool, wanted: str | None) -> None:
        self.expects_key: bool | None = True if is_object else None
        self.key = ""
        self.wanted = wanted


class _Splitter:
    """Takes a document apart, one chunk after the other."""

    def __init__(self, lists: Collection[str]) -> None:
        self._lists = lists
        self._levels: list[_Level] = []
        self._rest, self._element = bytearray(), bytearray()
        self._inside = 0
        """Levels that are open within an element."""
        self._in_string = self._escaped = False
        self._key: bytearray | None = None
        self.began = self.has_list = False
        """Whether the document has begun, and whether one of the lists was found."""
        self.top_keys: set[str] = set()

    @property
    def is_whole(self) -> bool:
        return self.began and not self._levels and not self._in_string

    @property
    def rest(self) -> bytes:
        return bytes(self._rest)

    @property
    def _key_wanted(self) -> str | None:
        return self._levels[-1].wanted if self._levels else None

    def _keep(self, part: bytes) -> None:
        sink = self._element if self._key_wanted is not None else self._rest
        sink += part
        if len(sink) > MAX_ELEMENT_BYTES:
            raise ImportDamaged(f"a part of the document is longer than {MAX_ELEMENT_BYTES // 2**20} MiB")

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        at = 0
        while at < len(chunk):
            if self._in_string:
                at = self._read_string(chunk, at)
                continue
            found = _TOKEN.search(chunk, at)
            end = len(chunk) if found is None else found.start()
            self._keep(chunk[at:end])
            if found is None:
                return
            at = found.end()
            yield from self._take(found.group())

    def _read_string(self, chunk: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            end = at + 1
        else:
            found = _STRING_END.search(chunk, at)
            end = len(chunk) if found is None else found.end()
            if found is not None:
                self._escaped = found.group() == b"\\"
                self._in_string = self._escaped
        part = chunk[at:end]
        self._keep(part)
        if self._key is not None:
            self._key += part
            if not self._in_string:
                self._levels[-1].key = self._key[:-1].decode(errors="replace")
                self._key = None
                if len(self._levels) == 1:
                    self.top_keys.add(self._levels[0].key)
        return end

    def _take(self, token: bytes) -> Iterator[tuple[str, bytes]]:
        wanted = self._key_wanted
        if wanted is not None and not self._inside and token in b",]":
            element = bytes(self._element).strip()
            self._element = bytearray()
            if element:
                yield wanted, element
            if token == b"]":
                self._levels.pop()
                self._rest += b"]"
            return
        self._keep(token)
        if token == b'"':
            self._in_string = True
            if wanted is None and self._levels and self._levels[-1].expects_key:
                self._key = bytearray()
        elif wanted is not None:
            self._inside += (token in b"{[") - (token in b"}]")
        else:
            self._move(token)

    def _move(self, token: bytes) -> None:
        """Follow the document outside of the wanted lists."""
        if token in b"{[":
            self.began = True
            path = ".".join(level.key if level.expects_key is not None else "*" for level in self._levels)
            # An empty path is the whole document, and not a key without a name.
            wanted = path if token == b"[" and path in self._lists and bool(path) == bool(self._levels) else None
            if len(self._levels) >= MAX_LEVELS:
                raise ImportDamaged(f"the document has more than {MAX_LEVELS} levels")
            self._levels.append(_Level(is_object=token == b"{", wanted=wanted))
            self.has_list |= wanted is not None
        elif not self._levels:
            raise ImportDamaged(f"not JSON: unexpected {token.decode()!r}")
        elif token in b"}]":
            self._levels.pop()
        elif self._levels[-1].expects_key is not None:
            self._levels[-1].expects_key = token == b","


def has_list(text: bytes, lists: Collection[str]) -> bool:
    """Whether a document, or the beginning of one, has one of the lists at these paths."""
    return _split_beginning(text, lists).has_list


def top_keys(text: bytes) -> Set[str]:
    """The keys of an object, or of the beginning of one; those of objects inside are left out."""
    return _split_beginning(text, ()).top_keys


def _split_beginning(text: bytes, lists: Collection[str]) -> _Splitter:
    splitter = _Splitter(lists)
    # What is damaged says nothing from there on.
    with suppress(ImportDamaged):
        for _ in splitter.feed(text):
            pass
    return splitter


def split_document(file: BinaryIO, lists: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """The elements of the lists at these paths (`results.results`; an empty path is a list as the whole document).

    Last comes the document without them, with an empty path; or CUT, where the file ends before the document does.
    """
    splitter = _Splitter(lists)
    while chunk := file.read(CHUNK_BYTES):
        yield from splitter.feed(chunk)
    if splitter.is_whole:
        yield "", splitter.rest.removeprefix(b"\xef\xbb\xbf")
    else:
        yield CUT, b""
