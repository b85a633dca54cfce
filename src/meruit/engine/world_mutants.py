"""A good run's world, spoilt in many small ways: criteria worth having notice."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from meruit.model.world import Encoding, Item, SourceKind, World, item

MAX_OF_AN_ITEM = 40
"""Fields, or parts of a message, of one item that are spoilt."""
MAX_ITEMS = 25
"""Changed items of one source that are spoilt."""
_NOT_TELLING = frozenset({"id", "meta", "resourceType", "text", "created_at", "history"})
"""Top-level fields that say nothing about what was done."""
_SEPARATORS = {SourceKind.HL7: "\r", SourceKind.X12: "~"}


class WorldMutant(NamedTuple):
    """A spoilt world, and what was done to it."""

    name: str
    world: World
    harm: str
    """`undone`, `twice`, `dropped`, `changed`, `touched` or `deleted`."""


def world_mutants(before: World, after: World) -> Iterator[WorldMutant]:
    """Every mutant of the world after a good run: what was done undone, done twice, done wrongly, and more done."""
    for name, snapshot in after.items():
        was = {one.key: one for one in before[name].items} if name in before else {}
        now = {one.key: one for one in snapshot.items}
        changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
        for key in changed[:MAX_ITEMS]:
            yield from _of_change(after, name, key, was.get(key), now.get(key))
        untouched = [now[key] for key in sorted(now) if key not in changed]
        yield from _beside(after, name, untouched)


def _of_change(after: World, name: str, key: str, was: Item | None, now: Item | None) -> Iterator[WorldMutant]:
    where = f"{name}:{key}"
    yield WorldMutant(f"{where} undone", _with(after, name, key, was), "undone")
    if now is None:
        return
    if was is None and after[name].kind is not SourceKind.FILES:
        twin = _twin(now, after[name].kind)
        yield WorldMutant(f"{where} done twice", _with(after, name, twin.key, twin), "twice")
    for what, harm, content in islice(_spoilt(now, after[name].kind), MAX_OF_AN_ITEM):
        spoilt = item(key, content, version=f"{now.version}-spoilt", facts=now.facts)
        yield WorldMutant(f"{where} {what}", _with(after, name, key, spoilt), harm)


def _beside(after: World, name: str, untouched: list[Item]) -> Iterator[WorldMutant]:
    """Things that nobody asked for: one that was not to be touched is changed, and is deleted."""
    for one in untouched[:1]:
        touched = Item(one.key, f"{one.version}-touched", one.body, one.encoding, one.facts)
        yield WorldMutant(f"{name}:{one.key} touched", _with(after, name, one.key, touched), "touched")
        yield WorldMutant(f"{name}:{one.key} deleted", _with(after, name, one.key, None), "deleted")


def _with(world: World, name: str, key: str, one: Item | None) -> World:
    kept = [other for other in world[name].items if other.key != key]
    items = sorted([*kept, *([] if one is None else [one])], key=lambda other: other.key)
    return {**world, name: msgspec.structs.replace(world[name], items=items)}


def _twin(one: Item, kind: SourceKind) -> Item:
    """The same again under another key; what is numbered gets the last number."""
    numbered = one.key.isdigit()
    key = "9" * len(one.key) if numbered else f"{one.key}-twin"
    body = one.body
    if kind is SourceKind.FHIR and body is not None and one.encoding is Encoding.TEXT:
        body = body.replace(f'"{one.key.rpartition("/")[2]}"', f'"{key.rpartition("/")[2]}"')
    return Item(key, f"{one.version}-twin", body, one.encoding, one.facts)


def _spoilt(one: Item, kind: SourceKind) -> Iterator[tuple[str, str, bytes]]:
    """The item's content with one thing wrong, each with what it is."""
    if one.encoding is not Encoding.TEXT or one.body is None:
        return
    if kind in _SEPARATORS:
        yield from _without_parts(one.body, _SEPARATORS[kind])
        return
    try:
        document = json.loads(one.body, parse_float=Decimal)
    except ValueError:
        yield "emptied", "changed", b""
        return
    if isinstance(document, Mapping):
        yield from _without_fields(dict(document))


def _without_parts(body: str, separator: str) -> Iterator[tuple[str, str, bytes]]:
    parts = body.split(separator)
    for number, part in enumerate(parts):
        if part.strip() and number:
            left = separator.join([*parts[:number], *parts[number + 1 :]])
            yield f"without {part.strip()[:20]!r}", "dropped", left.encode()


def _without_fields(document: dict[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    for name, value in document.items():
        if name in _NOT_TELLING:
            continue
        yield f"without {name}", "dropped", _written({key: one for key, one in document.items() if key != name})
        for path, wrong in _wrong(value):
            yield f"{name}{path} changed", "changed", _written({**document, name: wrong})


def _wrong(value: Any) -> Iterator[tuple[str, Any]]:
    """The value with one leaf changed."""
    match value:
        case bool():
            yield "", not value
        case int() | Decimal():
            yield "", value * 2 + 1
        case str():
            yield "", f"{value}x"
        case dict():
            for name, inner in value.items():
                yield from ((f".{name}{path}", {**value, name: wrong}) for path, wrong in _wrong(inner))
        case list():
            for number, inner in enumerate(value):
                for path, wrong in _wrong(inner):
                    yield f"[{number}]{path}", [*value[:number], wrong, *value[number + 1 :]]
        case _:
            return


def _written(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document, enc_hook=_as_number)


def _as_number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
