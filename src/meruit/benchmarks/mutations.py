"""Mutants of a good run's final state: small mistakes that useful criteria notice."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from meruit.benchmarks.vital_fields import VitalField, vital_json_field, vital_json_part, vital_segment_field
from meruit.model.environment import Encoding, EnvironmentState, Item, SourceKind, make_item

MAX_OF_AN_ITEM = 40
"""How many fields, or parts of a message, of one item are mutated."""
MAX_VITAL = 400
"""How many of them are mutated at most, where more are vital."""
MAX_ITEMS = 25
"""How many changed items of one source are mutated."""
OF_A_KIND = 2
"""How many untouched items of one type, resource or folder are duplicated."""
_NOT_TELLING = frozenset({"id", "meta", "resourceType", "text", "created_at", "history"})
"""Top-level fields that do not describe what was done."""
_SEPARATORS = {SourceKind.HL7: ("\r", "|"), SourceKind.X12: ("~", "*")}
"""The usual segment end and field separator."""
_ENVELOPE = frozenset({"MSH", "ISA", "GS", "ST", "SE", "GE", "IEA"})
"""Segments whose fields are about the message and not its content."""


class EnvironmentMutant(msgspec.Struct, frozen=True):
    """A mutated state, and what was mutated."""

    name: str
    state: EnvironmentState
    harm: str
    """`undone`, `twice`, `dropped`, `changed`, `touched`, `deleted` or `added`."""
    vital: VitalField | None = None
    """What the field is about that was dropped or changed, where a mistake in it harms."""
    source: str = ""
    key: str | None = None
    """The item that was mutated; None where the mutant is of a whole source."""


GRAVE = frozenset({"undone", "twice", "touched", "deleted", "added"})
"""Whether criteria must notice it; a field that no criterion checks may be intended."""


def environment_mutants(before: EnvironmentState, after: EnvironmentState) -> Iterator[EnvironmentMutant]:
    """Build every mutant of the state after a good run: work undone, repeated, done wrongly, and extra work."""
    for name, snapshot in after.items():
        was = {one.key: one for one in before[name].items} if name in before else {}
        now = {one.key: one for one in snapshot.items}
        changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
        if snapshot.kind is SourceKind.ANSWER:
            if now:
                yield EnvironmentMutant(name=f"{name} undone", state=_without(after, name, list(now)), harm="undone")
            continue
        if snapshot.kind is SourceKind.VOICE:
            yield from _of_call(after, name, [key for key in changed if key in now])
            continue
        for key in changed[:MAX_ITEMS]:
            yield from _of_change(after, name, key, was.get(key), now.get(key))
        untouched = [now[key] for key in sorted(now) if key not in changed]
        yield from _beside(after, name, untouched)


def _of_change(
    after: EnvironmentState, name: str, key: str, was: Item | None, now: Item | None
) -> Iterator[EnvironmentMutant]:
    where = f"{name}:{key}"
    yield EnvironmentMutant(
        name=f"{where} undone", state=_with(after, name, key, was), harm="undone", source=name, key=key
    )
    if now is None:
        return
    if was is None:
        twin = _twin(now, after[name].kind)
        state = _with(after, name, twin.key, twin)
        yield EnvironmentMutant(name=f"{where} done twice", state=state, harm="twice", source=name, key=twin.key)
    # Vital fields come first, so that a long item leaves out none of them.
    found = sorted(_item_mutations(now, after[name].kind), key=lambda mutation: mutation.vital is None)
    vital = sum(mutation.vital is not None for mutation in found)
    for mutation in found[: min(max(vital, MAX_OF_AN_ITEM), MAX_VITAL)]:
        spoilt = make_item(key, mutation.content, version=f"{now.version}-spoilt", facts=now.facts)
        state = _with(after, name, key, spoilt)
        yield EnvironmentMutant(
            name=f"{where} {mutation.name}", state=state, harm=mutation.harm, vital=mutation.vital, source=name, key=key
        )


def _of_call(after: EnvironmentState, name: str, lines: list[str]) -> Iterator[EnvironmentMutant]:
    """A call is one action; a turn of it may be small talk, and may be repeated."""
    if lines:
        yield EnvironmentMutant(name=f"{name} undone", state=_without(after, name, lines), harm="undone")
    for key in lines[:MAX_ITEMS]:
        yield EnvironmentMutant(name=f"{name} without {key}", state=_without(after, name, [key]), harm="dropped")


def _beside(after: EnvironmentState, name: str, untouched: list[Item]) -> Iterator[EnvironmentMutant]:
    """Build mutants with extra work: something of each kind is changed, deleted and added."""
    several: dict[str, list[Item]] = {}
    for one in untouched:
        several.setdefault(one.key.rpartition("/")[0], []).append(one)
    for alike in several.values():
        one, kind = alike[0], after[name].kind
        touched = Item(
            key=one.key, version=f"{one.version}-touched", body=one.body, encoding=one.encoding, facts=one.facts
        )
        added = ((twin.key, "added", twin) for twin in (_twin(other, kind) for other in alike[:OF_A_KIND]))
        for key, harm, item in ((one.key, "touched", touched), (one.key, "deleted", None), *added):
            state = _with(after, name, key, item)
            yield EnvironmentMutant(name=f"{name}:{key} {harm}", state=state, harm=harm, source=name, key=key)


def _without(state: EnvironmentState, name: str, keys: list[str]) -> EnvironmentState:
    items = [one for one in state[name].items if one.key not in keys]
    return {**state, name: msgspec.structs.replace(state[name], items=items)}


def _with(state: EnvironmentState, name: str, key: str, one: Item | None) -> EnvironmentState:
    others = [other for other in state[name].items if other.key != key]
    items = sorted([*others, *([] if one is None else [one])], key=lambda other: other.key)
    return {**state, name: msgspec.structs.replace(state[name], items=items)}


def _twin(one: Item, kind: SourceKind) -> Item:
    """Copy an item under another key; a numbered one gets the last number, and a file looks half written."""
    numbered = one.key.isdigit()
    ending = ".tmp" if kind is SourceKind.FILES else "-twin"
    key = "9" * len(one.key) if numbered else f"{one.key}{ending}"
    body = one.body
    if kind is SourceKind.FHIR and body is not None and one.encoding is Encoding.TEXT:
        body = body.replace(f'"{one.key.rpartition("/")[2]}"', f'"{key.rpartition("/")[2]}"')
    return Item(key=key, version=f"{one.version}-twin", body=body, encoding=one.encoding, facts=one.facts)


class _Mutation(msgspec.Struct, frozen=True):
    """An item's content with one mistake."""

    name: str
    harm: str
    content: bytes
    vital: VitalField | None = None


def _item_mutations(one: Item, kind: SourceKind) -> Iterator[_Mutation]:
    """Yield the item's content with one mistake each."""
    if one.encoding is not Encoding.TEXT or one.body is None:
        return
    if kind in _SEPARATORS:
        end, mark = _SEPARATORS[kind]
        yield from _without_parts(one.body, end)
        yield from _with_wrong_fields(one.body, end, mark, kind)
        return
    try:
        document = json.loads(one.body, parse_float=Decimal)
    except ValueError:
        yield _Mutation(name="emptied", harm="changed", content=b"")
        yield from _without_parts(one.body, "\n")
        return
    if isinstance(document, Mapping):
        yield from _without_fields(dict(document))


def _without_parts(body: str, separator: str) -> Iterator[_Mutation]:
    parts = body.split(separator)
    for number, part in enumerate(parts):
        if part.strip() and number:
            left = separator.join([*parts[:number], *parts[number + 1 :]])
            yield _Mutation(name=f"without {part.strip()[:20]!r}", harm="dropped", content=left.encode())


def _with_wrong_fields(body: str, end: str, mark: str, kind: SourceKind) -> Iterator[_Mutation]:
    parts = body.split(end)
    for number, part in enumerate(parts):
        fields = part.strip().split(mark)
        for place, field in enumerate(fields):
            if place and field and fields[0] not in _ENVELOPE:
                wrong = mark.join([*fields[:place], _spoil(field, kind), *fields[place + 1 :]])
                content = end.join([*parts[:number], wrong, *parts[number + 1 :]])
                vital = vital_segment_field(kind, fields, place)
                name = f"{fields[0]} field {place} of part {number + 1} changed"
                yield _Mutation(name=name, harm="changed", content=content.encode(), vital=vital)


def _spoil(field: str, kind: SourceKind) -> str:
    """Change a field where it matters: the first component of HL7, which has the code, and the end of others."""
    first, caret, rest = field.partition("^") if kind is SourceKind.HL7 else (field, "", "")
    return f"{first}x{caret}{rest}"


def _without_fields(document: dict[str, Any]) -> Iterator[_Mutation]:
    for name, value in document.items():
        if name in _NOT_TELLING:
            continue
        left = {key: one for key, one in document.items() if key != name}
        yield _Mutation(
            name=f"without {name}", harm="dropped", content=_encode(left), vital=vital_json_part(name, value)
        )
        for path, leaf, wrong in _wrong_values(value):
            content = _encode({**document, name: wrong})
            yield _Mutation(
                name=f"{name}{path} changed",
                harm="changed",
                content=content,
                vital=vital_json_field(f"{name}{path}", leaf),
            )


def _wrong_values(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the value with one leaf changed: the leaf's path, the leaf, and the whole."""
    match value:
        case bool():
            yield "", value, not value
        case int() | Decimal():
            yield "", value, value * 2 + 1
        case str():
            yield "", value, f"{value}x"
        case dict():
            for name, inner in value.items():
                for path, leaf, wrong in _wrong_values(inner):
                    yield f".{name}{path}", leaf, {**value, name: wrong}
        case list():
            for number, inner in enumerate(value):
                for path, leaf, wrong in _wrong_values(inner):
                    yield f"[{number}]{path}", leaf, [*value[:number], wrong, *value[number + 1 :]]
        case _:
            return


def _encode(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document, enc_hook=_as_number)


def _as_number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
