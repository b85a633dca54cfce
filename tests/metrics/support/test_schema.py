"""A stranger's schema can neither reach out nor hang nor crash, and says what the specification says."""

import http.server
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import examples

from meruit.errors import AuthorError
from meruit.metrics.support import schema as safe_schema
from meruit.metrics.support.schema import (
    MAX_DOCUMENT_DEPTH,
    MAX_MESSAGE_CHARS,
    MAX_MISMATCHES,
    REPORT_LIMIT,
    compile_schema,
)
from meruit.metrics.support.schema_cost import ALLOWED, SchemaGraph, SubschemaUse, ValidationCost
from meruit.metrics.support.schema_graph import MAX_REFERENCES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES
from meruit.model.evidence import Cause, Fault, Missing

PATIENCE_S = 30.0
"""CPU time after which something hangs; what it guards against would take hours."""


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < PATIENCE_S


def nested(value: Any, times: int, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(times):
        value = wrap(value)
    return value


def in_a(value: Any) -> Any:
    return {"a": value}


def doubling(levels: int, leaf: Any) -> dict[str, Any]:
    """Each definition refers twice to the next."""
    twice = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": twice | {f"d{levels}": leaf}}


def verdict(schema: Any, document: Any) -> bool:
    mismatches = compile_schema(schema).mismatches(document)
    assert not isinstance(mismatches, Missing), mismatches
    return not mismatches


def missing(schema: Any, document: Any) -> Missing:
    finding = compile_schema(schema).mismatches(document)
    assert isinstance(finding, Missing), finding
    return finding


def too_costly(schema: Any, document: Any) -> None:
    finding = missing(schema, document)
    assert (finding.cause, finding.fault) == (Cause.TOO_COSTLY, Fault.AUTHOR)


# The same verdict as the reference implementation.

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab", "é"])
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
ASSERTIONS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean"]),
        "enum": st.lists(LEAVES, min_size=1, max_size=3),
        "const": DOCUMENTS,
        "minimum": st.integers(-2, 2),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["a", "^a?$", "b$"]),
        "minItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        "maxProperties": st.integers(0, 2),
        "dependentRequired": st.just({"a": ["b"]}),
    },
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    applied = st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), many),
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "propertyNames"), inner),
            **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^[bc]$"]), inner, max_size=2),
        },
    )
    return st.builds(lambda one, other: one | other, ASSERTIONS, applied)


SCHEMAS = st.recursive(ASSERTIONS | st.booleans(), _larger, max_leaves=5)


@examples(50)
@given(SCHEMAS, DOCUMENTS)
def test_the_verdict_is_that_of_the_reference_implementation(schema: Any, document: Any) -> None:
    assert verdict(schema, document) == jsonschema.Draft202012Validator(schema).is_valid(document)


LIMITS = st.builds(ValidationCost, *[st.integers(0, 400)] * 3)


@examples(50)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), DOCUMENTS, LIMITS)
def test_what_a_count_of_commas_affords_a_walk_affords_too(schema: Any, document: Any, limit: ValidationCost) -> None:
    graph, written = compile_schema(schema).graph, orjson.dumps(document)
    assert graph is not None
    if graph.affords_any(written, limit):
        assert graph.walk(document, written, limit)


def applied_below(parts: list[tuple[SubschemaUse, int]], key: str | int) -> Counter[int]:
    """What parts apply to the child under a key, and how often."""
    below = Counter[int]()
    for (place, judged, marked), times in parts:
        for target in place.of_name(key) if isinstance(key, str) else place.of_item(key):
            below[target] += judged * times
        for target in place.again if marked else ():
            below[target] += marked * times
    return below


def plain_walk(graph: SchemaGraph, document: Any, written: bytes, limit: ValidationCost) -> bool:
    """The oracle: every value for itself, nothing remembered; what applies above it comes along."""
    units = checks = copies = reread = copied = visited = seen = 0
    waiting: list[tuple[Any, dict[int, int], int, int]] = [(document, {graph.root: 1}, 0, 0)]
    while waiting:
        value, places, reads, above = waiting.pop()
        parts = [(part, times) for place, times in places.items() for part in graph.spread(place).parts]
        own = sum(graph.spread(place).own * times for place, times in places.items())
        reads += sum(graph.spread(place).reads * times for place, times in places.items())
        above, chars = above + own, len(value) if isinstance(value, str) else 0
        inside = len(value) if isinstance(value, dict | list) else 0
        units += own + reads + reads * chars // 16
        units += chars * sum(graph.spread(place).text * times for place, times in places.items())
        if isinstance(value, dict):
            letters = sum(map(len, value))
            units += letters * sum(graph.spread(place).names * times for place, times in places.items())
            for (place, judged, marked), times in parts:
                if place.name is not None:
                    name = graph.spread(place.name)
                    units += times * (judged + marked) * (name.own * inside + name.text * letters)
        checks, copies = checks + own, copies + above * (1 + chars // 16)
        visited, seen = visited + 1, seen + chars
        if units > limit.units or checks + inside > limit.checks or copies > limit.copies:
            return False
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in children:
            below = applied_below(parts, key)
            if below:
                waiting.append((item, dict(below), reads, above))
            else:
                reread, copied = max(reread, reads), max(copied, above)
    values = 1 + written.count(b",") + written.count(b"[") + written.count(b"{")
    rest = values - visited + (len(written) - seen) // 16
    return units + reread * rest <= limit.units and copies + copied * rest <= limit.copies


@examples(100)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), DOCUMENTS, LIMITS, st.booleans())
def test_a_walk_that_remembers_what_applies_is_the_plain_walk(
    schema: dict[str, Any], document: Any, limit: ValidationCost, is_recursive: bool
) -> None:
    if is_recursive:
        again = {"$ref": "#"}
        schema = {
            "$defs": {"it": schema},
            "allOf": [{"$ref": "#/$defs/it"}],
            "items": again,
            "properties": {"a": again},
        }
    graph, written = compile_schema(schema).graph, orjson.dumps(document)
    assert graph is not None
    for bound in (limit, ALLOWED, REPORT_LIMIT):
        assert graph.walk(document, written, bound) is plain_walk(graph, document, written, bound)


@examples(30)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), DOCUMENTS)
def test_a_schema_that_holds_itself_is_walked_and_judged_the_same(schema: dict[str, Any], document: Any) -> None:
    recursive = {"$defs": {"it": schema}, "allOf": [{"$ref": "#/$defs/it"}], "properties": {"a": {"$ref": "#"}}}
    assert verdict(recursive, document) == jsonschema.Draft202012Validator(recursive).is_valid(document)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/x~1y%20z", "$defs": {"x/y z": {"type": "null"}}}, None, 1),
        ({"$ref": "#/components/0/n", "components": [{"n": {"type": "null"}}]}, None, 1),
        ({"$ref": "#/components/x", "components": {"x": {"$ref": "#/other"}}, "other": {"type": "null"}}, None, 1),
        ({"items": {"$ref": "#here"}, "$defs": {"x": {"$anchor": "here", "type": "null"}}}, [None], [1]),
        ({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}, "required": ["b"]}, {"b": 1}, {"a": 1}),
        ({"$ref": "#/$defs/no", "$defs": {"no": False}, "$comment": "unreachable"}, None, None),
        ({"$id": "https://example.org/it", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "null"}}}, [], [1]),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/y", "type": "null"}, None, 1),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}, [None], [1]),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "items": {"$recursiveRef": "#"},
                "type": "array",
            },
            [[]],
            [1],
        ),
        ({"properties": {"$ref": {"type": "null"}, "$id": {"type": "null"}}}, {"$id": None}, {"$ref": "http://x"}),
        ({"enum": [{"$ref": "http://127.0.0.1:9/"}]}, {"$ref": "http://127.0.0.1:9/"}, 1),
        ({"dependencies": {"a": ["b"]}, "$schema": "http://json-schema.org/draft-07/schema#"}, {"b": 1}, {"a": 1}),
    ],
)
def test_local_references_of_every_kind_are_followed(schema: Any, good: Any, bad: Any) -> None:
    assert verdict(schema, good) == (good is not bad)
    assert not verdict(schema, bad)


# Nothing outside the schema is read.


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server that serves a schema, and the list of what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - so named by the base
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/schema.json", asked
        server.shutdown()
        thread.join()


def _reaching_out(address: str) -> list[Any]:
    host, _, file = address.rpartition("/")
    return [
        {"$ref": address},
        {"$ref": f"{address}#/x"},
        {"$schema": address},
        {"$dynamicRef": f"{address}#x"},
        {"$recursiveRef": address},
        {"$id": f"{host}/", "$ref": file},
        {"$id": address, "items": {"$ref": file}},
        {"items": {"$id": f"{host}/", "$ref": "#"}},
        {"$defs": {"unused": {"$ref": address}}},
        {"$ref": "#/x", "x": {"$ref": address}},
        {"$ref": "#/x/y", "x": {"$id": f"{host}/", "y": {"$ref": "#/z"}}},
        {"items": {"$schema": address}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "items": {"id": f"{host}/", "$ref": "#"}},
        {"contentSchema": {"$ref": address}},
        {"properties": {"a": {"anyOf": [{"not": {"$ref": address}}]}}},
    ]


def test_no_address_is_ever_asked(listener: tuple[str, list[str]]) -> None:
    address, asked = listener
    for schema in _reaching_out(address):
        with pytest.raises(AuthorError):
            compile_schema(schema)
    assert asked == []


def test_no_file_is_ever_read(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text("true")
    for address in (file.as_uri(), str(file), "schema.json", "../schema.json", "//localhost" + str(file)):
        for schema in _reaching_out(address):
            with pytest.raises(AuthorError):
                compile_schema(schema)


def test_the_validator_itself_is_offline(listener: tuple[str, list[str]]) -> None:
    address, asked = listener
    with pytest.raises(AuthorError, match="disabled"):
        safe_schema._validator({"$ref": address}, safe_schema.LIGHT)
    assert asked == []


def test_references_to_a_metaschema_are_refused_too() -> None:
    with pytest.raises(AuthorError, match=r"under \$defs"):
        compile_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})


# What cannot be used is refused, with what to do.


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{}", "not str"),
        ([], "not list"),
        (None, "not NoneType"),
        ({"type": "strin"}, "invalid at /type"),
        ({"properties": {"a": {"minimum": "3"}}}, "invalid at /properties/a/minimum"),
        ({"properties": 5}, "invalid at /properties"),
        ({"allOf": {}}, "invalid at /allOf"),
        ({"items": 5}, "invalid at /items"),
        ({"propertyNames": 5}, "invalid at /propertyNames"),
        ({"multipleOf": 0}, "invalid at /multipleOf"),
        ({"$ref": 5}, "invalid at /\\$ref"),
        ({"$ref": "#/$defs/absent"}, "/absent"),
        ({"$ref": "#/x/7", "x": [True]}, "#/x/7"),
        ({"$ref": "#/x/y/z", "x": {"y": 5}}, "#/x/y/z"),
        ({"$ref": "#absent"}, "#absent"),
        ({"$ref": "#/" + "x" * 500}, "…"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}, "two places .* 'x'"),
        ({"$schema": "http://example.org/mine"}, "2020-12"),
        ({"$schema": 5}, "2020-12"),
        ({"const": {1, 2}}, "not JSON"),
        ({"const": 10**30}, "not JSON"),
        ({"const": "\ud800"}, "not JSON"),
        ({"\ud800": 1}, "not JSON"),
        ({"const": math.nan}, "NaN"),
        ({"maxLength": math.inf}, "infinity"),
        ({"pattern": "(?=a)"}, "/pattern .*look-around"),
        ({"pattern": r"(a)\1"}, "backreferences"),
        ({"pattern": "((((a{99}){99}){99}){99})"}, "repetitions"),
        ({"items": {"patternProperties": {"(": True}}}, "/items/patternProperties"),
        ({"pattern": "(" * 50_000 + ")" * 50_000}, "linear"),
        ({"anyOf": [{"pattern": f"^{number}$"} for number in range(501)]}, "501 patterns"),
        ({"anyOf": [{"pattern": f"^{number}.{{900}}$"} for number in range(51)]}, "51 patterns"),
        ({"description": "x" * 1_000_001}, "bytes"),
        ({"enum": list(range(MAX_SCHEMA_NODES))}, f"more than {MAX_SCHEMA_NODES} values"),
        (nested({}, MAX_SCHEMA_DEPTH, lambda inner: {"not": inner}), f"more than {MAX_SCHEMA_DEPTH} deep"),
        (nested({}, 100_000, lambda inner: {"not": inner}), "not JSON"),
        ({"allOf": [{"$ref": "#/$defs/a"}] * (MAX_REFERENCES + 1), "$defs": {"a": True}}, "references"),
        ({"$ref": "#"}, "itself"),
        ({"not": {"$ref": "#"}}, "itself"),
        ({"$dynamicAnchor": "n", "$dynamicRef": "#n"}, "itself"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"if": {"$ref": "#/$defs/a"}}},
            },
            r"\$defs/[ab] .* itself",
        ),
        (doubling(25, {"type": "integer"}), "unfolds"),
        (
            nested({}, 30, lambda inner: {"unevaluatedProperties": False, "allOf": [inner]}),
            "unevaluated…",
        ),
        (doubling(14, {}) | {"unevaluatedItems": False}, "unevaluated…"),
        (
            {
                "$ref": "#/$defs/d0",
                "$defs": {
                    f"d{number}": nested({"$ref": f"#/$defs/d{number + 1}"}, 50, lambda inner: {"not": inner})
                    for number in range(30)
                }
                | {"d30": {}},
            },
            "deep",
        ),
        (
            {
                "$ref": "#/$defs/d0",
                "$defs": {
                    f"d{number}": {"items": {"$ref": f"#/$defs/d{number + 1}"}, "allOf": [{"$ref": "#/$defs/e0"}]}
                    for number in range(200)
                }
                | {"d200": {}}
                | {
                    f"e{number}": nested({"$ref": f"#/$defs/e{number + 1}"}, 40, lambda inner: {"not": inner})
                    for number in range(90)
                }
                | {"e90": {}},
            },
            "entangled",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "schema",
)
def test_an_unusable_schema_is_refused_with_a_reason(schema: Any, says: str) -> None:
    for _ in range(2):
        with pytest.raises(AuthorError, match=says) as refusal:
            compile_schema(schema)
        assert len(str(refusal.value)) < 500


def test_a_schema_that_contains_itself_in_memory_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["not"] = schema
    with pytest.raises(AuthorError, match="not JSON"):
        compile_schema(schema)


def test_equal_schemas_are_compiled_once_and_keep_no_hold_on_the_callers_object() -> None:
    schema = {"required": ["compiled once"]}
    first = compile_schema(schema)
    assert compile_schema({"required": ["compiled once"]}) is first
    schema["required"].clear()
    assert first.mismatches({})


# Documents of every kind end in a verdict or a reason.


def test_no_document_is_too_deep_to_answer() -> None:
    schema = {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert verdict({"type": "object"}, nested(1, MAX_DOCUMENT_DEPTH, in_a))
    for depth in (MAX_DOCUMENT_DEPTH + 1, 100_000):
        finding = missing(schema, nested(1, depth, in_a))
        assert (finding.cause, finding.fault) == (Cause.METRIC_MISSING, Fault.AGENT)


def test_a_cyclic_document_is_missing() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["a"] = [cyclic]
    for schema in ({"properties": {"a": {"$ref": "#"}}}, {"type": "object"}, {"uniqueItems": True}):
        assert missing(schema, cyclic).fault is Fault.AGENT


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {1}, b"x", object(), 2**64, -(2**63) - 1, 10**5_000, "\ud800", {"\ud800": 1}, {1: 2}, 1j],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_is_not_json_is_missing_at_any_depth(value: Any) -> None:
    for schema in ({"type": "object"}, {"properties": {"a": {"type": "number"}}}, True):
        finding = missing(schema, {"a": [value], "null": None})
        assert (finding.cause, finding.fault) == (Cause.METRIC_MISSING, Fault.AGENT)


def test_values_that_only_the_writer_accepts_are_missing() -> None:
    import uuid

    assert "not JSON" in missing({"properties": {"a": {"type": "string"}}}, {"a": uuid.UUID(int=1)}).why


def test_null_is_json() -> None:
    assert verdict({"properties": {"a": {"type": "null"}}}, {"a": None, "b": [1.5, None]})


def test_exponential_patterns_are_harmless() -> None:
    schema = {"properties": {"text": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(a|a)*$": True}}
    assert not verdict(schema, {"text": "a" * 1_000_000 + "!", "a" * 100_000 + "!": 1})


def test_a_large_pattern_is_run_on_texts_that_it_can_afford() -> None:
    schema = {"pattern": "^.{1,1000}$"}
    assert verdict(schema, "é" * 1_000)
    assert not verdict(schema, "é" * 1_001)
    too_costly(schema, "é" * 1_000_000)


def test_ten_megabytes_of_text_are_read() -> None:
    assert verdict({"properties": {"text": {"minLength": 10_000_000}}}, {"text": "x" * 10_000_000})


# What would take too long is not begun.


def test_a_schema_that_doubles_with_each_level_costs_too_much() -> None:
    branch = {"properties": {"a": {"$ref": "#"}}}
    for keyword in ("anyOf", "allOf", "oneOf"):
        too_costly({keyword: [branch, branch]}, nested(1, 40, in_a))
    assert verdict({"anyOf": [branch, branch]}, nested(1, 5, in_a))


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {"properties": {"a": {"$ref": "#"}}}, "then": {"properties": {"a": {"$ref": "#"}}}},
        {"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}},
        {"patternProperties": {"a": {"$ref": "#"}, "^a": {"$ref": "#"}}},
        {"dependentSchemas": {"a": {"properties": {"a": {"$ref": "#"}}}}, "additionalProperties": {"$ref": "#"}},
        {"unevaluatedProperties": {"$ref": "#"}, "$defs": {}},
        {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {"$ref": "#"}}}]},
    ],
    ids=["if", "pattern", "patterns", "dependent", "unevaluated", "marked"],
)
def test_other_ways_of_doubling_cost_too_much_too(schema: Any) -> None:
    too_costly(schema, nested(1, 60, in_a))


@pytest.mark.parametrize(
    "schema", [{"contains": {"$ref": "#"}, "items": {"$ref": "#"}}, {"unevaluatedItems": {"$ref": "#"}}]
)
def test_lists_can_double_as_well(schema: Any) -> None:
    too_costly(schema, nested([], 60, lambda inner: [inner]))


def test_names_are_counted() -> None:
    schema = {"propertyNames": {"anyOf": [{"pattern": f"^{number}x"} for number in range(100)]}}
    too_costly(schema, {f"{number}" * 100: 1 for number in range(3_000)})
    too_costly({"items": {"$ref": "#"}} | schema, [{f"{number}" * 100: 1 for number in range(3_000)}])


def test_a_tree_does_not_unfold() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}
    assert verdict(tree, nested(1, 200, lambda inner: {"left": inner, "other": 1}))
    lists = {"prefixItems": [{"$ref": "#"}], "items": {"$ref": "#"}}
    assert verdict(lists, nested(1, 200, lambda inner: [inner, 1]))


def test_a_long_chain_at_every_level_is_not_followed_off_the_stack() -> None:
    chain = {f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}]} for number in range(200)}
    schema = {"$ref": "#/$defs/d0", "$defs": chain | {"d200": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}}}
    too_costly(schema, nested({}, 250, in_a))


def test_many_choices_on_many_items_cost_too_much() -> None:
    choices = {"enum": [{"a": number} for number in range(6_000)]}
    too_costly({"items": choices}, [{"a": -1}] * 6_000)
    assert not verdict({"items": choices}, [{"a": -1}] * 10)


def test_reading_the_same_again_at_each_level_costs_too_much() -> None:
    schema = {"items": {"$ref": "#"}, "uniqueItems": True}
    too_costly(schema, nested(list(range(60_000)), 250, lambda inner: [inner, *range(30)]))
    deep = {"uniqueItems": True, "prefixItems": [{"$ref": "#"}]}
    too_costly(deep, nested(list(range(100_000)), 250, lambda inner: [inner, *range(30)]))


def test_a_walk_has_a_limit_of_its_own() -> None:
    too_costly({"items": {"$ref": "#"}}, [[1]] * 300_000)


def test_a_large_document_with_a_wide_schema_is_affordable() -> None:
    wide = {"items": {"properties": {f"p{number}": {"type": "integer"} for number in range(900)}}}
    assert verdict(wide, [{f"p{number}": number for number in range(900)} for _ in range(50)])
    plain = {"items": {"required": ["id"], "properties": {"id": {"type": "integer"}}}}
    assert verdict(plain, [{"id": number, "rest": ["some text"]} for number in range(50_000)])


# What does not match is said, briefly.


def test_the_first_few_mismatches_are_listed() -> None:
    mismatches = compile_schema({"items": {"type": "integer"}}).mismatches(["x"] * 100)
    assert not isinstance(mismatches, Missing)
    assert [mismatch.path for mismatch in mismatches] == [f"/{number}" for number in range(MAX_MISMATCHES)]
    assert all(value in mismatches[0].message for value in ('"x"', '"integer"'))


def test_false_matches_nothing_and_says_so() -> None:
    mismatches = compile_schema(False).mismatches({})
    assert not isinstance(mismatches, Missing)
    assert len(mismatches) == 1
    assert verdict(True, {})


@pytest.mark.parametrize(
    ("schema", "document", "paths"),
    [
        ({"properties": {"text": {"type": "integer"}}}, {"text": "x" * 1_000_000}, ["/text"]),
        ({"type": "integer"}, {"text": "x" * 3_000_000}, [""]),
        ({"type": "integer"}, {"text": "x" * 5_000_000}, [""]),
        ({"items": {"type": "integer"}}, ["x"] * 100_000, ["/0"]),
        ({"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, ["x"] * 100_000, [""]),
        ({"anyOf": [{"type": "integer"}] * 300}, ["x" * 1_000] * 1_000, [""]),
        ({"required": [f"k{number}" for number in range(1_000)]}, {"a": ["x"] * 10_000}, [""]),
        ({"additionalProperties": False}, {"k" * 1_000_000: 1}, [""]),
        ({"additionalProperties": {"type": "null"}}, {"k" * 1_000: 1}, ["/" + "k" * (MAX_MESSAGE_CHARS - 1) + "…"]),
    ],
    ids=["text", "root", "huge", "many", "branches", "copies", "required", "name", "path"],
)
def test_a_report_stays_small_however_large_the_document(schema: Any, document: Any, paths: list[str]) -> None:
    mismatches = compile_schema(schema).mismatches(document)
    assert not isinstance(mismatches, Missing)
    assert [mismatch.path for mismatch in mismatches] == paths
    assert all(0 < len(mismatch.message) <= MAX_MESSAGE_CHARS + 1 for mismatch in mismatches)
