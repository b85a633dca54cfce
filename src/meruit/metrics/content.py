"""What the output holds: keywords, patterns, fields, and the shape that a schema asks for."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

from meruit.metrics.extractor import Family
from meruit.metrics.safe_pattern import matching, pattern, whole_word
from meruit.metrics.safe_schema import SafeSchema, compile_schema
from meruit.model.criterion import MetricType
from meruit.model.errors import AuthorError, nearest
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

MAX_WANTED = 1_000
"""Keywords, patterns or fields in one list."""
MAX_WANTED_CHARS = 2_000
"""Length of each."""


class ContainsExtractor(Family):
    """Extract content-based metrics: keywords, patterns, fields, schema."""

    family = "content"


class Search(NamedTuple):
    """What is wanted, and how to learn which of it a work has."""

    wanted: tuple[str, ...]
    found: Callable[[Work], list[str] | Missing]


# What is asked for, and whether it can be asked.


def _check_params(ask: Ask, metric: str, known: Mapping[str, str]) -> None:
    for name in ask.params:
        if name not in known:
            raise AuthorError(
                f"{metric} has no param {name!r}{nearest(str(name), known)}; it takes {', '.join(known)}"
            )


def _flag(ask: Ask, name: str) -> bool:
    value = ask.params.get(name, False)
    if not isinstance(value, bool):
        raise AuthorError(f"the param {name} is true or false, not {value!r}")
    return value


def _wanted(value: Any, name: str) -> tuple[str, ...]:
    """The distinct texts of a list, or of one text alone."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise AuthorError(f"{name} is empty, so nothing could be missing; list at least one")
    if len(values) > MAX_WANTED:
        raise AuthorError(f"{name} has {len(values)} entries; the limit is {MAX_WANTED}")
    return tuple(dict.fromkeys(_text_of(item, name) for item in values))


def _text_of(item: Any, name: str) -> str:
    if isinstance(item, bool) or not isinstance(item, str | int | float | Decimal):
        raise AuthorError(f"{name} holds texts and numbers, not {type(item).__name__}; quote it")
    if not isinstance(item, str) and not math.isfinite(item):
        raise AuthorError(f"{name} holds {item}, which is no number; remove it")
    text = str(item)
    if not text.strip():
        raise AuthorError(f"{name} holds an empty text, which is contained in everything; remove it")
    if len(text) > MAX_WANTED_CHARS:
        raise AuthorError(f"{name} holds a text of {len(text)} characters; the limit is {MAX_WANTED_CHARS}")
    return text


def _asked(ask: Ask, *params: str) -> tuple[str, ...] | None:
    """What the criterion itself lists: in its threshold, or else in its params."""
    if ask.wanted:
        return _wanted(ask.wanted, "the threshold")
    given = [name for name in params if name in ask.params]
    if len(given) > 1:
        raise AuthorError(f"give one of {' and '.join(given)}, not both")
    return _wanted(ask.params[given[0]], f"the param {given[0]}") if given else None


def _share(
    ask: Ask, params: tuple[str, ...], inputs: tuple[str, ...], make: Callable[[tuple[str, ...]], Search]
) -> Measure:
    """Measure the share found of what the criterion lists, or else of what the work's input lists."""
    asked = _asked(ask, *params)
    prepared = None if asked is None else make(asked)

    def measure(work: Work) -> Finding:
        search = prepared
        if search is None:
            listed = next((name for name in inputs if work.input.get(name) not in (None, [])), None)
            if listed is None:
                places = ", ".join(
                    (*(f"params.{name}" for name in params), *(f"input.{name}" for name in inputs))
                )
                return Missing(f"nothing says what to look for; give a list as {places}", fault=Fault.AUTHOR)
            try:
                search = make(_wanted(work.input[listed], f"input.{listed}"))
            except AuthorError as problem:
                return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
        found = search.found(work)
        if isinstance(found, Missing):
            return found
        missing = (
            [] if len(found) == len(search.wanted) else [text for text in search.wanted if text not in found]
        )
        return Measured(len(found) / len(search.wanted), details={"found": found, "missing": missing})

    return measure


# What is searched.


def _text(work: Work) -> str | Missing:
    """The output's `text`; of an output without one, all of it as JSON."""
    if "text" in work.output:
        text = work.output["text"]
        if isinstance(text, str):
            return text
        return Missing(f"output.text is {type(text).__name__}, not a text")
    try:
        return orjson.dumps(_document(work)).decode()
    except (TypeError, RecursionError) as problem:
        return Missing(f"the output has no text and is not JSON: {problem}")


def _folded(work: Work) -> str | Missing:
    """The text without regard to case."""
    text = work.derive(_text)
    return text if isinstance(text, Missing) else text.casefold()


def _encoded(work: Work) -> bytes | Missing:
    """The text as patterns see it."""
    text = work.derive(_text)
    if isinstance(text, Missing):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return Missing("output.text holds half a character, so no pattern can be held against it")


def _document(work: Work) -> dict[str, Any]:
    return work.output if isinstance(work.output, dict) else dict(work.output)


# The metrics.


KEYWORD_PARAMS = {
    "keywords": "what to look for, where the threshold does not list it",
    "whole_word": "true: `cat` is not found in `concatenate`",
    "case_sensitive": "true: `Cat` is not found in `cat`",
}


@metrics.add(
    "contains_keywords",
    kind=MetricType.CONTAINS,
    params=KEYWORD_PARAMS,
    examples=[
        (Work(output={"text": "A Cat sat"}), 0.5, Ask(wanted=("cat", "mat"))),
        (Work(output={"text": "concatenate"}), 0.0, Ask({"keywords": ["cat"], "whole_word": True})),
        (Work(output={"text": "The mat"}, input={"required_keywords": ["mat"]}), 1.0),
        (Work(output={"text": None}), Missing, Ask(wanted=("cat",))),
    ],
)
def contains_keywords(ask: Ask) -> Measure:
    """The share of the keywords that the output contains."""
    _check_params(ask, "contains_keywords", KEYWORD_PARAMS)
    whole, sensitive = _flag(ask, "whole_word"), _flag(ask, "case_sensitive")
    read = _text if sensitive else _folded

    def make(keywords: tuple[str, ...]) -> Search:
        distinct: dict[str, str] = {}
        for keyword in keywords:
            distinct.setdefault(keyword if sensitive else keyword.casefold(), keyword)
        needles = [(name, whole_word(needle) if whole else needle) for needle, name in distinct.items()]

        def found(work: Work) -> list[str] | Missing:
            text = work.derive(read)
            if isinstance(text, Missing):
                return text
            if whole:
                return matching(text.encode(errors="replace"), needles)
            return [name for name, needle in needles if needle in text]

        return Search(tuple(distinct.values()), found)

    return _share(ask, ("keywords",), ("required_keywords",), make)


PATTERN_PARAMS = {
    "pattern": "a pattern in the syntax of RE2, where the threshold lists none",
    "patterns": "several of them",
    "full": "true: a pattern must match the whole text, not only a part",
    "ignore_case": "true: upper and lower case are the same",
}


@metrics.add(
    "matches_pattern",
    kind=MetricType.CONTAINS,
    params=PATTERN_PARAMS,
    examples=[
        (Work(output={"text": "order AB-12 sent"}), 1.0, Ask({"pattern": "[A-Z]{2}-[0-9]+"})),
        (Work(output={"text": "order AB-12 sent"}), 0.0, Ask({"pattern": "[A-Z]{2}-[0-9]+", "full": True})),
        (Work(output={"text": "a" * 5_000 + "!"}), 0.5, Ask({"patterns": ["^(a+)+$", "!$"]})),
        (Work(output={"text": "x"}), Missing),
    ],
)
def matches_pattern(ask: Ask) -> Measure:
    """The share of the patterns that the output matches."""
    _check_params(ask, "matches_pattern", PATTERN_PARAMS)
    full, ignore_case = _flag(ask, "full"), _flag(ask, "ignore_case")

    def make(texts: tuple[str, ...]) -> Search:
        patterns = [(text, pattern(text, ignore_case=ignore_case)) for text in texts]

        def found(work: Work) -> list[str] | Missing:
            text = work.derive(_encoded)
            return text if isinstance(text, Missing) else matching(text, patterns, full=full)

        return Search(texts, found)

    return _share(ask, ("pattern", "patterns"), ("pattern", "output_pattern"), make)


FIELD_PARAMS = {
    "fields": "the names, where the threshold does not list them",
    "null_ok": "true: a field that is null counts as present",
}


@metrics.add(
    "has_required_fields",
    kind=MetricType.CONTAINS,
    params=FIELD_PARAMS,
    examples=[
        (Work(output={"id": 1, "name": None}), 0.5, Ask({"fields": ["id", "name"]})),
        (Work(output={"id": 1, "name": None}), 1.0, Ask({"fields": ["id", "name"], "null_ok": True})),
        (Work(output={"id": 1}, input={"required_fields": ["id"]}), 1.0),
        (Work(output={"id": 1}), Missing),
    ],
)
def has_required_fields(ask: Ask) -> Measure:
    """The share of the fields that the output has, null not counting."""
    _check_params(ask, "has_required_fields", FIELD_PARAMS)
    null_ok = _flag(ask, "null_ok")

    def make(fields: tuple[str, ...]) -> Search:
        def found(work: Work) -> list[str]:
            output = work.output
            return [name for name in fields if name in output and (null_ok or output[name] is not None)]

        return Search(fields, found)

    return _share(ask, ("fields",), ("required_fields",), make)


SCHEMA_PARAMS = {"schema": "the JSON Schema, where the work's input holds no output_schema"}


@metrics.add(
    "matches_schema",
    kind=MetricType.MATCHES_SCHEMA,
    params=SCHEMA_PARAMS,
    examples=[
        (Work(output={"id": 1}), 1.0, Ask({"schema": {"required": ["id"]}})),
        (Work(output={}), 0.0, Ask({"schema": {"required": ["id"]}})),
        (Work(output={"id": "1"}, input={"output_schema": {"properties": {"id": {"type": "integer"}}}}), 0.0),
        (Work(output={"id": 1}), Missing),
    ],
)
def matches_schema(ask: Ask) -> Measure:
    """1 when the whole output matches a JSON Schema, else 0 with the first reasons."""
    _check_params(ask, "matches_schema", SCHEMA_PARAMS)
    prepared = _schema(ask.params["schema"]) if "schema" in ask.params else None

    def measure(work: Work) -> Finding:
        schema = prepared
        if schema is None:
            if work.input.get("output_schema") is None:
                return Missing("no schema is given; write it as params.schema", fault=Fault.AUTHOR)
            try:
                schema = _schema(work.input["output_schema"])
            except AuthorError as problem:
                return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
        mismatches = schema.mismatches(_document(work))
        if isinstance(mismatches, Missing):
            return mismatches
        if not mismatches:
            return 1.0
        return Measured(0.0, details={"errors": [mismatch._asdict() for mismatch in mismatches]})

    return measure


def _schema(schema: Any) -> SafeSchema:
    if schema is True or schema == {}:
        raise AuthorError(
            "this schema accepts everything, so it can never fail; say what the output must hold"
        )
    return compile_schema(schema)
