"""Canonical JSON: equal values give equal bytes, and so equal digests."""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple

from orjson import OPT_PASSTHROUGH_DATACLASS, OPT_PASSTHROUGH_DATETIME, OPT_SORT_KEYS, dumps, loads

from meruit.model.numbers import Number, plain

_SORTED = OPT_SORT_KEYS
_PLAIN = OPT_SORT_KEYS | OPT_PASSTHROUGH_DATACLASS | OPT_PASSTHROUGH_DATETIME
"""Makes the fast writer refuse dates and objects, which are not JSON."""

LARGEST_INTEGER = 2**53
"""The largest integer that all JSON readers read exactly."""


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no floats: a number that is not a small integer becomes `{"$decimal": "0.9"}`."""
    written = _floatless(value)
    return b"".join(_CANONICAL.slices(written)) if IN_SLICES.get() else dumps(written, option=_SORTED)


def digest(value: Any) -> str:
    """SHA-256 of the canonical form."""
    return sha256(canonical(value)).hexdigest()


LOCKED_BYTES = 2_047
"""From the next byte on, hashlib lets other threads run; taking the lock back costs milliseconds beside a busy one."""
SMALL_BYTES = 64 * 1024
"""Up to this size, hashing takes no longer than other threads may wait."""


def hex_digest(content: bytes) -> str:
    """SHA-256 of bytes; a small content is hashed without letting other threads run."""
    size = len(content)
    if size <= LOCKED_BYTES or size > SMALL_BYTES:
        return sha256(content).hexdigest()
    hashed, view = sha256(), memoryview(content)
    for start in range(0, size, LOCKED_BYTES):
        hashed.update(view[start : start + LOCKED_BYTES])
    return hashed.hexdigest()


IN_SLICES = ContextVar("in_slices", default=False)
"""Whether payloads are written in slices: set for requests with a large body, whose writing would stop all threads."""
SLICE_VALUES = 16_384
"""Values that the fast writer writes in one call."""
_BUCKETS = 64


def write_large(payload: Any) -> bytes:
    """The same bytes as the fast writer's, in slices between which other threads run; raises TypeError as it does."""
    return b"".join(_FAST.slices(payload))


class _SliceWriter(NamedTuple):
    """Writes payloads in slices, each with one of the two writers."""

    write: Callable[[Any], bytes]
    comma: bytes
    most: int
    """Values that are written in one call."""

    def slices(self, value: Any) -> Iterator[bytes]:
        """The parts of what the writer makes of the whole."""
        if type(value) is dict and not _is_light([value], self.most):
            keys = _sort_in_slices([*value])
            yield from self._members(b"{}", len(keys), lambda some: {key: value[key] for key in keys[some]}, keys)
        elif type(value) is list and not _is_light([value], self.most):
            yield from self._members(b"[]", len(value), lambda some: value[some], None)
        else:
            yield self.write(value)

    # Any: some members of a list or an object.
    def _members(
        self, brackets: bytes, size: int, take: Callable[[slice], Any], keys: list[str] | None
    ) -> Iterator[bytes]:
        """The members of a container, as many at once as are light together."""
        place, count = 0, self.most
        separator = brackets[:1]
        while place < size:
            some = take(slice(place, place + count))
            if _is_light([some], self.most):
                yield separator + self.write(some)[1:-1]
                place, count = place + count, min(2 * count, self.most)
            elif count > 1:
                count = max(1, count // 8)
                continue
            else:
                (heavy,) = some if keys is None else some.values()
                # An object of one key, so that a key that is not text is refused as the writer refuses it.
                yield separator if keys is None else separator + self.write({keys[place]: None})[1 : -len(b"null}")]
                yield from self.slices(heavy)
                place += 1
            separator = self.comma
        yield brackets[1:]


def _is_light(level: list[Any], left: int) -> bool:
    """Whether so few values are inside that writing them takes no longer than other threads may wait."""
    while level:
        containers = [one for one in level if type(one) is dict or type(one) is list]
        left -= sum(map(len, containers))
        if left < 0:
            return False
        level = [inner for outer in containers for inner in (outer.values() if type(outer) is dict else outer)]
    return True


def _sort_in_slices(keys: list[str]) -> list[str]:
    """The keys in order; of many keys, those between two of a sample at a time."""
    if len(keys) <= SLICE_VALUES:
        return sorted(keys)
    # Hashes of texts differ from process to process, so no sender knows the sample.
    rarity = max(1, len(keys) // _BUCKETS)
    bounds = sorted(key for key in keys if hash(key) % rarity == 0)
    buckets: list[list[str]] = [[] for _ in range(len(bounds) + 1)]
    for key in keys:
        buckets[bisect_right(bounds, key)].append(key)
    if max(map(len, buckets)) == len(keys):
        return sorted(keys)
    return [key for bucket in buckets for key in _sort_in_slices(bucket)]


def payload_digest(payload: Any) -> str | None:
    """SHA-256 of a payload's sorted JSON; None when it is not JSON at all."""
    if payload.__class__ is dict and not payload:
        return EMPTY_DIGEST
    return write_and_digest(payload)[1]


def write_and_digest(payload: Any) -> tuple[bytes | None, str | None]:
    """A payload as `strict_bytes` writes it, or None where that refuses; and its `payload_digest`."""
    # As `strict_bytes` does, whose calls would take as long as the hashing of a small payload.
    try:
        written = write_large(payload) if IN_SLICES.get() else dumps(payload, option=_PLAIN)
        if written.rfind(_NULL) >= 0 and _holds_nan(payload):
            return None, None
    except (TypeError, RecursionError):
        slow = _slow_bytes(payload)
        return None, None if slow is None else hex_digest(slow)
    return written, sha256(written).hexdigest() if len(written) <= LOCKED_BYTES else hex_digest(written)


Written = tuple[bytes | None, bytes | None, bytes | None]
"""Three payloads as `write_and_digest` writes them."""


def write_and_digest_all(
    given: Any, output: Any, metadata: Any
) -> tuple[Written, tuple[str | None, str | None, str | None]]:
    """What `write_and_digest` makes of the three parts of a work, in one call instead of three."""
    if not IN_SLICES.get():
        try:
            one, two, three = dumps(given, option=_PLAIN), dumps(output, option=_PLAIN), dumps(metadata, option=_PLAIN)
        except (TypeError, RecursionError):
            pass
        else:
            if len(one) + len(two) + len(three) > LOCKED_BYTES:
                holds_null = one.rfind(_NULL) >= 0 or two.rfind(_NULL) >= 0 or three.rfind(_NULL) >= 0
                if not (holds_null and _holds_nan([given, output, metadata])):
                    return (one, two, three), (hex_digest(one), hex_digest(two), hex_digest(three))
            # One search in a copy of what is small takes less time than three.
            elif (one + two + three).rfind(_NULL) < 0 or not _holds_nan([given, output, metadata]):
                return (one, two, three), (
                    EMPTY_DIGEST if one == b"{}" else sha256(one).hexdigest(),
                    sha256(two).hexdigest(),
                    EMPTY_DIGEST if three == b"{}" else sha256(three).hexdigest(),
                )
    each = write_and_digest(given), write_and_digest(output), write_and_digest(metadata)
    return (each[0][0], each[1][0], each[2][0]), (each[0][1], each[1][1], each[2][1])


_NULL = b"null"
"""Searched for from the end, which takes a quarter of the time."""
EMPTY_DIGEST = sha256(b"{}").hexdigest()
"""Of a payload that has nothing in it."""


def payload_bytes(payload: Any) -> bytes | None:
    """A payload's sorted JSON; None when it is not JSON at all."""
    try:
        return strict_bytes(payload)
    except (TypeError, RecursionError):
        return _slow_bytes(payload)


def strict_bytes(payload: Any) -> bytes | None:
    """A payload's sorted JSON; None where it holds NaN.

    Raises TypeError for what is not JSON of at most 254 levels with integers of at most 64 bits.
    """
    written = write_large(payload) if IN_SLICES.get() else dumps(payload, option=_PLAIN)
    # The writer turns NaN into null, so a null may have been NaN.
    return None if written.rfind(_NULL) >= 0 and _holds_nan(payload) else written


def _slow_bytes(payload: Any) -> bytes | None:
    """The slow writer, for integers beyond 64 bits; None for a payload that is not JSON."""
    try:
        written = b"".join(_EXACT.slices(payload)) if IN_SLICES.get() else _write_exactly(payload)
    except (TypeError, ValueError, RecursionError):
        return None
    # It would write the key 1 as "1", so that two different payloads had the same bytes.
    keys = (key for part in _parts(payload) if isinstance(part, Mapping) for key in part)
    return written if all(isinstance(key, str) for key in keys) else None


def _write_exactly(payload: Any) -> bytes:
    return json.dumps(payload, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


_FAST = _SliceWriter(write=lambda value: dumps(value, option=_PLAIN), comma=b",", most=SLICE_VALUES)
_CANONICAL = _SliceWriter(write=lambda value: dumps(value, option=_SORTED), comma=b",", most=SLICE_VALUES)
_EXACT = _SliceWriter(write=_write_exactly, comma=b", ", most=SLICE_VALUES // 8)


def _holds_nan(payload: Any) -> bool:
    return any(isinstance(part, float) and not math.isfinite(part) for part in _parts(payload))


def _parts(payload: Any) -> Iterator[Any]:
    """Everything inside a payload, itself included."""
    waiting = [payload]
    while waiting:
        value = waiting.pop()
        yield value
        # First, because most parts are text and testing for a mapping is slow.
        if isinstance(value, str):
            continue
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)


def _floatless(value: Any) -> Any:
    if type(value) is int and -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        return value
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal):
        return _number(Decimal(repr(value)) if isinstance(value, float) else Decimal(value))
    if isinstance(value, Mapping):
        return {_key(key): _floatless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_floatless(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not JSON")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key must be text, not {type(key).__name__}")
    # A key that begins with $ gets a second one, so that it differs from ours.
    return f"${key}" if key.startswith("$") else key


def _number(number: Decimal) -> int | dict[str, str]:
    """One form for one number: 2000, 2000.0 and 2E+3 must give one digest."""
    if number == number.to_integral_value() and number.copy_abs() <= LARGEST_INTEGER:
        return int(number)
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is not a finite number")  # noqa: TRY004 - NaN is a value, not a type
    # By hand, because normalize() would round to the context's precision.
    written = "".join(map(str, digits))
    shortest = written.rstrip("0")
    return {"$decimal": f"{'-' * sign}{shortest}E{exponent + len(written) - len(shortest)}"}


def from_canonical(written: bytes) -> Any:
    """Read back what `canonical` wrote, with every digit; raises ValueError for anything else."""
    return _restore(loads(written))


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$decimal"}:
            return _decimal(value["$decimal"])
        return {_name(key): _restore(item) for key, item in value.items()}
    return [_restore(item) for item in value] if isinstance(value, list) else value


def _name(key: str) -> str:
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        raise ValueError(f"{key!r} is not a key of a canonical document")
    return key[1:]


def _decimal(text: Any) -> Number:
    if not isinstance(text, str):
        raise ValueError("a decimal must be text")  # noqa: TRY004 - wrong content, not a wrong call
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = _NO_NUMBER
    if not number.is_finite():
        raise ValueError(f"{text[:40]!r} is not a number")
    return plain(number)


_NO_NUMBER = Decimal("NaN")
