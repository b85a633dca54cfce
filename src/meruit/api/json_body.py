"""Strict JSON bodies: what two readers could read differently is refused."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, get_args

import msgspec
import orjson
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.types import Empty

from meruit.errors import BodyError, Problem

MAX_DEPTH = 64
"""How deep lists and objects may nest; a lone list is 1 deep."""
MAX_DIGITS = 400
"""How many digits an integer may have."""
SMALL_BYTES = 64 * 1024
"""Bodies up to this size are parsed where they arrive."""
LARGE_BYTES = 1024 * 1024
"""Bodies beyond this size need a place, and are parsed one after the other."""
MAX_KEY_SHOWN = 60
MAX_COMPLAINT = 300
"""How many characters of a field's path, and of what is wrong with it, are told."""
JSON_TYPE = "application/json"
UNSUPPORTED_MEDIA_TYPE = 415

# The parsers hold the interpreter while they run: two at once would only keep everybody else waiting twice as long.
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="meruit-parser")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOO_DEEP = f"lists and objects may nest {MAX_DEPTH} deep at most"
_TOO_LONG = f"an integer may have {MAX_DIGITS} digits at most"
# msgspec ends a complaint with the path, and quotes the value only where an enum or a tag was expected.
_COMPLAINT = re.compile(r"(?P<message>.*?)(?: - at `(?:key in )?\$\.?(?P<where>.*)`)?", re.DOTALL)
_QUOTES_A_VALUE = re.compile(r"Invalid (?:enum )?value .*", re.DOTALL)


class StrictRequest(Request[Any, Any, Any]):
    """A request whose JSON is strict, also where Litestar reads it for a handler's `data`."""

    async def body(self) -> bytes:
        """The body, read once; it needs a place from where it is known to be large."""
        state = self._connection_state
        if state.body is Empty:
            parts, size = list[bytes](), 0
            async for part in self.stream():
                size += len(part)
                if size > LARGE_BYTES:
                    self.acquire_body_slot()
                parts.append(part)
            state.body = b"".join(parts)
        return state.body

    def acquire_body_slot(self) -> None:
        """Take a place for a large body, once; raises ApiProblem when there is none. Here there is always one."""

    async def wait_for_body_turn(self) -> None:
        """Wait until a large body may be parsed; here it always may."""

    async def json(self) -> Any:
        """The body, parsed once; already the struct that the handler declares, where it declares one.

        Litestar would convert leniently and read the text "5" as the number 5: it finds its work done.
        """
        state = self._connection_state
        if state.json is Empty:
            body = await self.body()
            if body:
                _check_type(*self.content_type)
            # A large body takes long enough to hold up everybody else.
            if len(body) > LARGE_BYTES:
                await self.wait_for_body_turn()
                state.json = await asyncio.get_running_loop().run_in_executor(_PARSER, self._parse, body)
            elif len(body) > SMALL_BYTES:
                state.json = await asyncio.to_thread(self._parse, body)
            else:
                state.json = self._parse(body)
        return state.json

    def _parse(self, body: bytes) -> Any:
        handler = self.route_handler
        field = handler.parsed_data_field
        value = parse_strict_json(body)
        if field is None or not _is_struct(field.annotation):
            return value
        return convert_body(value, field.annotation, handler.default_deserializer)


def parse_strict_json(body: bytes) -> Any:
    """The one JSON document in a body; raises BodyError for all that RFC 8259 forbids or leaves open."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BodyError(_explain_invalid_json(body, problem)) from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise BodyError(_TOO_DEEP)
    try:
        again = orjson.dumps(value)
    except TypeError:
        # orjson writes integers of 64 bits only.
        return _parse_exactly(body)
    # A key that stands twice is lost in parsing, with its colon; no colon comes or goes in any other way but one,
    # to be written as an escape.
    if again.count(b":") != body.count(b":") or (b"\\" in body and b"\\u003" in body):
        return _parse_exactly(body)
    return value


# Handlers declare any type; what comes back is an instance of it.
def convert_body(value: Any, kind: Any, convert_custom: Callable[[Any, Any], Any] | None = None) -> Any:
    """A parsed value as the struct a handler asks for, no text taken for a number; raises BodyError."""
    try:
        return msgspec.convert(value, kind, strict=True, dec_hook=convert_custom)
    except msgspec.ValidationError as refused:
        problem = field_problem(str(refused))
        raise BodyError(f"{problem.where or 'the body'}: {problem.message}", [problem]) from None


def field_problem(complaint: str) -> Problem:
    """What msgspec complains about, as a field and a message without the value."""
    found = _COMPLAINT.fullmatch(complaint)
    # The pattern's parts are all optional, so that it fits every text.
    assert found is not None  # noqa: S101
    message = _QUOTES_A_VALUE.sub("Not one of the values known here", found["message"])
    # Both may hold a key that the caller chose, of any length.
    return Problem(_truncate(found["where"] or ""), _truncate(message))


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_COMPLAINT else f"{text[:MAX_COMPLAINT]}…"


def _check_type(media_type: str, options: dict[str, str]) -> None:
    """Let JSON in UTF-8 pass."""
    if media_type != JSON_TYPE or options.get("charset", "utf-8").lower() != "utf-8":
        raise HTTPException(status_code=UNSUPPORTED_MEDIA_TYPE)


@lru_cache(maxsize=256)
def _is_struct(annotation: Any) -> bool:
    kinds = get_args(annotation) or (annotation,)
    return all(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in kinds)


def _is_deep(value: Any) -> bool:
    """Whether more than MAX_DEPTH containers nest; looks at one level after the other."""
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
    """What strict_json does, slowly: with every digit counted and every key compared."""
    return json.loads(body, object_pairs_hook=_reject_duplicate_keys, parse_int=_parse_integer)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise BodyError(f"the key {twice[:MAX_KEY_SHOWN]!r} stands twice in one object")
    return members


def _parse_integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise BodyError(_TOO_LONG)
    return int(digits)


def _explain_invalid_json(body: bytes, problem: Exception) -> str:
    """Why a body is no JSON, and where."""
    if isinstance(problem, RecursionError):
        return _TOO_DEEP
    if not body.strip():
        return "the body is empty; send a JSON document"
    if body.startswith(_BYTE_ORDER_MARK):
        return "the body begins with a byte order mark; send plain UTF-8"
    if str(problem).startswith("Integer value out of range"):
        return _TOO_LONG
    return f"the body is not JSON: {_first_fault(body) or problem}"


def _first_fault(body: bytes) -> str | None:
    """What another parser finds wrong: it always says where."""
    try:
        body.decode()
        orjson.loads(body)
    except UnicodeDecodeError as wrong:
        return f"{wrong.reason} in UTF-8 at byte {wrong.start}"
    except orjson.JSONDecodeError as wrong:
        return str(wrong)
    return None
