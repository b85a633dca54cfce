"""The text of a JSON document as events, each with its line."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from meruit.documents.tree import ParseEvent, ParseEventKind
from meruit.errors import JsonSyntaxError
from meruit.model.numbers import WRITTEN

# A string ends at its first unescaped quote; possessive repeats make a missing one cost a single pass.
_TOKEN = re.compile(r'[{}\[\],:]|"([^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+)"|[-+.0-9A-Za-z]+')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORDS = {word: word for word in ("true", "false", "null")} | {
    # Python's own writer makes these three; the builder refuses them under their YAML names.
    "NaN": ".nan",
    "Infinity": ".inf",
    "-Infinity": "-.inf",
}

# What may come next, as the first characters of tokens; `w` stands for a number or a word.
_VALUE = '{["w'
_VALUE_OR_END = '{["w]'
_KEY = '"'
_KEY_OR_END = '"}'
_COLON = ":"
_REST_OF_MAP = ",}"
_REST_OF_LIST = ",]"
_NOTHING = ""

_IN_WORDS = {
    _VALUE: "a value",
    _VALUE_OR_END: "a value or ]",
    _KEY: "a key in double quotes",
    _KEY_OR_END: "a key in double quotes or }",
    _COLON: "a colon",
    _REST_OF_MAP: "a comma or }",
    _REST_OF_LIST: "a comma or ]",
    _NOTHING: "the end of the file",
}


class _Token(NamedTuple):
    kind: str
    """Its first character, or `w` for a number or a word."""
    text: str
    line: int


def json_events(text: str) -> Iterator[ParseEvent]:
    """Yield each event of the document; raises JsonSyntaxError."""
    closers: list[str] = []
    expected = _VALUE
    line = 1
    for kind, found, line in _tokens(text):
        if kind not in expected:
            raise JsonSyntaxError(f"expected {_IN_WORDS[expected]}, got {found[:30]!r}", line)
        match kind:
            case "{":
                yield ParseEvent(ParseEventKind.MAP, line)
                closers.append("}")
                expected = _KEY_OR_END
            case "[":
                yield ParseEvent(ParseEventKind.LIST, line)
                closers.append("]")
                expected = _VALUE_OR_END
            case "}" | "]":
                yield ParseEvent(ParseEventKind.END, line)
                closers.pop()
                expected = _after_value(closers)
            case ",":
                expected = _KEY if closers[-1] == "}" else _VALUE
            case ":":
                expected = _VALUE
            case _:
                yield ParseEvent(kind=ParseEventKind.SCALAR, line=line, text=found, plain=kind == "w")
                expected = _COLON if expected in (_KEY, _KEY_OR_END) else _after_value(closers)
    if expected:
        raise JsonSyntaxError(f"expected {_IN_WORDS[expected]}, got the end of the file", line)


def _after_value(closers: list[str]) -> str:
    if not closers:
        return _NOTHING
    return _REST_OF_MAP if closers[-1] == "}" else _REST_OF_LIST


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while (space := _SPACE.match(text, at)) is not None:
        # Line breaks occur between tokens only: a JSON string may not contain one.
        line += text.count("\n", at, space.end())
        at = space.end()
        if at == len(text):
            return
        token = _TOKEN.match(text, at)
        if token is None:
            raise JsonSyntaxError(_describe_unexpected(text, at), line)
        at = token.end()
        yield _token(token, line)


def _token(token: re.Match[str], line: int) -> _Token:
    found = token[0]
    if found[0] == '"':
        return _Token('"', _unescape(token[1], line), line)
    if found[0] in "{}[],:":
        return _Token(found, found, line)
    word = found if WRITTEN.fullmatch(found) else _WORDS.get(found)
    if word is None:
        raise JsonSyntaxError(f"expected a value, got {found[:30]!r}", line)
    return _Token("w", word, line)


def _unescape(inside: str, line: int) -> str:
    if "\\" not in inside:
        return inside
    try:
        return str(json.loads(f'"{inside}"'))
    except json.JSONDecodeError as fault:
        raise JsonSyntaxError(f"{fault.msg.lower()} in a string", line) from None


def _describe_unexpected(text: str, at: int) -> str:
    if text[at] == '"':
        return "a string without an end, or with a line break or control character inside"
    return f"unexpected character {text[at]!r}"
