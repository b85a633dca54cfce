"""Compiles untrusted JSON Schemas into validators that fetch nothing, do not hang and do not crash."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from meruit.errors import AuthorError
from meruit.metrics.support.schema_cost import ALLOWED, MAX_COST, SchemaGraph, ValidationCost
from meruit.metrics.support.schema_graph import SchemaReader, nodes
from meruit.model.evidence import Cause, Fault, Missing

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_DOCUMENT_DEPTH = 254
"""The deepest document that orjson writes; it also refuses cycles, quickly."""
MAX_SCHEMA_BYTES = 1_000_000
MAX_CACHED_SCHEMAS = 128
MAX_MISMATCHES = 5
MAX_MESSAGE_CHARS = 200
REPORT_LIMIT = ValidationCost(units=MAX_COST, checks=20_000, copies=1_000_000)
"""Above it only one mismatch is reported: each needs a full report and a copy of its value."""
MAX_REPORTED_BYTES = 4_000_000
"""Above it not even one is reported, because its copy would be too large."""


class RegexLimits(msgspec.Struct, frozen=True):
    """How large the machine for one regular expression may grow, and what that means for speed."""

    bytes_max: int
    patterns_max: int
    units_per_char: int


LIGHT = RegexLimits(bytes_max=16 << 10, patterns_max=500, units_per_char=5)
HEAVY = RegexLimits(bytes_max=1 << 20, patterns_max=50, units_per_char=800)
MAX_AUTOMATON_BYTES = 256 << 10
"""Memory for each pattern's cache of states."""

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NULL = re.compile(rb"null")

_Schema = dict[str, Any] | bool


class Mismatch(msgspec.Struct, frozen=True):
    """One thing in a document that the schema does not allow."""

    path: str
    """As `/items/3/sku`; empty for the whole."""
    message: str


@dataclass(frozen=True, slots=True)
class SafeSchema:
    """A compiled schema that can validate any value."""

    validator: "Validator"
    graph: SchemaGraph | None
    """None for the schemas `true` and `false`."""
    branches: bool
    """Whether one mismatch can hold others."""
    light_bytes: int = 0
    """A document that is not longer can always be validated."""

    def validates_lightly(self, document: Any, written: bytes | None) -> bool:
        """Whether a document that is cheap to validate matches; false says nothing."""
        if written is None or len(written) > self.light_bytes or document.__class__ is not dict:
            return False
        try:
            return self.validator.is_valid(document)
        except ValueError:
            return False

    def mismatches(self, document: Any, written: bytes | None = None) -> tuple[Mismatch, ...] | Missing:
        """The first few mismatches; empty when the document matches; Missing when that is unknown.

        `written` is the document as JSON, where that is known; its keys may be in any order.
        """
        if written is None:
            made = _write_document(document)
            if isinstance(made, Missing):
                return made
            written = made
        is_reportable = None
        if len(written) > self.light_bytes and self.graph and not self.graph.affords_any(written, ALLOWED):
            # One walk answers two questions as a rule: what may be reported may be judged.
            is_reportable = self.graph.walk(document, written, REPORT_LIMIT)
        if self.graph and is_reportable is False and not self.graph.walk(document, written, ALLOWED):
            return Missing(
                "the schema costs too much on this output: it refers to itself too often, or the output is too large",
                cause=Cause.TOO_COSTLY,
                fault=Fault.AUTHOR,
            )
        try:
            if self.validator.is_valid(document):
                return ()
            if is_reportable is None:
                is_reportable = self.graph is None or self.graph.affords(document, written, REPORT_LIMIT)
            return self._list_mismatches(document, written, several=is_reportable)
        except ValueError as problem:
            return Missing(f"the output is not JSON: {_short(str(problem))}")

    def _list_mismatches(self, document: Any, written: bytes, *, several: bool) -> tuple[Mismatch, ...]:
        """Where it does not match: in several places, where that can be afforded, or in one."""
        if several:
            return tuple(map(_mismatch, islice(self.validator.iter_errors(document), MAX_MISMATCHES)))
        if not self.branches and len(written) <= MAX_REPORTED_BYTES:
            return _first(self.validator, document)
        return (Mismatch("", "does not match the schema; the output is too large to say where"),)


def _write_document(document: Any) -> bytes | Missing:
    """A document as JSON. Only JSON can be validated: sets, huge numbers, cycles and lone surrogates are refused."""
    try:
        written = orjson.dumps(document, option=_STRICT)
    except (TypeError, RecursionError) as problem:
        return Missing(f"the output is not JSON of at most {MAX_DOCUMENT_DEPTH} levels: {problem}")
    # NaN is written as null, so a null may be one.
    if _NULL.search(written) and _has_nan(document):
        return Missing("the output is not JSON: it holds NaN or infinity")
    return written


def compile_schema(schema: Any) -> SafeSchema:
    """Compile the schema; raises AuthorError for an invalid one. Equal schemas are compiled once."""
    if not isinstance(schema, dict | bool):
        raise AuthorError(f"a JSON Schema must be an object, not {type(schema).__name__}")
    try:
        written = orjson.dumps(schema, option=_STRICT)
    except (TypeError, RecursionError) as problem:
        raise AuthorError(f"the schema is not JSON: {problem}") from None
    if len(written) > MAX_SCHEMA_BYTES:
        raise AuthorError(f"the schema is longer than {MAX_SCHEMA_BYTES} bytes; shorten it")
    if _NULL.search(written) and _has_nan(schema):
        raise AuthorError("the schema is not JSON: it has NaN or infinity")
    compiled = _compile_or_explain(written)
    if isinstance(compiled, str):
        raise AuthorError(compiled)
    return compiled


@lru_cache(maxsize=MAX_CACHED_SCHEMAS)
def _compile_or_explain(written: bytes) -> SafeSchema | str:
    """The compiled schema or the error message; both are cached."""
    try:
        return _compile(orjson.loads(written))
    except AuthorError as problem:
        return str(problem)


def _compile(schema: _Schema) -> SafeSchema:
    if isinstance(schema, bool):
        return SafeSchema(_validator(schema, LIGHT), graph=None, branches=False)
    # The schema's own $id is not needed, and could equal that of a known schema.
    for key in ("$id", "id"):
        if isinstance(schema.get(key), str):
            del schema[key]
    reader = SchemaReader(schema)
    reader.read()
    engine = _engine(reader.patterns)
    graph = SchemaGraph(reader, units_per_char=engine.units_per_char if reader.patterns else 1)
    return SafeSchema(_validator(schema, engine), graph, reader.branches, graph.light_bytes())


def _engine(patterns: dict[str, str]) -> RegexLimits:
    """The lightest that can run all patterns."""
    if len(patterns) > LIGHT.patterns_max:
        raise AuthorError(f"the schema has {len(patterns)} patterns; the limit is {LIGHT.patterns_max}")
    if _first_unsupported_pattern(patterns, LIGHT) is None:
        return LIGHT
    if len(patterns) > HEAVY.patterns_max:
        raise AuthorError(
            f"the schema has {len(patterns)} patterns; with large ones among them the limit is {HEAVY.patterns_max}"
        )
    refused = _first_unsupported_pattern(patterns, HEAVY)
    if refused is None:
        return HEAVY
    raise AuthorError(
        f"{patterns[refused]} in the schema: {_short(repr(refused))} cannot be run in linear time; "
        "look-around, backreferences and very large repetitions are not allowed"
    )


def _first_unsupported_pattern(patterns: Iterable[str], engine: RegexLimits) -> str | None:
    for pattern in patterns:
        try:
            _validator({"pattern": pattern}, engine)
        except AuthorError:
            return pattern
    return None


def _validator(schema: _Schema, engine: RegexLimits) -> "Validator":
    # Imported here, because the import takes milliseconds.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            schema,
            offline=True,
            validate_formats=False,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=engine.bytes_max, dfa_size_limit=MAX_AUTOMATON_BYTES),
        )
    except ValueError as problem:
        # The library's own errors say where; their first line says what.
        where = _pointer(getattr(problem, "instance_path", ())) or "the top"
        raise AuthorError(f"the schema is invalid at {where}: {_short(str(problem).splitlines()[0])}") from None


def _first(validator: "Validator", document: Any) -> tuple[Mismatch, ...]:
    import jsonschema_rs

    try:
        validator.validate(document)
    except jsonschema_rs.ValidationError as problem:
        return (_mismatch(problem),)
    return ()


def _mismatch(error: "ValidationError") -> Mismatch:
    return Mismatch(_short(_pointer(error.instance_path)), _short(error.message))


def _pointer(path: Iterable[str | int]) -> str:
    return "".join(f"/{step}" for step in path)


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"


def _has_nan(value: Any) -> bool:
    return any(isinstance(node, float) and not math.isfinite(node) for node, _ in nodes(value))
