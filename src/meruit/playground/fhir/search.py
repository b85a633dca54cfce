"""Search a playground's resources: what matches, in which order, page after page."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from functools import total_ordering
from typing import Any
from urllib.parse import urlencode

import msgspec

from meruit.checks.fhir_types.search import compile_search
from meruit.checks.fhir_types.search_parameters import SearchParameterType, parameters_by_name
from meruit.checks.formats.json_path import JsonPath, compile_path, values
from meruit.checks.values.dates import parse_date_or_time
from meruit.errors import AuthorError, FhirRefusal
from meruit.playground.fhir.json import Json, Verbatim, decode_stored
from meruit.playground.fhir.resources import FHIR, outcome
from meruit.playground.state import PlaygroundState, rfc3339
from meruit.suggestions import nearest

PAGE = 50
"""Entries of a page, unless the client asks for another number."""
MAX_PAGE = 1_000
"""Entries of a page at most."""
CONTROLS = frozenset({"_count", "_elements", "_format", "_page", "_pretty", "_sort", "_summary", "_total"})
"""Parameters about the reply, not about what matches."""
MAX_PARAMETERS = 200
"""Of one search."""
Parameters = Sequence[tuple[str, str]]
"""Names and values, as they were given."""


class FhirMatch(msgspec.Struct, frozen=True):
    """A resource that a search found."""

    key: str
    text: str
    resource: Json


class FhirSearchQuery(msgspec.Struct, frozen=True):
    """The parameters of a search, by kind."""

    filters: dict[str, list[str]]
    controls: dict[str, str]
    honoured: list[tuple[str, str]]
    """Those that the reply depends on, for its link to itself."""
    unknown: list[str]
    """What is wrong with the others."""


def matches(state: PlaygroundState, kind: str, filters: Mapping[str, Sequence[str]]) -> list[FhirMatch]:
    """Return every resource of a type that the filters match, by id; raises FhirRefusal for an invalid filter."""
    try:
        fits = compile_search(kind, filters)
    except AuthorError as problem:
        raise FhirRefusal(400, "invalid", str(problem)) from None
    found = []
    for one in state.items(FHIR, under=f"{kind}/"):
        text = one.body or ""
        resource = decode_stored(text)
        if fits(resource):
            found.append(FhirMatch(key=one.key, text=text, resource=resource))
    return found


def only_match(state: PlaygroundState, kind: str, query: Parameters) -> FhirMatch | None:
    """Return the one resource that matches a condition, if any; raises FhirRefusal for several, or for no condition."""
    asked = classify_parameters(kind, query)
    if asked.unknown or not asked.filters:
        raise FhirRefusal(412, "invalid", "; ".join(asked.unknown) or "a condition must name what to search for")
    found = matches(state, kind, asked.filters)
    if len(found) > 1:
        keys = ", ".join(match.key for match in found[:5])
        raise FhirRefusal(412, "multiple-matches", f"{len(found)} resources meet the condition: {keys}")
    return found[0] if found else None


def classify_parameters(kind: str, query: Parameters) -> FhirSearchQuery:
    """Sort the parameters by kind."""
    if len(query) > MAX_PARAMETERS:
        raise FhirRefusal(400, "too-costly", f"a search may have {MAX_PARAMETERS} parameters")
    known = parameters_by_name(kind)
    asked = FhirSearchQuery(filters={}, controls={}, honoured=[], unknown=[])
    for name, value in query:
        wrong = _wrong_control(name, value, kind) if name in CONTROLS else _wrong_filter(name, kind, known)
        if wrong:
            asked.unknown.append(wrong)
            continue
        if name in CONTROLS:
            asked.controls[name] = value
        elif value:
            # A parameter without a value is ignored.
            asked.filters.setdefault(name, []).append(value)
        if name != "_page":
            asked.honoured.append((name, value))
    return asked


def _wrong_filter(name: str, kind: str, known: Iterable[str]) -> str:
    plain = name.partition(":")[0].partition(".")[0]
    if plain in known:
        return ""
    return f"{name!r} is not a search parameter of {kind} here{nearest(plain, known)}"


def _wrong_control(name: str, value: str, kind: str) -> str:
    match name:
        case "_sort":
            can = [
                one.name for one in parameters_by_name(kind).values() if one.kind is not SearchParameterType.QUANTITY
            ]
            odd = [part for part in value.split(",") if part.removeprefix("-") not in can]
            return f"{kind} is not sorted by {', '.join(odd)} here; there are {', '.join(can)}" if odd else ""
        case "_summary" if value not in ("count", "false"):
            return f"_summary={value} is not done here; there are count and false"
        case "_total" if value not in ("none", "estimate", "accurate"):
            return f"_total={value} must be none, estimate or accurate"
        case _:
            return ""


def search(state: PlaygroundState, kind: str, query: Parameters, *, base: str, strict: bool) -> Json:
    """Build a search page as a Bundle; raises FhirRefusal for what cannot be searched."""
    asked = classify_parameters(kind, query)
    if strict and asked.unknown:
        raise FhirRefusal(400, "not-supported", "; ".join(asked.unknown))
    found = matches(state, kind, asked.filters)
    order = _order(kind, asked.controls.get("_sort", ""))
    found.sort(key=order)
    count = _page_size(asked.controls.get("_count"))
    if asked.controls.get("_summary") == "count":
        count = 0
    rest = _after(found, asked.controls.get("_page"), order)
    page = rest[:count]
    links = [_link("self", f"{base}/{kind}", asked.honoured)]
    if page and len(rest) > len(page):
        links.append(_link("next", f"{base}/{kind}", [*asked.honoured, ("_page", _token(page[-1], order))]))
    entries = [_entry(match, asked.controls.get("_elements"), base) for match in page]
    if asked.unknown:
        message = f"not applied, so that more may be found than was asked for: {'; '.join(asked.unknown)}"
        entries.append({"resource": outcome("warning", "not-supported", message), "search": {"mode": "outcome"}})
    bundle: Json = {"resourceType": "Bundle", "type": "searchset", "total": len(found), "link": links}
    if asked.controls.get("_total") == "none":
        del bundle["total"]
    return {**bundle, "entry": entries} if entries else bundle


def history(
    state: PlaygroundState, under: str, query: Parameters, *, base: str, address: str, instance: bool = False
) -> Json:
    """Build a history page of one resource, a type or everything, newest first, as a Bundle."""
    controls = dict(query)
    count = _page_size(controls.get("_count"))
    since = _since(controls.get("_since"))
    before = _sequence(controls.get("_page"))
    with state.consistent_read():
        if instance:
            every = [one for one in reversed(state.versions(FHIR, under)) if one.at >= since]
            total = len(every)
            found = [one for one in every if before is None or one.seq < before][: count + 1]
        else:
            total = state.versions_count(FHIR, under=under, since=since)
            found = state.history(FHIR, under=under, since=since, before=before, limit=count + 1)
    parameters = [(name, value) for name, value in query if name in ("_count", "_since")]
    links = [_link("self", address, parameters)]
    page = found[:count]
    if page and len(found) > count:
        links.append(_link("next", address, [*parameters, ("_page", str(page[-1].seq))]))
    entries = []
    for one in page:
        created = one.event == "fhir_create"
        entry: Json = {"fullUrl": f"{base}/{one.key}"}
        if one.content is not None:
            entry["resource"] = Verbatim(one.content.decode())
        method = "DELETE" if one.content is None else "POST" if created and one.version == "1" else "PUT"
        entry["request"] = {"method": method, "url": one.key.partition("/")[0] if method == "POST" else one.key}
        status = "204 No Content" if one.content is None else "201 Created" if created else "200 OK"
        entry["response"] = {"status": status, "etag": f'W/"{one.version}"', "lastModified": one.at}
        entries.append(entry)
    bundle: Json = {"resourceType": "Bundle", "type": "history", "total": total, "link": links}
    return {**bundle, "entry": entries} if entries else bundle


def _entry(match: FhirMatch, elements: str | None, base: str) -> Json:
    resource = Verbatim(match.text) if elements is None else _subset(match.resource, elements.split(","))
    return {"fullUrl": f"{base}/{match.key}", "resource": resource, "search": {"mode": "match"}}


def _subset(resource: Json, names: Sequence[str]) -> Json:
    """Return those elements, with a tag that warns editors not to send the rest back as missing."""
    tag = {"system": "http://terminology.hl7.org/CodeSystem/v3-ObservationValue", "code": "SUBSETTED"}
    subset = {name: value for name, value in resource.items() if name in ("resourceType", "id", "meta", *names)}
    return {**subset, "meta": {**resource["meta"], "tag": [*resource["meta"].get("tag", []), tag]}}


def _link(relation: str, address: str, query: Parameters) -> Json:
    return {"relation": relation, "url": f"{address}?{urlencode(query)}" if query else address}


def _page_size(given: str | None) -> int:
    if given is None:
        return PAGE
    if not (given.isascii() and given.isdigit() and len(given) < len(str(2**62))):
        raise FhirRefusal(400, "value", f"_count={given!r} is not a whole number")
    return min(int(given), MAX_PAGE)


def _since(given: str | None) -> str:
    if given is None:
        return ""
    # A plus that was not escaped arrives as a space.
    since = _in_utc(given.replace(" ", "+"))
    if since is None:
        raise FhirRefusal(400, "value", f"_since={given!r} is not an instant; write 2026-03-06T10:00:00Z")
    return since


def _sequence(given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < len(str(2**62))):
        raise FhirRefusal(400, "value", "_page is not a page of this history; follow its links from the first page")
    return int(given)


@total_ordering
class _SortValue:
    """The position of a value in an order, upwards or downwards; a missing value is last."""

    __slots__ = ("down", "value")

    def __init__(self, value: str | None, *, down: bool) -> None:
        self.value = value
        self.down = down

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SortValue) and self.value == other.value

    def __lt__(self, other: "_SortValue") -> bool:
        if self.value is None or other.value is None:
            return other.value is None and self.value is not None
        return self.value > other.value if self.down else self.value < other.value

    __hash__ = None  # type: ignore[assignment] # places are compared, never looked up


_Order = Callable[[FhirMatch], list[_SortValue]]


def _order(kind: str, sort: str) -> _Order:
    wishes = [
        (
            [compile_path(path, choices=True) for path in parameters_by_name(kind)[part.removeprefix("-")].paths],
            part.startswith("-"),
        )
        for part in sort.split(",")
        if part
    ]

    def sort_values(match: FhirMatch) -> list[_SortValue]:
        found = [_SortValue(_sortable(match.resource, paths), down=down) for paths, down in wishes]
        # The key is last, so that every position is unique.
        return [*found, _SortValue(match.key, down=False)]

    return sort_values


def _sortable(resource: Json, paths: Sequence[JsonPath]) -> str | None:
    """Return the first text at one of the paths."""
    for path in paths:
        for value in values(resource, path):
            text = _text(value)
            if text is not None:
                return _in_utc(text) or text.casefold()
    return None


# Any: a path may lead to any value.
def _text(value: Any) -> str | None:
    """Return what a value is sorted by: a period by its start, a name by the family, a concept by its first code."""
    if isinstance(value, dict):
        parts = ("start", "family", "coding", "code", "value", "reference", "text", "given", "end")
        return next((text for part in parts if (text := _text(value.get(part))) is not None), None)
    if isinstance(value, list):
        return _text(value[0]) if value else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else None


def _in_utc(text: str) -> str | None:
    """Parse a date or time, comparable across zones; None if the text is neither."""
    found = parse_date_or_time(text)
    if found is None:
        return None
    try:
        return rfc3339(found.at if found.has_zone else found.at.replace(tzinfo=UTC))
    except OverflowError:
        # The first day of the calendar begins before it in some zones.
        return None


def _token(last: FhirMatch, order: _Order) -> str:
    """Where the next page begins; writes in between do not move entries to another page."""
    values = [place.value for place in order(last)]
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _after(found: list[FhirMatch], token: str | None, order: _Order) -> list[FhirMatch]:
    if token is None:
        return found
    try:
        values = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        values = None
    sample = order(FhirMatch(key="", text="", resource={}))
    if (
        not isinstance(values, list)
        or len(values) != len(sample)
        or not all(value is None or isinstance(value, str) for value in values)
    ):
        raise FhirRefusal(400, "value", "_page is not a page of this search; follow its links from the first page")
    last = [_SortValue(value, down=place.down) for value, place in zip(values, sample, strict=True)]
    return [match for match in found if order(match) > last]
