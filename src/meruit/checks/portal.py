"""Check `portal-state-match`: an application's rows, selected and compared, or a query over all of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Self

from pydantic import Field, TypeAdapter, field_validator, model_validator

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import (
    DEFER_BUILD,
    EvidenceDisplay,
    FieldRule,
    MatchMode,
    PathRule,
    SelectionAssertion,
    as_rule,
    compile_rules,
    fields_of,
)
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext, ParsedItem, missing_if_unread
from meruit.checks.framework.identity import row_identity
from meruit.checks.framework.selection import (
    MAX_LISTED,
    FieldResult,
    base_evidence,
    decide,
    describe_unreadable,
    field_result,
    missing_if_not_kept,
    parse_items,
    split_by_fault,
)
from meruit.checks.matching.matchers import Dialect
from meruit.errors import AuthorError
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

MAX_QUERY = 2_000
"""Characters of a query."""
MAX_QUERY_DEPTH = 50
"""The deepest nesting of a query."""
MAX_COPIES = 1_024
"""How often a query may copy its input: repeated multi-selects would fill memory."""
MAX_WHY = 300
"""Characters of JMESPath's error message."""

RESOURCE = "resource"
"""The part of a row's key before the slash; the other keys of `correlate_by` are fields of the row."""

_path = lru_cache(maxsize=4_096)(dotted.compile_path)
_RULES: TypeAdapter[dict[str, FieldRule]] = TypeAdapter(fields_of(Dialect.JSON, _path), config=DEFER_BUILD)


class PortalStateMatch(SelectionAssertion):
    """Rows by what they are correlated by, and their fields; or a query and its expected result."""

    correlate_by: Any = Field(
        default=None, description="Which rows: their resource, and the values of fields that identify them."
    )
    query: str | None = Field(
        default=None,
        max_length=MAX_QUERY,
        description="A JMESPath expression over {resource: [rows]}, instead of rows.",
    )
    expected: Any = Field(
        default="exists", validate_default=True, description="The expected result of the query: a value or a matcher."
    )

    @field_validator("correlate_by", "where", "fields")
    @classmethod
    def _rules(cls, written: Any) -> Any:
        return written if written is None else _RULES.validate_python(written)

    @field_validator("query")
    @classmethod
    def _is_query(cls, written: str | None) -> str | None:
        if written is None:
            return None
        if "${" in written:
            # A filled-in text comes from untrusted data and could change the query.
            raise ValueError("a query must not have ${…}; use it in expected, or select rows with correlate_by")
        _translate_author_error(lambda: compile_query(written))
        return written

    @field_validator("expected")
    @classmethod
    def _is_matcher(cls, written: Any) -> Any:
        return _translate_author_error(lambda: as_rule(written, Dialect.JSON))

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = self.model_fields_set
        if self.query is None:
            if self.correlate_by is None or RESOURCE not in self.correlate_by:
                raise ValueError("say which rows: correlate_by: {resource: prior_auth, member: MEM88771}, or a query")
            if "expected" in given:
                raise ValueError("expected needs query; put what rows must hold under fields")
        elif extra := given & {"correlate_by", "where", "changed", "count", "fields"}:
            raise ValueError(f"{', '.join(sorted(extra))} cannot be used with query; use expected")
        elif "match" in given and self.match is not MatchMode.BEST:
            raise ValueError("with query, match is any: one element of a list is enough")
        return self

    @property
    def is_any(self) -> bool:
        """Whether one element of a query's list is enough."""
        return "match" in self.model_fields_set

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The rules about whose the row is."""
        return row_identity(path, rule)


def _translate_author_error(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


class RowReader:
    """How rows are read."""

    def parse(self, item: Item) -> Any:
        """The row."""
        return dotted.read_json(item.content())

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a dotted path."""
        return dotted.values(document, _path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A dotted path."""
        return _path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Rows by `correlate_by` and `where`."""
        for name in selector:
            if name not in (known := ("correlate_by", "where")):
                raise AuthorError(f"rows are not found by {name!r}{nearest(name, known)}, but by {' and '.join(known)}")
        where = compile_rules(_RULES, selector.get("where"))
        rules = compile_rules(_RULES, selector.get("correlate_by"))
        resource = rules.pop(RESOURCE, None)

        def fits(one: Item, row: Any) -> bool:
            return (resource is None or _is_of(resource, one)) and all(
                rule.matcher.judge(self.values(row, path)) is None
                for several in (rules, where)
                for path, rule in several.items()
            )

        return fits


def _is_of(resource: FieldRule, one: Item) -> bool:
    return resource.matcher.judge((resource_of(one.key),)) is None


def resource_of(key: str) -> str:
    """Which resource a row is of."""
    return key.partition("/")[0]


ROWS = RowReader()


def _example(asked: Mapping[str, Any], row: bytes, expect: str) -> CheckExample:
    was = {"payer": Snapshot(SourceKind.ROWS)}
    now = {"payer": Snapshot(SourceKind.ROWS, [make_item("prior_auth/1", row)])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_BY_MEMBER = {"correlate_by": {"resource": "prior_auth", "member": "M1"}, "changed": "created", "count": 1}


@state_check(
    "portal-state-match",
    reads=[SourceKind.ROWS],
    settings=PortalStateMatch,
    evidence="assertionResults",
    reader=ROWS,
    examples=[
        _example(_BY_MEMBER | {"fields": {"cpt": "72148"}}, b'{"member": "M1", "cpt": "72148"}', "1"),
        _example(
            _BY_MEMBER | {"fields": {"cpt": "72148", "status": {"in": ["pending", "approved"]}}},
            b'{"member": "M1", "cpt": "72148", "status": "draft"}',
            "1/2",
        ),
        _example({"query": "prior_auth[?member=='M1'].cpt", "expected": "72148"}, b'{"member": "M2"}', "0"),
    ],
)
def portal_state_match(asked: PortalStateMatch, context: CheckContext) -> Checked | Missing:
    """An application's rows hold what they must, or a query over them gives what it must."""
    if asked.query is not None:
        return _decide_query(asked, asked.query, context)
    resource = asked.correlate_by[RESOURCE]
    rows = context.filter_items(lambda one: _is_of(resource, one))
    found = decide(asked, rows, ROWS, {"correlate_by": asked.correlate_by}, lambda _row: ())
    if isinstance(found, Checked) and found.details is not None and not found.details["considered"]:
        known = sorted({resource_of(one.key) for one in context.after.items})
        return Checked(found.score, {**found.details, "resources": known[:MAX_LISTED]}, found.fault)
    return found


# The query form


def _decide_query(asked: PortalStateMatch, query: str, context: CheckContext) -> Checked | Missing:
    trouble = missing_if_unread(context.source, context.after, "after")
    if trouble is not None:
        return trouble
    changes = context.changes()
    seen, unreadable = parse_items(context, ROWS, changes, deleted_too=False)
    agents, others = split_by_fault(unreadable, changes)
    if trouble := missing_if_not_kept(context.source, others):
        return trouble
    garbled = [describe_unreadable(one, asked.evidence) for one in agents]
    evidence = base_evidence(context, len(seen), garbled)
    if garbled:
        evidence["why"] = f"{len(garbled):,} unreadable, so the query cannot be computed"
        return Checked("0", evidence, Fault.AGENT)
    state, rows = _state(seen)
    try:
        answer = compile_query(query).search(state)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as problem:
        # Most often a function was applied to an absent value.
        why = "the query cannot be computed"
        if asked.evidence is EvidenceDisplay.PLAIN:
            why += f": {str(problem)[:MAX_WHY]}"
        wanted = asked.expected.matcher
        failed = FieldResult(path=query, op=wanted.op, expected=wanted.expected, actual=None, why=why)
        return Checked("0", evidence | {"fields": [failed.to_dict()]}, Fault.AGENT)
    several = answer if isinstance(answer, list) else [] if answer is None else [answer]
    # The query expects the rows that it returns whole, and the documents that it starts from.
    named = _resources_in_query(compile_query(query).parsed)
    chosen = [one for one in seen if one.item.key in named]
    chosen += [rows[id(one)] for one in several if id(one) in rows]
    keys = {one.item.key: one.item.version for one in chosen}
    context.work_context.select(context.source, list(keys))
    if asked.capture is not None and answer is not None:
        context.work_context.names[asked.capture] = _to_decimals(answer)
    # A list is equal to a list only, unless the author lets one element be enough.
    is_whole = isinstance(answer, list) and asked.expected.matcher.op in ("equals", "in") and not asked.is_any
    values = (_to_decimals(answer),) if is_whole else tuple(map(_to_decimals, several))
    result = field_result(query, asked.expected, values, asked.evidence)
    evidence["selected"] = [{"key": key, "version": version} for key, version in list(keys.items())[:MAX_LISTED]]
    evidence["fields"] = [result.to_dict()]
    return Checked("1" if result.why is None else "0", evidence, Fault.AGENT)


def _state(seen: list[ParsedItem]) -> tuple[dict[str, Any], dict[int, ParsedItem]]:
    """`{resource: [rows…]}`, a key without a slash being one document; and whose each row is, by identity."""
    bare: dict[str, Any] = {}
    listed: dict[str, list[Any]] = {}
    rows: dict[int, ParsedItem] = {}
    for one in seen:
        resource, slash, _ = one.item.key.partition("/")
        row = _to_floats(one.document)
        if isinstance(row, dict | list):
            rows[id(row)] = one
        if slash:
            listed.setdefault(resource, []).append(row)
        else:
            bare[resource] = row
    # Where a resource has both, its document comes first, so that none is lost.
    return listed | {name: [row, *listed[name]] if name in listed else row for name, row in bare.items()}, rows


def _to_floats(value: Any) -> Any:
    """Convert a document's numbers to floats, which JMESPath needs."""
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: _to_floats(one) for name, one in value.items()}
        case list():
            return [_to_floats(one) for one in value]
        case _:
            return value


def _to_decimals(value: Any) -> Any:
    """Convert the numbers back to decimals, which matchers compare."""
    match value:
        case float() if math.isfinite(value):
            return Decimal(repr(value))
        case dict():
            return {name: _to_decimals(one) for name, one in value.items()}
        case list():
            return [_to_decimals(one) for one in value]
        case _:
            return value


@lru_cache(maxsize=1_024)
def compile_query(query: str) -> Any:
    """Compile a query; raises AuthorError for an invalid one."""
    import jmespath  # needed only for queries

    try:
        expression = jmespath.compile(query)
    except (ValueError, RecursionError) as problem:
        why = str(problem).partition("\n")[0] if isinstance(problem, ValueError) else "it is nested too deep"
        raise AuthorError(f"{query!r} is not a valid JMESPath expression: {why}") from None
    _check_query(query, expression.parsed)
    return expression


def _check_query(query: str, parsed: Mapping[str, Any]) -> None:
    """Refuse what JMESPath would report only when it runs, and what would cost too much."""
    from jmespath.functions import Functions

    parts, copies = [(parsed, 1)], 1
    while parts:
        part, depth = parts.pop()
        kind, inside, name = part["type"], part["children"], part.get("value")
        if depth > MAX_QUERY_DEPTH:
            raise AuthorError(f"{query!r} is nested more than {MAX_QUERY_DEPTH} deep")
        if kind == "function_expression":
            _check_function_call(query, str(name), len(inside), Functions.FUNCTION_TABLE)
        if kind == "slice" and inside[2] == 0:
            raise AuthorError(f"{query!r}: a slice cannot have the step 0")
        if kind.startswith("multi_select") or name == "to_string":
            copies *= max(len(inside), 2)
        parts += [(one, depth + 1) for one in inside if isinstance(one, Mapping)]
    if copies > MAX_COPIES:
        raise AuthorError(f"{query!r} could copy its input {copies:,} times; at most {MAX_COPIES:,} are allowed")


def _check_function_call(query: str, name: str, given: int, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise AuthorError(f"{query!r}: JMESPath has no function {name!r}{nearest(name, known)}")
    signature = known[name]["signature"]
    more = bool(signature) and bool(signature[-1].get("variadic"))
    if given < len(signature) or (given > len(signature) and not more):
        least = "at least " if more else ""
        raise AuthorError(f"{query!r}: {name} takes {least}{len(signature)} arguments, not {given}")


_BRANCHES = frozenset(
    {
        *("or_expression", "and_expression", "not_expression", "comparator", "function_expression"),
        *("multi_select_list", "multi_select_dict", "key_val_pair"),
    }
)
"""Parts of a query whose children all read the same input."""


def _resources_in_query(part: Mapping[str, Any]) -> set[str]:
    """The resources that a query starts from."""
    if part["type"] == "field":
        return {str(part["value"])}
    inside = [one for one in part["children"] if isinstance(one, Mapping)]
    if part["type"] in _BRANCHES:
        return {name for one in inside if one["type"] != "expref" for name in _resources_in_query(one)}
    following = next((one for one in inside if one["type"] not in ("current", "identity")), None)
    return set() if following is None else _resources_in_query(following)
