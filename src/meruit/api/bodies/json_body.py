"""Strict JSON bodies: refuse what two parsers could read differently."""

import asyncio
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import msgspec
import orjson

from meruit.api.bodies.gc import pause_gc
from meruit.documents import json_slices
from meruit.errors import BodyError, HttpRefusal
from meruit.model.canonical import IN_SLICES
from meruit.model.decoding import convert_to
from meruit.web.requests import Request
from meruit.web.validation import field_problem

MAX_DEPTH = 64
"""Deepest nesting of lists and objects; a single list has depth 1."""
MAX_DIGITS = 400
"""Most digits of an integer."""
SMALL_BYTES = 64 * 1024
"""Bodies up to this size are parsed in the event loop."""
LARGE_BYTES = 1024 * 1024
"""Larger bodies need an admission slot, and are parsed one at a time."""
SEARCHED_BYTES = 64 * 1024
"""How much is searched at once for numbers that are too small."""
TINY_BYTES = 400
"""The longest text that such a search finds, but for zeros that no client writes."""
MAX_KEY_SHOWN = 60
JSON_TYPE = "application/json"
UNSUPPORTED_MEDIA_TYPE = 415

# Parsers hold the interpreter lock while they run: two at once would delay other requests twice as long.
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="meruit-parser")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOO_DEEP = json_slices.TOO_DEEP.format(MAX_DEPTH)
_TOO_LONG = f"an integer may have at most {MAX_DIGITS} digits"
_TINY_POWER = re.compile(rb"-(?<=[eE]-)(?:0{0,99}[1-9]\d{2}|0{100})")
_TINY_FRACTION = re.compile(rb"\.0{300}")
"""What a number holds that may be smaller than any float."""
_ZEROS = b"0" * 300
_FEW = 64
"""So many of a character are looked for by removing them, which skips the text between them; more are counted."""
_NOT_ZERO = re.compile("[1-9]")


class StrictRequest(Request):
    """A request whose JSON is parsed strictly, also for the `data` of a handler."""

    async def body(self) -> bytes:
        """Read the body once; a large body needs an admission slot."""
        if not hasattr(self, "_body"):
            parts, size = list[bytes](), 0
            declared = self.headers.get("content-length", "")
            if is_declared := declared.isdecimal():
                # All of it at once: of several bodies that are too many together, the first ones come through.
                self.check_body_size(int(declared))
                self.count_body_bytes(int(declared))
            async for part in self.stream():
                size += len(part)
                if not is_declared:
                    self.count_body_bytes(len(part))
                self.check_body_size(size)
                if size > LARGE_BYTES:
                    self.acquire_body_slot()
                parts.append(part)
            self._body = b"".join(parts)
        return self._body

    def acquire_body_slot(self) -> None:
        """Take an admission slot for a large body; raises ApiProblem when none is free. Here a slot is always free."""

    def check_body_size(self, size: int) -> None:
        """Refuse a body that is larger than the caller may send; here only the route limits it."""

    def count_body_bytes(self, size: int) -> None:
        """Count bytes of the body for the caller; here they are not limited."""

    async def wait_for_body_turn(self) -> None:
        """Wait until a large body may be parsed; here without waiting."""

    async def take_loop_turn(self) -> None:
        """Wait until a small body may be parsed on the event loop; here without waiting."""

    def pause_collector(self) -> None:
        """Keep the garbage collector off until the request ends; here only while it is parsed."""

    async def json(self) -> Any:
        """Parse the body once."""
        if not hasattr(self, "_json"):
            self._json = await self.read_json(Any)
        return self._json

    async def read_json(self, kind: Any) -> Any:
        """Parse the body strictly into what a handler declares; raises BodyError, and HttpRefusal 415."""
        body = await self.body()
        if body:
            _check_type(*self.content_type)
        # A large body would block the event loop.
        if len(body) > LARGE_BYTES:
            await self.wait_for_body_turn()
            self.pause_collector()
            # In the context of this request only.
            IN_SLICES.set(True)
            return await asyncio.get_running_loop().run_in_executor(_PARSER, self._parse, body, kind)
        if len(body) > SMALL_BYTES:
            return await asyncio.to_thread(self._parse, body, kind)
        await self.take_loop_turn()
        return self._parse(body, kind)

    def _parse(self, body: bytes, kind: Any) -> Any:
        # Millions of new lists would make the collector scan them again and again, while other threads wait.
        with pause_gc() if len(body) > LARGE_BYTES else nullcontext():
            value = parse_large_json(body) if len(body) > LARGE_BYTES else parse_strict_json(body)
        return convert_body(value, kind)


def parse_strict_json(body: bytes) -> Any:
    """Parse the JSON document of a body; raises BodyError for all that RFC 8259 forbids or leaves open."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise _json_error(body, problem) from None
    if _count(body, b"[") + _count(body, b"{") > MAX_DEPTH and _is_deep(value):
        raise BodyError(_TOO_DEEP, reason="too_deep")
    try:
        again = orjson.dumps(value)
    except TypeError:
        # orjson writes integers of 64 bits only.
        return _parse_exactly(body)
    if _has_tiny_number(body):
        return _parse_exactly(body)
    # Parsing drops a duplicate key with its colon. Colons change in number in only one other way: an escape.
    if _count(again, b":") != _count(body, b":") or (b"\\" in body and b"\\u003" in body):
        return _parse_exactly(body)
    return value


def _count(body: bytes, character: bytes) -> int:
    few = len(body) - len(body.replace(character, b"", _FEW))
    return few if few < _FEW else body.count(character)


def parse_large_json(body: bytes) -> Any:
    """Parse like parse_strict_json, in slices between which other threads run."""
    return json_slices.parse_in_slices(body, parse_strict_json, MAX_DEPTH)


def _has_tiny_number(body: bytes) -> bool:
    """Whether a number may be smaller than any float. Other threads wait during each search: one for each block."""
    for start in range(0, len(body), SEARCHED_BYTES):
        block = body[start : start + SEARCHED_BYTES + TINY_BYTES]
        # Most bodies have no sign and not so many zeros, which a plain search finds sooner than a pattern.
        if (b"-" in block and _TINY_POWER.search(block)) or (_ZEROS in block and _TINY_FRACTION.search(block)):
            return True
    return False


# Any: handlers declare any type, and get an instance of it.
def convert_body(value: Any, kind: Any) -> Any:
    """Convert a parsed value strictly to the type that a handler declares; raises BodyError."""
    try:
        return convert_to(value, kind, strict=True)
    except msgspec.ValidationError as refused:
        problem = field_problem(str(refused))
        raise BodyError(f"{problem.where or 'the body'}: {problem.message}", [problem]) from None


def _check_type(media_type: str, options: dict[str, str]) -> None:
    """Refuse anything but JSON in UTF-8."""
    if media_type != JSON_TYPE or options.get("charset", "utf-8").lower() != "utf-8":
        raise HttpRefusal(UNSUPPORTED_MEDIA_TYPE)


def _is_deep(value: Any) -> bool:
    """Whether containers nest deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _parse_exactly(body: bytes) -> Any:
    """Parse like parse_strict_json, but count every digit and compare every key; slower."""
    return json.loads(
        body, object_pairs_hook=_reject_duplicate_keys, parse_int=_parse_integer, parse_float=_parse_float
    )


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise BodyError(f"the key {twice[:MAX_KEY_SHOWN]!r} is a duplicate in one object", reason="duplicate_key")
    return members


def _parse_integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise BodyError(_TOO_LONG, reason="too_long")
    return int(digits)


def _parse_float(digits: str) -> float:
    number = float(digits)
    if number == 0 and _NOT_ZERO.search(digits.lower().partition("e")[0]):
        # It would be read as 0, which is another amount.
        raise BodyError("a number is smaller than any that can be read; write 0, or a larger one", reason="too_small")
    return number


def _json_error(body: bytes, problem: Exception) -> BodyError:
    """Explain why a body is not valid JSON, and where."""
    if isinstance(problem, RecursionError):
        return BodyError(_TOO_DEEP, reason="too_deep")
    if not body.strip():
        return BodyError("the body is empty; send a JSON document", reason="empty")
    if body.startswith(_BYTE_ORDER_MARK):
        return BodyError("the body starts with a byte order mark; send plain UTF-8", reason="not_json")
    if str(problem).startswith("Integer value out of range"):
        return BodyError(_TOO_LONG, reason="too_long")
    return BodyError(f"the body is not valid JSON: {_first_fault(body) or problem}", reason="not_json")


def _first_fault(body: bytes) -> str | None:
    """The problem that orjson finds; it always says where."""
    try:
        body.decode()
        orjson.loads(body)
    except UnicodeDecodeError as wrong:
        return f"{wrong.reason} in UTF-8 at byte {wrong.start}"
    except orjson.JSONDecodeError as wrong:
        return str(wrong)
    return None
