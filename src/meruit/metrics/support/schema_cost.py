"""How much work a JSON Schema can cause, known before any of it is done.

A validator cannot be interrupted, so what it may cost is bounded beforehand: some keywords apply a schema
to the same value ($ref, allOf, not…), others to a value further down (properties, items…). The bound adds up
what is applied at each value and what was applied above it, since `uniqueItems` and error reports read a
value to its end. One unit stands for 25 ns or less.
"""

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain, repeat
from operator import or_
from typing import Any, NamedTuple

import msgspec

from meruit.errors import AuthorError
from meruit.metrics.support.schema_graph import SchemaReader, Subschema

MAX_UNFOLDED = 1_000_000
"""Units that a schema may cost for one byte of a document, its references written out."""
MAX_MARKS = 100_000
"""Places that `unevaluated…` keywords may make the validator copy when it is built."""
MAX_EVALUATION_DEPTH = 1_000
"""Schemas applied inside one another; each takes up to half a kilobyte of the machine's stack."""
MAX_COST = 100_000_000
"""Units that one validation may cost: seconds at worst, and nearly always far less."""
MAX_PARTS = 100_000
"""Places that apply to the same value as another, over all places."""
MAX_STEPS = 500_000
"""Steps of our own that may be spent on finding the cost for one document."""

_CHARS_PER_UNIT = 16
"""For copying text."""


class SubschemaUse(NamedTuple):
    """A place that is applied to a value, and how often: to judge it, and to mark what was evaluated."""

    place: Subschema
    judged: int
    marked: int


class SchemaSpread(msgspec.Struct, frozen=True):
    """All that applying one place to one value applies to that same value."""

    parts: tuple[SubschemaUse, ...]
    own: int
    reads: int
    text: int
    names: int
    height: int


class ValidationCost(msgspec.Struct, frozen=True):
    """What validating one document costs at most."""

    units: int
    checks: int
    """How much of it may end in an error report."""
    copies: int
    """Values that these reports would copy."""


@dataclass(frozen=True, slots=True)
class SchemaCostRate:
    """What a place costs at most, all that it applies further down included, and how deep that goes."""

    own: int
    """Units for each value in a document."""
    text: int
    """Units for each character."""
    height: int

    def __add__(self, other: "SchemaCostRate") -> "SchemaCostRate":
        """Both are applied to the same value."""
        return SchemaCostRate(self.own + other.own, self.text + other.text, max(self.height, other.height))

    def __mul__(self, times: int) -> "SchemaCostRate":
        """It is applied so many times."""
        return SchemaCostRate(self.own * times, self.text * times, self.height)

    def __or__(self, other: "SchemaCostRate") -> "SchemaCostRate":
        """Either is applied."""
        return SchemaCostRate(max(self.own, other.own), max(self.text, other.text), max(self.height, other.height))


NOTHING = SchemaCostRate(0, 0, 0)
ALLOWED = ValidationCost(units=MAX_COST, checks=sys.maxsize, copies=sys.maxsize)


class SchemaGraph:
    """The places of one schema, put in order, and what they can cost."""

    def __init__(self, reader: SchemaReader, *, units_per_char: int) -> None:
        self.places = reader.places
        self.root = id(reader.schema)
        self._per_char = units_per_char
        self._spreads: dict[int, SchemaSpread] = {}
        self._parts = 0
        order, cycle = _topological_order(self.places, lambda place: self.places[place].here)
        if cycle is not None:
            raise AuthorError(
                f"{self.places[cycle].where or 'the top'} of the schema refers to itself for the same value, "
                "so it says nothing; remove the reference"
            )
        order.reverse()
        self._by_rank = order
        self._rank = {place: rank for rank, place in enumerate(order)}
        self._refuse_many_marks()
        self.rate = self._rate()
        """None where a schema holds itself: then the cost depends on the document."""

    def spread(self, start: int) -> SchemaSpread:
        """What applying this place applies to the same value, each part once with its count."""
        if start in self._spreads:
            return self._spreads[start]
        counts, heights, queue = {start: (1, 0)}, {start: 1}, [self._rank[start]]
        parts: list[SubschemaUse] = []
        while queue:
            identity = self._by_rank[heapq.heappop(queue)]
            place, (judged, marked) = self.places[identity], counts[identity]
            if place.marks:
                marked += judged
            parts.append(SubschemaUse(place=place, judged=judged, marked=marked))
            for target in place.here:
                if target not in counts:
                    heapq.heappush(queue, self._rank[target])
                before = counts.get(target, (0, 0))
                counts[target] = before[0] + judged + marked, before[1] + marked
                heights[target] = max(heights.get(target, 0), heights[identity] + 1 + place.marks)
        self._parts += len(parts)
        if self._parts > MAX_PARTS:
            raise AuthorError("the schema's references are too entangled; write it with fewer of them")
        times = [(part.place, part.judged + part.marked) for part in parts]
        spread = self._spreads[start] = SchemaSpread(
            parts=tuple(parts),
            own=sum(place.own * count for place, count in times),
            reads=sum(place.reads * count for place, count in times),
            text=sum(place.text * count for place, count in times) * self._per_char,
            names=sum(place.names * count for place, count in times) * self._per_char,
            height=max(heights.values()),
        )
        return spread

    def _refuse_many_marks(self) -> None:
        marking = (place for place in self.places if self.places[place].marks)
        copies = sum(part.judged + part.marked for place in marking for part in self.spread(place).parts)
        if copies > MAX_MARKS:
            raise AuthorError(f"unevaluated… keywords multiply to {copies} places; the limit is {MAX_MARKS}")

    def _rate(self) -> SchemaCostRate | None:
        """What any value can cost, from the leaves up."""
        order, cycle = _topological_order([self.root], self._below)
        if cycle is not None:
            return None
        rates: dict[int, SchemaCostRate] = {}
        for place in order:
            rate = rates[place] = self._rate_of(place, rates)
            if rate.own + rate.text > MAX_UNFOLDED:
                raise AuthorError(
                    f"the schema unfolds to more than {MAX_UNFOLDED} steps at one value; "
                    "let its definitions refer to each other less often"
                )
            if rate.height > MAX_EVALUATION_DEPTH:
                raise AuthorError(f"the schema's references nest more than {MAX_EVALUATION_DEPTH} deep")
        return rates[self.root]

    def _rate_of(self, start: int, rates: dict[int, SchemaCostRate]) -> SchemaCostRate:
        spread, below = self.spread(start), NOTHING
        for place, judged, marked in spread.parts:
            names = _either(rates, place.named.values(), place.other_names) + _all(rates, place.any_name)
            items = _either(rates, place.first_items, place.other_items) + _all(rates, place.any_item)
            name = NOTHING if place.name is None else rates[place.name]
            below += (names | items) * judged + _all(rates, place.again) * marked + name * (judged + marked)
        return SchemaCostRate(
            own=max(spread.own, below.own) + spread.reads,
            text=max(spread.text, spread.names + below.text),
            height=spread.height + below.height,
        )

    def _below(self, start: int) -> list[int]:
        return [place for part in self.spread(start).parts for place in part.place.below()]

    def light_bytes(self) -> int:
        """How long a document may be that is always within the limit, with any content; 0 where that is not known."""
        return 0 if self.rate is None else ALLOWED.units // max(1, self.rate.own + self.rate.text)

    def affords(self, document: Any, written: bytes, limit: ValidationCost = ALLOWED) -> bool:
        """Whether validating the document, of which the JSON is given too, stays within the limit."""
        return self.affords_any(written, limit) or self.walk(document, written, limit)

    def affords_any(self, written: bytes, limit: ValidationCost) -> bool:
        """Whether the limit holds for every document with as many characters, commas and brackets."""
        if self.rate is None:
            return False
        own, text = self.rate.own, self.rate.text
        if limit is ALLOWED and len(written) <= self.light_bytes():
            return True
        # Counted once: that takes as long as the validation.
        brackets, chars = _count_brackets(written), len(written)
        values = _count_values(written, brackets)
        # A level of the document takes one of the schema's height or more.
        levels = min(self.rate.height, 1 + brackets)
        return (
            (own + 1) * values <= limit.checks
            and own * values + text * chars + own * chars // _CHARS_PER_UNIT <= limit.units
            and own * levels * (values + chars // _CHARS_PER_UNIT) <= limit.copies
        )

    def walk(self, document: Any, written: bytes, limit: ValidationCost) -> bool:
        """Walk the document as the validator would, until a limit is reached."""
        units = checks = copies = steps = reread = copied = visited = seen = 0
        # Many values of a document are alike in what applies to them.
        loads: dict[_Applied, _SchemaLoad] = {}
        # Each value with what applies to it, and what came before: depth, reads and checks.
        stack = [(document, frozenset({(self.root, 1)}), 0, 0, 0)]
        while stack:
            value, applied, depth, reads, above = stack.pop()
            if applied not in loads:
                loads[applied] = _SchemaLoad(self._spreads, applied)
            load = loads[applied]
            reads += load.reads
            depth += load.height
            above += load.own
            chars = inside = text = 0
            if isinstance(value, str):
                chars = len(value)
                text = chars * load.text
            elif isinstance(value, dict):
                inside = len(value)
                text = load.names * inside + load.name_chars * sum(map(len, value))
            elif isinstance(value, list | tuple):
                inside = len(value)
            visited += 1
            seen += chars
            units += load.own + reads + text + reads * chars // _CHARS_PER_UNIT
            checks += load.own
            copies += above * (1 + chars // _CHARS_PER_UNIT)
            steps += 1 + len(load.parts) * (1 + inside)
            if units > limit.units or checks + inside > limit.checks or copies > limit.copies:
                return False
            if steps > MAX_STEPS or depth > MAX_EVALUATION_DEPTH:
                return False
            for item, below in load.apply_to_children(value) if inside else ():
                if below:
                    stack.append((item, below, depth, reads, above))
                else:
                    reread, copied = max(reread, reads), max(copied, above)
        # A value without a schema of its own is read or copied only for its parents.
        rest = _count_values(written, _count_brackets(written)) - visited + (len(written) - seen) // _CHARS_PER_UNIT
        return units + reread * rest <= limit.units and copies + copied * rest <= limit.copies


_Applied = frozenset[tuple[int, int]]
"""The places that apply to a value, each with how often."""


class _SchemaLoad:
    """What some places cost at one value, and what they apply further down."""

    __slots__ = ("_below", "_positions", "height", "name_chars", "names", "own", "parts", "reads", "text")

    def __init__(self, spreads: Mapping[int, SchemaSpread], applied: _Applied) -> None:
        here = [(spreads[place], times) for place, times in applied]
        self.parts = [(part, times) for spread, times in here for part in spread.parts]
        self.own = sum(spread.own * times for spread, times in here)
        self.reads = sum(spread.reads * times for spread, times in here)
        self.height = max(spread.height for spread, _ in here)
        self.text = sum(spread.text * times for spread, times in here)
        """Units for each character of a text."""
        named = [
            (spreads[place.name], times * (judged + marked))
            for (place, judged, marked), times in self.parts
            if place.name is not None
        ]
        self.names = sum(spread.own * times for spread, times in named)
        """Units for each name of an object."""
        self.name_chars = sum(spread.names * times for spread, times in here)
        self.name_chars += sum(spread.text * times for spread, times in named)
        """Units for each character of such a name."""
        self._positions = max(len(part.place.first_items) for part, _ in self.parts)
        """Items from this position on are alike."""
        self._below: dict[str | int, _Applied] = {}

    def apply_to_children(self, value: Any) -> Iterator[tuple[Any, _Applied]]:
        """The direct children of an object or a list, each with what applies to it."""
        below, last = self._below, self._positions
        keys = value if isinstance(value, dict) else chain(range(last), repeat(last))
        for key, item in zip(keys, value.values() if isinstance(value, dict) else value, strict=False):
            applied = below.get(key)
            if applied is None:
                applied = below[key] = frozenset(_count_subschemas(self.parts, key).items())
            yield item, applied


def _count_brackets(written: bytes) -> int:
    """The lists and objects in a JSON text, or more."""
    return written.count(b"[") + written.count(b"{")


def _count_values(written: bytes, brackets: int) -> int:
    """The values in a JSON text, or more: each but the first comes after a comma or a bracket."""
    return 1 + written.count(b",") + brackets


def _count_subschemas(parts: list[tuple[SubschemaUse, int]], key: str | int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for (place, judged, marked), times in parts:
        for target in place.of_name(key) if isinstance(key, str) else place.of_item(key):
            counts[target] = counts.get(target, 0) + judged * times
        if marked:
            for target in place.again:
                counts[target] = counts.get(target, 0) + marked * times
    return counts


def _topological_order(starts: Iterable[int], after: Callable[[int], Iterable[int]]) -> tuple[list[int], int | None]:
    """Everything reachable, each after all it leads to; and one member of a cycle, if there is any."""
    done: dict[int, bool] = {}
    order: list[int] = []
    cycle: int | None = None
    for start in starts:
        stack = [(start, iter(after(start)))] if start not in done else []
        done.setdefault(start, False)
        while stack:
            current, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                done[current] = True
                order.append(current)
            elif following not in done:
                done[following] = False
                stack.append((following, iter(after(following))))
            elif not done[following]:
                cycle = following
    return order, cycle


def _all(rates: dict[int, SchemaCostRate], places: Iterable[int]) -> SchemaCostRate:
    return sum((rates[place] for place in places), start=NOTHING)


def _either(rates: dict[int, SchemaCostRate], one_of: Iterable[int | None], others: Iterable[int]) -> SchemaCostRate:
    """A value gets one of the named schemas, or else all the others."""
    return reduce(or_, (rates[place] for place in one_of if place is not None), _all(rates, others))
