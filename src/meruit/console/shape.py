"""Words and shapes for values: marks of verdicts, ages, ids, trees of JSON and differences of texts."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Literal
from zoneinfo import ZoneInfo

from jinja2 import Environment
from rapidfuzz.distance import Indel

from meruit.model.numbers import in_units

MAX_NODES = 400
"""Values of one JSON tree that a page shows; the rest is a link away."""
MAX_CHILDREN = 100
MAX_TREE_DEPTH = 12
MAX_TEXT = 4_000
"""Characters of one text of a tree."""
MAX_SHOWN = 40_000
"""Characters of a text that a page shows; the rest is a download away."""
MAX_WORDS = 12_000
"""Words of a text that are compared one by one; longer texts are compared by lines."""
SHORT_ID = 14
ID_START, ID_END = 8, 5
"""Characters of a long id that are shown. Ids begin with their time, so that only their ends differ."""

_TONES = {
    "pass": "pass",
    "partial": "partial",
    "fail": "fail",
    "inconclusive": "open",
    "error": "error",
    "met": "pass",
    "not_met": "fail",
    "indeterminate": "open",
    "excluded": "",
    "verified": "pass",
    "pending": "open",
    "warning": "partial",
    "not_available": "error",
    "data_not_available": "error",
}
_WORDS = {
    "not_met": "not met",
    "indeterminate": "open",
    "not_available": "not available",
    "data_not_available": "no data",
}
_COMPARISONS = {
    "gte": "≥",
    "lte": "≤",
    "gt": ">",
    "lt": "<",
    "eq": "=",
    "neq": "≠",
    "in_range": "between",
    "contains_all": "all of",
    "contains_any": "any of",
}
_UNITS = ((86_400 * 2, 86_400, "d"), (3_600, 3_600, "h"), (60, 60, "min"), (1, 1, "s"))
_UNIT_WORDS = {"d": "day", "h": "hour", "min": "minute", "s": "second"}
_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,32}){0,2}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_WORD = re.compile(r"\s+|[^\W_]+|.", re.UNICODE | re.DOTALL)


def tone(status: object) -> str:
    """The class of a verdict or status: its colour and mark."""
    return _TONES.get(str(status), "")


def word(status: object) -> str:
    """A status as people say it."""
    text = str(status)
    return _WORDS.get(text, text.replace("_", " "))


def age(then: datetime, now: datetime) -> str:
    """How long ago: `40 min`."""
    return span(max(now - then, timedelta()))


def span(length: timedelta) -> str:
    """A length of time in its largest unit: `2 d`."""
    seconds = int(length.total_seconds())
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{seconds // unit:,} {name}"
    return "0 s"


def span_in_words(length: timedelta) -> str:
    """A length of time for a sentence: `2 days`."""
    number, unit = span(length).split(" ")
    name = _UNIT_WORDS[unit]
    return f"{number} {name}" if number == "1" else f"{number} {name}s"


_ZONE: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


@lru_cache(maxsize=256)
def find_zone(name: str) -> tzinfo:
    """The time zone of this name, such as Europe/Oslo; UTC where this machine does not know it."""
    if _ZONE_NAME.fullmatch(name) is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return UTC


def show_times_in(zone: tzinfo) -> None:
    """Show the times of the page that is made now in this zone."""
    _ZONE.set(zone)


def exact(moment: datetime) -> str:
    """The exact time, for those who need it."""
    return moment.astimezone(_ZONE.get()).strftime("%Y-%m-%d %H:%M:%S %Z")


def _zone_name(moment: datetime) -> str:
    return moment.tzname() or "UTC"


def clock(moment: datetime) -> str:
    """The time of day."""
    return moment.astimezone(_ZONE.get()).strftime("%H:%M:%S")


def day_and_clock(moment: datetime) -> str:
    """The day and the time: `3 Nov 14:05`."""
    here = moment.astimezone(_ZONE.get())
    return f"{here.day} {here:%b %H:%M}"


def readable(text: str) -> str:
    """A text as it is, but a moment as a page writes moments."""
    if _MOMENT.fullmatch(text) is None:
        return text
    try:
        return exact(datetime.fromisoformat(text))
    except ValueError:
        return text


def short_id(text: str) -> str:
    """The start and the end of an id, enough to distinguish two."""
    return text if len(text) <= SHORT_ID else f"{text[:ID_START]}…{text[-ID_END:]}"


def show_units(micros: int, places: int = 2) -> str:
    """Millionths as an exact amount with at least two decimals, or as many as its column has: `0.10`."""
    whole, _, rest = in_units(abs(micros)).partition(".")
    return f"{'−' if micros < 0 else ''}{int(whole):,}.{rest.ljust(places, '0')}"


def count_places(amounts: Sequence[int]) -> int:
    """The decimals that the amounts of one column need, in millionths; at least two."""
    return max(2, *(len(in_units(abs(one)).partition(".")[2]) for one in amounts), 0)


def show_bytes(size: int) -> str:
    """A size in the unit that people read: `3.2 MB`."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,} B"


def plural(number: int, one: str, several: str = "") -> str:
    """`1 case`, `3 cases`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


@dataclass(frozen=True, slots=True)
class JsonNode:
    """One value of a JSON document, as a page shows it."""

    key: str
    kind: Literal["object", "array", "string", "literal"]
    text: str
    path: str
    children: tuple["JsonNode", ...] = ()
    left_out: int = 0
    """Children that the page does not show."""
    marks: tuple[tuple[str, str], ...] = ()
    """Tone and word of each criterion that this value decided."""
    is_open: bool = True


@dataclass(slots=True)
class _Budget:
    left: int = MAX_NODES
    characters: int = MAX_SHOWN
    marks: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)


# Any: a JSON document.
def json_tree(value: Any, name: str = "", marks: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> JsonNode:
    """A JSON document as a tree of bounded size; `marks` are by path, such as `output.text`."""
    return _node(value, "", name, _Budget(marks=marks or {}), 0)


def _node(value: Any, key: str, path: str, budget: _Budget, depth: int) -> JsonNode:
    budget.left -= 1
    marks = tuple(budget.marks.get(path, ()))
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        children: list[JsonNode] = []
        for name, one in islice(pairs, MAX_CHILDREN):
            if budget.left <= 0 or depth >= MAX_TREE_DEPTH:
                break
            inside = f"{path}[{name}]" if isinstance(value, list) else f"{path}.{name}" if path else str(name)
            children.append(_node(one, str(name), inside, budget, depth + 1))
        kind: Literal["object", "array"] = "object" if isinstance(value, dict) else "array"
        open_ = depth < 2 or any(child.marks or (child.children and child.is_open) for child in children)
        return JsonNode(
            key=key,
            kind=kind,
            text=f"{len(value):,}",
            path=path,
            children=tuple(children),
            left_out=len(value) - len(children),
            marks=marks,
            is_open=open_,
        )
    if isinstance(value, str):
        room = max(0, min(MAX_TEXT, budget.characters))
        text = value if len(value) <= room else f"{value[:room]}…"
        budget.characters -= len(text)
        return JsonNode(key, "string", json.dumps(text, ensure_ascii=False), path, marks=marks)
    return JsonNode(key, "literal", json.dumps(value), path, marks=marks)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of two texts: the same in both, or only in one of them."""

    kind: Literal["same", "old", "new"]
    text: str


def text_difference(old: str, new: str) -> list[TextPiece]:
    """The difference of two texts, word by word; of the beginning of each where it is very long."""
    old, new = shorten(old), shorten(new)
    before, after = _tokens(old), _tokens(new)
    if len(before) > MAX_WORDS or len(after) > MAX_WORDS:
        before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    return [*_pieces(before, after)]


def line_difference(old: str, new: str) -> list[TextPiece]:
    """The difference of two texts, line by line; of the beginning of each where it is very long."""
    return [*_pieces(shorten(old).splitlines(), shorten(new).splitlines(), each=True)]


def shorten(text: str) -> str:
    """A text, or the beginning of a very long one and how much more there is."""
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}\n… and {len(text) - MAX_SHOWN:,} more characters, which the download has"


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text)


def _pieces(before: Sequence[str], after: Sequence[str], *, each: bool = False) -> Iterator[TextPiece]:
    gone: list[str] = []
    come: list[str] = []
    for step in Indel.opcodes(before, after):
        if step.tag != "equal":
            gone += before[step.src_start : step.src_end]
            come += after[step.dest_start : step.dest_end]
            continue
        # What was removed comes before what was added in its place.
        yield from (*_join("old", gone, each=each), *_join("new", come, each=each))
        gone, come = [], []
        yield from _join("same", after[step.dest_start : step.dest_end], each=each)
    yield from (*_join("old", gone, each=each), *_join("new", come, each=each))


def _join(kind: Literal["same", "old", "new"], parts: Sequence[str], *, each: bool) -> Iterator[TextPiece]:
    if each:
        yield from (TextPiece(kind, part) for part in parts)
    elif parts:
        yield TextPiece(kind, "".join(parts))


# Any: a JSON document.
def main_text(value: Any, names: Collection[str] = ("text", "answer", "output", "content", "message")) -> str | None:
    """The one text that a payload is about; None where it is more than a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        texts = [(key, one) for key, one in value.items() if isinstance(one, str)]
        named = [one for key, one in texts if key in names]
        if named:
            return named[0]
        if len(value) == 1 and texts:
            return texts[0][1]
    return None


def add_to(environment: Environment) -> None:
    """Make these words and shapes known to templates."""
    environment.filters.update(
        tone=tone,
        word=word,
        age=age,
        span=span,
        exact=exact,
        readable=readable,
        clock=clock,
        zone_name=_zone_name,
        day_and_clock=day_and_clock,
        short_id=short_id,
        plural=plural,
        pretty=_pretty,
        units=show_units,
        bytes=show_bytes,
        places=count_places,
        percentage=_percentage,
    )
    environment.filters.update(show_value=show_value, show_comparison=show_comparison)
    environment.globals.update(json_tree=json_tree, text_difference=text_difference, line_difference=line_difference)


# Any: the value or threshold of a criterion is JSON.
def show_value(value: Any) -> str:  # noqa: PLR0911 - one for each kind
    """A value as people read it: a number with few digits, a range, a list, or that it is unknown."""
    match value:
        case None:
            return "not measured"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case str():
            return value
        case {"min": low, "max": high} if len(value) == 2:
            return f"{show_value(low)} and {show_value(high)}"
        case list():
            return ", ".join(show_value(one) for one in value)
        case _:
            return json.dumps(value, ensure_ascii=False, default=str)


def show_comparison(comparison: object) -> str:
    """The sign of a comparison."""
    return "" if comparison is None else _COMPARISONS.get(str(comparison), word(comparison))


def _percentage(share: str | Decimal) -> str:
    """A share of the terms, exactly: `15 %`."""
    return f"{(100 * Decimal(share)).normalize():f}\u00a0%"


# Any: a JSON document.
def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
