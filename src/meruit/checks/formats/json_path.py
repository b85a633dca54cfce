"""The dotted path by which a value in JSON is addressed, and JSON read so that nothing it says is lost.

Lists are walked through by themselves: `name.given` is every given name of every name. A path can also say which:
`name.0.given`, `name[0].given`, `telecom[system=phone].value`, `extension["a.b"]`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from meruit.checks.values.decimals import numeral
from meruit.errors import AuthorError, RejectedJson, UnreadableContent
from meruit.model.numbers import MAX_DIGITS

MAX_PATH = 500
"""Characters of a path."""
MAX_NESTING = 200
"""The deepest nesting of a document's objects and lists."""

_FHIR_TYPES = (
    "Base64Binary Boolean Canonical Code Date DateTime Decimal Id Instant Integer Integer64 Markdown Oid PositiveInt "
    "String Time UnsignedInt Uri Url Uuid Address Age Annotation Attachment CodeableConcept CodeableReference Coding "
    "ContactDetail ContactPoint Contributor Count DataRequirement Distance Dosage Duration Expression HumanName "
    "Identifier Meta Money ParameterDefinition Period Quantity Range Ratio RatioRange Reference RelatedArtifact "
    "SampledData Signature Timing TriggerDefinition UsageContext"
)
CHOICE_TYPES = frozenset(_FHIR_TYPES.split())
"""The datatypes that a FHIR choice, as `value[x]`, may end in."""

# Any below is JSON as it was parsed: a dict, list, str, int, Decimal, bool or None.
_Step = Callable[[list[Any]], list[Any]]
"""Maps the values before a step to the values after it, without opening lists."""

_EXAMPLES = 'for example name.given, participant[0].actor, telecom[system=phone].value or extension["a.b"]'
_NAME = re.compile(r"[^.\[\]\"'=()*]+")
_POSITION = re.compile(r"0|[1-9][0-9]{0,8}")
_BRACKET = re.compile(
    r"""\[(?:
      (?P<position>0|[1-9][0-9]{0,8})
    | "(?P<key>[^"]*)" | '(?P<key1>[^']*)'
    | (?P<child>[^.\[\]"'=<>!~\s]+(?:\.[^.\[\]"'=<>!~\s]+)*)
      =(?:"(?P<text>[^"]*)"|'(?P<text1>[^']*)'|(?P<bare>[^\[\]"']+))
    | (?P<choice>x)
    | (?P<walk>)
    )\]""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class JsonPath:
    """The place of values in a document."""

    text: str
    """As it was written."""
    choices: bool
    """Whether `value` also finds `valueQuantity`, as FHIR means it."""
    steps: tuple[_Step, ...] = field(compare=False, repr=False)


def compile_path(text: str, *, choices: bool = False) -> JsonPath:
    """Read a path; AuthorError for what is none."""
    if not text or len(text) > MAX_PATH:
        _refuse(text[:40], "it is empty" if not text else f"it is longer than {MAX_PATH} characters")
    if choices and text[0].isupper():
        _refuse(text, "a path starts below the resource; remove the resource's type")
    steps: list[_Step] = []
    at = 0
    while at < len(text):
        # A dot separates two steps, but does not come before a bracket.
        starts_name = at == 0 or text[at] == "."
        at += at > 0 and starts_name
        if text[at : at + 1] == "[" and (at == 0 or not starts_name):
            step, at = _parse_bracket(text, at, choices=choices)
        elif starts_name:
            step, at = _parse_name(text, at, choices=choices)
        else:
            _refuse(text, "a dot or a bracket is missing", at)
        steps += step
    # A list at the end is opened anyway, so that `members[]` is `members`.
    if steps[-1:] == [_walk]:
        steps.pop()
    return JsonPath(text, choices, tuple(steps))


def values(document: Any, path: JsonPath) -> tuple[Any, ...]:
    """Every value at the path; a list there gives its elements."""
    return tuple(_walk(raw(document, path)))


def raw(document: Any, path: JsonPath) -> list[Any]:
    """The values at the path, without opening lists: an empty list is a value, an absent field is not."""
    nodes = [document]
    for step in path.steps:
        nodes = step(nodes)
    return nodes


def _refuse(text: str, why: str, at: int | None = None) -> NoReturn:
    place = "" if at is None else f" at character {at + 1}"
    raise AuthorError(f"{text!r} is not a valid path: {why}{place}; {_EXAMPLES}")


def _parse_name(text: str, at: int, *, choices: bool) -> tuple[list[_Step], int]:
    found = _NAME.match(text, at)
    if found is None:
        _refuse(text, _why_no_name(text[at : at + 1]), at)
    name, end = found[0], found.end()
    if name != name.strip() or name in ("$", "@"):
        _refuse(text, "a name starts and ends with neither a space nor a sign such as $", at)
    if text[end : end + 1] in ("(", "*", "="):
        _refuse(text, _why_no_name(text[end]), end)
    variants = _variants(name) if choices else frozenset[str]()
    return [_member(name, variants, int(name) if _POSITION.fullmatch(name) else None)], end


def _why_no_name(sign: str) -> str:
    match sign:
        case "(":
            return "it calls a function, which `fhirpath:` can"
        case "*":
            return "lists are walked through without *"
        case "=":
            return "an equality must be in brackets"
        case _:
            return "a name is missing"


def _parse_bracket(text: str, at: int, *, choices: bool) -> tuple[list[_Step], int]:
    found = _BRACKET.match(text, at)
    if found is None:
        _refuse(text, "brackets hold a position, a quoted key, or child=text", at)
    part, end = found.groupdict(), found.end()
    key = part["key"] if part["key"] is not None else part["key1"]
    if part["position"] is not None:
        return [_element(int(part["position"]))], end
    if key is not None:
        return [_member(key, frozenset(), None)], end
    if part["child"] is not None:
        wanted = next(part[name] for name in ("text", "text1", "bare") if part[name] is not None)
        return [_filter(compile_path(part["child"], choices=choices), wanted)], end
    if part["choice"] is not None:
        if not choices or at == 0:
            _refuse(text, "[x] marks a choice of types, and only in FHIR", at)
        return [], end
    return [_walk], end


@lru_cache(maxsize=1024)
def _variants(name: str) -> frozenset[str]:
    return frozenset(name + kind for kind in CHOICE_TYPES)


def _member(name: str, variants: frozenset[str], position: int | None) -> _Step:
    def step(nodes: list[Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, dict):
                if name in node:
                    found.append(node[name])
                elif variants and not variants.isdisjoint(node):
                    found += [value for key, value in node.items() if key in variants]
            elif isinstance(node, list):
                found += step(node) if position is None else node[position : position + 1]
        return found

    return step


def _element(position: int) -> _Step:
    def step(nodes: list[Any]) -> list[Any]:
        return [node[position] for node in nodes if isinstance(node, list) and len(node) > position]

    return step


def _walk(nodes: list[Any]) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, list):
            found += node
        else:
            found.append(node)
    return found


def _filter(child: JsonPath, wanted: str) -> _Step:
    number = numeral(wanted)

    def says(value: Any) -> bool:
        if isinstance(value, str):
            return value == wanted
        if isinstance(value, bool):
            return wanted == ("true" if value else "false")
        return number is not None and numeral(value) == number

    def fits(node: Any) -> bool:
        return any(says(value) for value in values(node, child))

    def step(nodes: list[Any]) -> list[Any]:
        # A list stays one, so that the first of those that fit can be asked for.
        return [
            [one for one in node if fits(one)] if isinstance(node, list) else node
            for node in nodes
            if isinstance(node, list) or fits(node)
        ]

    return step


def read_json(content: bytes) -> Any:
    """Parse JSON with exact decimals; raises UnreadableContent for anything that is not valid or is ambiguous."""
    body = content.removeprefix(_BYTE_ORDER_MARK)
    skipped = len(content) - len(body)
    try:
        text = body.decode()
    except UnicodeDecodeError as fault:
        raise UnreadableContent.at("is not UTF-8", content, skipped + fault.start) from None
    document: Any = None
    trouble: Exception | None = None
    try:
        document = json.loads(text, **_HOOKS)
    except json.JSONDecodeError as fault:
        offset = skipped + len(text[: fault.pos].encode())
        raise UnreadableContent.at(f"is not JSON: {fault.msg}", content, offset) from None
    except (RejectedJson, RecursionError) as fault:
        trouble = fault
    if trouble is not None or _SURROGATE.search(text) or _is_deep(document, text):
        odd = _first_problem(text)
        if odd is not None:
            raise UnreadableContent.at(odd.why, content, skipped + len(text[: odd.at].encode())) from None
    if trouble is not None:
        # The text is sound: our own caller left too little room to read it.
        raise trouble
    return document


class _JsonProblem(msgspec.Struct, frozen=True):
    why: str
    at: int
    """In characters."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE = re.compile("[\ud800-\udfff]")
# A string ends at its first unescaped quote; possessive repeats make a missing one cost a single pass.
_PIECE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RejectedJson
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise RejectedJson
    return int(text)


def _decimal(text: str) -> Decimal:
    if _is_huge(text):
        raise RejectedJson
    return Decimal(text)


def _is_huge(number: str) -> bool:
    """Whether it has so many digits, or so many places, that to reckon with it would cost."""
    digits, _, exponent = number.lower().partition("e")
    places = exponent.lstrip("+-0") or "0"
    return len(digits) > MAX_DIGITS or len(places) > len(str(MAX_DIGITS)) or int(places) > MAX_DIGITS


def _constant(_: str) -> NoReturn:
    raise RejectedJson


# Any, because the hooks are of four types.
_HOOKS: dict[str, Any] = {
    "parse_int": _integer,
    "parse_float": _decimal,
    "parse_constant": _constant,
    "object_pairs_hook": _object,
}


def _is_deep(document: Any, text: str) -> bool:
    if text.count("{") + text.count("[") <= MAX_NESTING:
        return False
    level = [document]
    for _ in range(MAX_NESTING):
        inside = (node.values() if isinstance(node, dict) else node for node in level)
        level = [one for members in inside for one in members if isinstance(one, dict | list)]
    return bool(level)


def _first_problem(text: str) -> _JsonProblem | None:
    """Find what is refused, and where: a second, slower pass over text that is known to be invalid."""
    keys: list[set[str] | None] = []
    """Of each object that is open; None for a list."""
    is_key = False
    for piece in _PIECE.finditer(text):
        found = piece[0]
        match found[0]:
            case "{" | "[":
                keys.append(set() if found == "{" else None)
                is_key = found == "{"
                why = f"is nested more than {MAX_NESTING} deep" if len(keys) > MAX_NESTING else None
            case "}" | "]":
                keys.pop()
                why = None
            case "," | ":":
                is_key = found == "," and keys[-1] is not None
                why = None
            case '"':
                why = _string_problem(json.loads(found), keys[-1] if is_key else None)
            case _:
                why = _word_problem(found)
        if why is not None:
            return _JsonProblem(why, piece.start())
    return None


def _string_problem(literal: str, keys: set[str] | None) -> str | None:
    if not literal.isascii() and _LONE.search(literal):
        return "has a lone surrogate"
    if keys is None:
        return None
    if literal in keys:
        return f"has the key {literal[:40]!r} twice in one object"
    keys.add(literal)
    return None


def _word_problem(found: str) -> str | None:
    if found.startswith(("NaN", "Infinity", "-Infinity")):
        return f"has {found[:9]}, which is not JSON"
    if found not in ("true", "false", "null") and _is_huge(found):
        return f"has a number of more than {MAX_DIGITS} digits or places"
    return None
