"""FHIR search, evaluated by the check: whether a resource matches search parameters.

What a server makes of a parameter is not to be relied on, so a check searches by itself, by the rules of R4.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from operator import eq
from typing import Any

import msgspec

from meruit.checks.fhir_types.period import COMPARE, parse_time_span, time_span_of
from meruit.checks.fhir_types.quantity import amount_of, comparison
from meruit.checks.fhir_types.reference import REFERENCE, forms, normal_reference
from meruit.checks.fhir_types.search_parameters import SearchParameter, SearchParameterType, parameters_by_name
from meruit.checks.formats.json_path import JsonPath, compile_path, values
from meruit.checks.values.decimals import numeral
from meruit.errors import AuthorError
from meruit.model.numbers import WRITTEN
from meruit.model.text import normalize_unicode
from meruit.suggestions import nearest

# Any, throughout, is JSON as it was parsed.
Search = Callable[[Mapping[str, Any]], bool]
"""Whether a resource matches."""
_Fits = Callable[[Any], bool]
"""Whether one value of a resource matches."""

SHAPING = frozenset(
    {"_contained", "_containedType", "_count", "_elements", "_format", "_include", "_offset", "_pretty", "_revinclude"}
    | {"_sort", "_summary", "_total"}
)
"""Parameters that change a server's reply; none of them selects a resource."""
MAX_TEXT = 10_000
"""Characters of a parameter's value."""

_TYPE = re.compile(r"[A-Z][A-Za-z]{1,60}")
_PREFIXED = re.compile(r"([a-z]{2})(?=[-+.0-9])(.*)", re.DOTALL)
_MODIFIERS: dict[SearchParameterType, tuple[str, ...]] = {
    SearchParameterType.TOKEN: ("not", "text", "missing"),
    SearchParameterType.STRING: ("exact", "contains", "missing"),
    SearchParameterType.REFERENCE: ("identifier", "missing"),
    SearchParameterType.DATE: ("missing",),
    SearchParameterType.QUANTITY: ("missing",),
    SearchParameterType.URI: ("missing",),
}
_WHERE = "`where:` takes any path, for example where: {status: booked}"


def parameters_of(resource_type: str) -> Mapping[str, str]:
    """The search parameters of a type of resource, each with the kind that FHIR calls its type."""
    return {name: parameter.kind.value for name, parameter in parameters_by_name(resource_type).items()}


def compile_search(resource_type: str, parameters: Mapping[str, str | Sequence[str]], *, zone: tzinfo = UTC) -> Search:
    """Compile the parameters of a search; raises AuthorError for an invalid one.

    A comma means or; a parameter with several values means and. What has no time zone is taken to be in `zone`.
    """
    if not _TYPE.fullmatch(resource_type):
        raise AuthorError(f"{resource_type!r} is not a FHIR resource type; for example Appointment")
    tests = [
        _compile_term(_SearchTerm(resource_type=resource_type, name=name, text=text, zone=zone))
        for name, given in parameters.items()
        for text in _texts(name, given)
    ]

    def search(resource: Mapping[str, Any]) -> bool:
        return resource.get("resourceType") == resource_type and all(test(resource) for test in tests)

    return search


class _SearchTerm(msgspec.Struct, frozen=True):
    """One value of one parameter, as it was written."""

    resource_type: str
    name: str
    text: str
    zone: tzinfo

    def author_error(self, why: str) -> AuthorError:
        return AuthorError(f"the search {self.name}={self.text[:80]} of {self.resource_type}: {why}")


def _texts(name: str, given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    if not texts or not all(isinstance(text, str) and 0 < len(text) <= MAX_TEXT for text in texts):
        raise AuthorError(f"the search parameter {name} needs a text, in quotes, or a list of them; got {given!r:.80}")
    return texts


def _compile_term(asked: _SearchTerm) -> Search:
    name, _, modifier = asked.name.partition(":")
    parameter = _parameter(asked, name)
    allowed = _MODIFIERS[parameter.kind]
    is_type = parameter.kind is SearchParameterType.REFERENCE and _TYPE.fullmatch(modifier) is not None
    if (":" in asked.name) and modifier not in allowed and not is_type:
        raise asked.author_error(
            f"{name} takes no :{modifier}, only {', '.join(f':{one}' for one in allowed)}; {_WHERE}"
        )
    if is_type:
        parameter = msgspec.structs.replace(parameter, target=modifier)
    paths = [compile_path(path, choices=True) for path in parameter.paths]
    if modifier == "missing":
        if asked.text not in ("true", "false"):
            raise asked.author_error("write true or false")
        return lambda resource: bool(_values_of(resource, parameter, paths)) is (asked.text == "false")
    alternatives = [_compile_alternative(asked, parameter, modifier, text) for text in _split(asked.text, ",")]
    negated = modifier == "not"

    def test(resource: Mapping[str, Any]) -> bool:
        found = _values_of(resource, parameter, paths)
        return any(fits(value) for value in found for fits in alternatives) is not negated

    return test


def _parameter(asked: _SearchTerm, name: str) -> SearchParameter:
    known = parameters_by_name(asked.resource_type)
    if name in known:
        return known[name]
    if name in SHAPING:
        raise asked.author_error(f"{name} changes a server's reply and selects nothing; remove it")
    if "." in name or name == "_has":
        raise asked.author_error("other resources are not searched; search for each type by itself")
    element = next((one.name for one in known.values() if name in one.paths), None)
    close = f" (did you mean {element!r}?)" if element else nearest(name, known)
    raise asked.author_error(f"unknown search parameter {name!r}{close}; {_WHERE}")


def _values_of(resource: Mapping[str, Any], parameter: SearchParameter, paths: list[JsonPath]) -> list[Any]:
    """The values that a parameter reads."""
    found = [value for path in paths for value in values(resource, path) if value is not None]
    if parameter.is_flag:
        return [any(value is not False for value in found)]
    if parameter.target is not None:
        return [value for value in found if _may_be_to(parameter.target, value)]
    return found


def _may_be_to(target: str, value: Any) -> bool:
    """Whether a reference is to that type of resource, as far as it says."""
    reference = value.get("reference") if isinstance(value, dict) else value
    match = REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if match is not None:
        return match[2].startswith(f"{target}/")
    return not isinstance(value, dict) or value.get("type", target) == target


def _compile_alternative(asked: _SearchTerm, parameter: SearchParameter, modifier: str, text: str) -> _Fits:
    if not text:
        raise asked.author_error("there is nothing before or after a comma; write \\, for a literal comma")
    match parameter.kind:
        case SearchParameterType.TOKEN:
            return _token_text(text) if modifier == "text" else _token(asked, text)
        case SearchParameterType.STRING:
            return _string(_unescape(text), modifier)
        case SearchParameterType.REFERENCE:
            return _identifier(asked, text) if modifier == "identifier" else _reference(asked, parameter, text)
        case SearchParameterType.DATE:
            return _date(asked, text)
        case SearchParameterType.QUANTITY:
            return _quantity(asked, text)
        case SearchParameterType.URI:
            return partial(eq, _unescape(text))


def _split(text: str, sign: str) -> list[str]:
    """Split at signs that are not escaped by a backslash; backslashes stay."""
    parts, start = [], 0
    for found in re.finditer(r"\\.|[,|]", text):
        if found[0] == sign:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def _unescape(text: str) -> str:
    return re.sub(r"\\([\\,|$])", r"\1", text)


class _Code(msgspec.Struct, frozen=True):
    system: str | None
    code: str | None
    is_plain: bool = False
    """Whether it is only a code, such as a status, whose system FHIR implies and no resource names."""


_IMPLIED_SYSTEM = "http://hl7.org/fhir/"
"""The prefix of the systems of plain codes."""


def _codes(value: Any) -> Iterator[_Code]:
    match value:
        case bool():
            yield _Code(None, "true" if value else "false", is_plain=True)
        case str():
            yield _Code(None, value, is_plain=True)
        case {"coding": [*codings]}:
            yield from (code for coding in codings if isinstance(coding, dict) for code in _codes(coding))
        case {"code": str(code)}:
            yield _Code(value.get("system"), code)
        case {"value": str(code)}:
            yield _Code(value.get("system"), code)
        case {"system": str(system)}:
            yield _Code(system, None)
        case _:
            return


def _token(asked: _SearchTerm, text: str) -> _Fits:
    match [_unescape(part) for part in _split(text, "|")]:
        case [code]:
            return lambda value: any(one.code == code for one in _codes(value))
        case ["", code] if code:
            return lambda value: any(one.code == code and not one.system for one in _codes(value))
        case [system, ""] if system:
            return lambda value: any(one.system == system for one in _codes(value))
        case [system, code] if system:
            implied = system.startswith(_IMPLIED_SYSTEM)
            return lambda value: any(
                one.code == code and (one.system == system or (one.is_plain and implied)) for one in _codes(value)
            )
        case _:
            raise asked.author_error("write code, system|code, |code or system|")


def _token_text(text: str) -> _Fits:
    wanted = _fold_case_and_accents(_unescape(text))

    def fits(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        coding = value.get("coding")
        shown = [value, *(coding if isinstance(coding, list) else [])]
        texts = [one.get(key) for one in shown if isinstance(one, dict) for key in ("text", "display")]
        return any(isinstance(one, str) and _fold_case_and_accents(one).startswith(wanted) for one in texts)

    return fits


_PARTS = ("text", "family", "given", "prefix", "suffix", "line", "city", "district", "state", "postalCode", "country")
"""Of a name and of an address."""


def _fold_case_and_accents(text: str) -> str:
    """Without case and accents."""
    return "".join(sign for sign in normalize_unicode("NFKD", text.casefold()) if not unicodedata.combining(sign))


def _strings_of(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for part in (value.get(name) for name in _PARTS):
                yield from (one for one in (part if isinstance(part, list) else [part]) if isinstance(one, str))
        case _:
            return


def _string(text: str, modifier: str) -> _Fits:
    wanted = _fold_case_and_accents(text)
    match modifier:
        case "exact":
            return lambda value: any(one == text for one in _strings_of(value))
        case "contains":
            return lambda value: any(wanted in _fold_case_and_accents(one) for one in _strings_of(value))
        case _:
            return lambda value: any(_fold_case_and_accents(one).startswith(wanted) for one in _strings_of(value))


def _reference(asked: _SearchTerm, parameter: SearchParameter, text: str) -> _Fits:
    given = _unescape(text)
    is_id = not re.search(r"[/:#|]", given)
    wanted = f"{parameter.target}/{given}" if is_id and parameter.target else normal_reference(given)
    named = REFERENCE.fullmatch(given)
    if parameter.target and named and not named[2].startswith(f"{parameter.target}/"):
        raise asked.author_error(f"it must be a {parameter.target}, for example {parameter.target}/1")

    def fits(value: Any) -> bool:
        reference = value.get("reference") if isinstance(value, dict) else value
        if not isinstance(reference, str):
            return False
        found = forms(reference)
        if is_id and not parameter.target:
            # An id alone is one of ours.
            return any("://" not in one and one.rpartition("/")[2] == given for one in found)
        # A canonical address without a version is that of any version.
        return wanted in found or ("|" not in given and reference.partition("|")[0] == given)

    return fits


def _identifier(asked: _SearchTerm, text: str) -> _Fits:
    fits = _token(asked, text)
    return lambda value: isinstance(value, dict) and fits(value.get("identifier"))


def _prefix(asked: _SearchTerm, text: str) -> tuple[str, str]:
    found = _PREFIXED.fullmatch(text)
    if found is None:
        return "eq", text
    if found[1] not in COMPARE:
        raise asked.author_error(f"the prefix {found[1]} is not supported; write {', '.join(COMPARE)}, or none")
    return found[1], found[2]


def _date(asked: _SearchTerm, text: str) -> _Fits:
    prefix, written = _prefix(asked, text)
    wanted = parse_time_span(written, asked.zone)
    if wanted is None:
        raise asked.author_error(
            f"{written!r} is not a date; write 2026, 2026-03, 2026-03-06 or 2026-03-06T10:00:00-06:00, and before it "
            f"one of {', '.join(COMPARE)}, or nothing"
        )
    compare = COMPARE[prefix]

    def fits(value: Any) -> bool:
        found = time_span_of(value, asked.zone)
        return found is not None and compare(wanted, found)

    return fits


def _quantity(asked: _SearchTerm, text: str) -> _Fits:
    match [_unescape(part) for part in _split(text, "|")]:
        case [number]:
            system, unit = "", ""
        case [number, system, unit]:
            pass
        case _:
            raise asked.author_error("write 5.4, 5.4||mg or 5.4|http://unitsofmeasure.org|mg")
    prefix, written = _prefix(asked, number)
    point = numeral(written) if WRITTEN.fullmatch(written) else None
    if point is None:
        raise asked.author_error(f"{written!r} is not a number; for example gt5.4")
    compare = comparison(prefix, point)

    def fits(value: Any) -> bool:
        found = amount_of(value)
        return found is not None and compare(found) and found.is_in(system=system, unit=unit)

    return fits
