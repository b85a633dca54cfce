"""Metrics of content: keywords, patterns, fields and JSON Schema."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import orjson

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import PresenceSearch, check_params, flag, measure_share
from meruit.metrics.support.pattern import compile_pattern, matching_patterns
from meruit.metrics.support.schema import SafeSchema, compile_schema
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.kinds import MetricType
from meruit.model.text import normalize_unicode
from meruit.model.work import Work, written_output
from meruit.registry import Ask, Finding, Measure, metrics

MAX_SEARCH_WORK = 1_000_000_000
"""Characters of text times keywords to be searched for in it: about four seconds at worst, half of one as a rule."""
MARK = "\0"
"""The mark at both ends of each word in a marked text."""


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


def _casefold_text(work: Work) -> str | Missing:
    """The text with case folded."""
    text: Any = work.output.get("text")
    if text.__class__ is not str:
        text = work.derive(_text)
    if isinstance(text, Missing):
        return text
    folded = text.casefold()
    # Without two calls where there is nothing to compose.
    return folded if folded.isascii() else _compose(folded)


def _composed_text(work: Work) -> str | Missing:
    """The text as it is written, but for letters with accents."""
    text = work.derive(_text)
    return text if isinstance(text, Missing) else _compose(text)


def _compose(text: str) -> str:
    """In canonical form: a letter and its accent may be written as one character or as two."""
    return normalize_unicode("NFC", text)


def _encode_text(work: Work) -> bytes | Missing:
    """The text in the form that patterns search."""
    text = work.derive(_text)
    if isinstance(text, Missing):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return Missing("output.text holds half a character, so no pattern can be held against it")


def _document(work: Work) -> dict[str, Any]:
    return work.output if isinstance(work.output, dict) else dict(work.output)


def _words(work: Work) -> "Words | Missing":
    text = work.derive(_composed_text)
    return text if isinstance(text, Missing) else Words(text)


def _casefold_words(work: Work) -> "Words | Missing":
    text = work.derive(_casefold_text)
    return text if isinstance(text, Missing) else Words(text)


@dataclass(frozen=True)
class Words:
    """A text cut into its words, which is done when first needed."""

    text: str

    @cached_property
    def distinct(self) -> frozenset[str]:
        """Every word, once."""
        return frozenset(word[0] for word in _word_pattern(self.text).finditer(self.text))

    @cached_property
    def text_with_marks(self) -> str:
        """The text with a mark at both ends of each word."""
        return _mark_words(self.text, _word_pattern(self.text))


def _word_pattern(text: str) -> re.Pattern[str]:
    """What a word is in this text: letters, digits, underscores, and the accents that join them."""
    # A class of all accents takes long to build, so only those in the text are used.
    accents = [] if text.isascii() else sorted(char for char in set(text) if unicodedata.category(char)[0] == "M")
    return re.compile(f"([\\w{''.join(accents)}]+)")


def _mark_words(text: str, words: re.Pattern[str]) -> str:
    return MARK.join(words.split(text))


# How keywords are searched for; each is given as it is searched for, and as it was written.


def _substring_finder(
    keywords: Mapping[str, str], read: Callable[[Work], str | Missing]
) -> Callable[[Work], list[str] | Missing]:
    """Find the keywords that are a part of the text."""
    pairs, count = tuple(keywords.items()), len(keywords)

    def find(work: Work) -> list[str] | Missing:
        text = work.derive(read)
        if isinstance(text, Missing):
            return text
        if len(text) * count > MAX_SEARCH_WORK:
            return _too_many(keywords)
        return [name for keyword, name in pairs if keyword in text]

    return find


def _whole_word_finder(
    keywords: Mapping[str, str], read: Callable[[Work], Words | Missing]
) -> Callable[[Work], list[str] | Missing]:
    """Find the keywords that the text holds with no letter, digit or accent next to theirs."""
    word = _word_pattern("".join(keywords))
    # A single word is found in a set. For phrases, word ends are marked on both sides, so that only whole words match.
    phrases = {keyword: _mark_words(keyword, word) for keyword in keywords if not word.fullmatch(keyword)}
    for keyword in phrases:
        if MARK in keyword:
            raise AuthorError(f"the keyword {keyword!r} has the character NUL, which never matches; remove it")

    def find(work: Work) -> list[str] | Missing:
        words = work.derive(read)
        if isinstance(words, Missing):
            return words
        if phrases and len(words.text_with_marks) * len(phrases) > MAX_SEARCH_WORK:
            return _too_many(phrases)
        return [
            name
            for keyword, name in keywords.items()
            if (phrases[keyword] in words.text_with_marks if keyword in phrases else keyword in words.distinct)
        ]

    return find


def _too_many(keywords: Mapping[str, str]) -> Missing:
    return Missing(
        f"{len(keywords)} keywords are too many for an output of this length; list fewer",
        cause=Cause.TOO_COSTLY,
        fault=Fault.AUTHOR,
    )


# The metrics.


KEYWORD_PARAMS = {
    "keywords": "what to look for, where the threshold does not list it",
    "whole_word": "true: `cat` is not found in `concatenate`",
    "case_sensitive": "true: `Cat` is not found in `cat`",
}


@metrics.add(
    "contains_keywords",
    kind=MetricType.CONTAINS,
    # Version 2 compares in canonical form.
    version="2",
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
    check_params(ask, "contains_keywords", KEYWORD_PARAMS)
    whole, sensitive = flag(ask, "whole_word"), flag(ask, "case_sensitive")

    def make(keywords: tuple[str, ...]) -> PresenceSearch:
        distinct: dict[str, str] = {}
        for keyword in keywords:
            distinct.setdefault(_compose(keyword if sensitive else keyword.casefold()), keyword)
        if whole:
            found = _whole_word_finder(distinct, _words if sensitive else _casefold_words)
        else:
            found = _substring_finder(distinct, _composed_text if sensitive else _casefold_text)
        return PresenceSearch(tuple(distinct.values()), found)

    return measure_share(ask, ("keywords",), ("required_keywords",), make)


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
    check_params(ask, "matches_pattern", PATTERN_PARAMS)
    full, ignore_case = flag(ask, "full"), flag(ask, "ignore_case")

    def make(texts: tuple[str, ...]) -> PresenceSearch:
        patterns = [(text, compile_pattern(text, ignore_case=ignore_case)) for text in texts]

        def find(work: Work) -> list[str] | Missing:
            text = work.derive(_encode_text)
            return text if isinstance(text, Missing) else matching_patterns(text, patterns, full=full)

        return PresenceSearch(texts, find)

    return measure_share(ask, ("pattern", "patterns"), ("pattern", "output_pattern"), make)


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
    """The share of the fields that the output has; null does not count."""
    check_params(ask, "has_required_fields", FIELD_PARAMS)
    null_ok = flag(ask, "null_ok")

    def make(fields: tuple[str, ...]) -> PresenceSearch:
        def find(work: Work) -> list[str]:
            output = work.output
            return [name for name in fields if name in output and (null_ok or output[name] is not None)]

        return PresenceSearch(fields, find)

    return measure_share(ask, ("fields",), ("required_fields",), make)


SCHEMA_PARAMS = {"schema": "the JSON Schema, where the work's input holds no output_schema; `format` is not checked"}


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
    check_params(ask, "matches_schema", SCHEMA_PARAMS)
    if "schema" not in ask.params:
        return _match_schema_of_input
    schema = _schema(ask.params["schema"])

    def measure(work: Work) -> Finding:
        # The usual case first: nothing has to be listed.
        is_valid = schema.validates_lightly(work.output, work.derive(written_output))
        return 1.0 if is_valid else _match_schema(schema, work)

    return measure


def _match_schema_of_input(work: Work) -> Finding:
    """1 when the output matches the schema in the input, else 0."""
    if work.input.get("output_schema") is None:
        return Missing("no schema is given; write it as params.schema", fault=Fault.AUTHOR)
    try:
        schema = _schema(work.input["output_schema"])
    except AuthorError as problem:
        return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
    return _match_schema(schema, work)


def _match_schema(schema: SafeSchema, work: Work) -> Finding:
    mismatches = schema.mismatches(_document(work), work.derive(written_output))
    if isinstance(mismatches, Missing):
        return mismatches
    if not mismatches:
        return 1.0
    return Measured(0.0, details={"errors": [msgspec.structs.asdict(mismatch) for mismatch in mismatches]})


def _schema(schema: Any) -> SafeSchema:
    if schema is True or schema == {}:
        raise AuthorError("this schema accepts everything, so it can never fail; require something of the output")
    return compile_schema(schema)
