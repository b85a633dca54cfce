"""Check `fhir-resource-state`: which resources a FHIR store must have, and what they must hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

from pydantic import AliasChoices, Field, TypeAdapter, field_validator, model_validator

from meruit.checks.fhir_types.cardinality import cardinality_error
from meruit.checks.fhir_types.r4_elements import expression_error, path_error
from meruit.checks.fhir_types.reference import mark_own_references
from meruit.checks.fhir_types.resource_types import RESOURCE_TYPES
from meruit.checks.fhir_types.search import Search, compile_search
from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import (
    DEFER_BUILD,
    FieldRule,
    PathRule,
    SelectionAssertion,
    as_rule,
    compile_rules,
    fields_of,
)
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import BASE, CheckContext
from meruit.checks.framework.identity import fhir_identity
from meruit.checks.framework.selection import FieldResult, decide, field_result
from meruit.checks.matching.matchers import Dialect, holds_template
from meruit.checks.values.decimals import format_decimal, numeral
from meruit.errors import AssertionFaults, AuthorError, UnreadableContent
from meruit.model.environment import Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

MAX_EXPRESSION = 2_000
"""Characters of one FHIRPath expression."""
R4 = "r4"
_EXTRA = "; install it with pip install 'meruit[checks]'"
_SELECTORS = ("resource", "resource_type", "search", "where")

_path = lru_cache(maxsize=4_096)(lambda text: dotted.compile_path(text, choices=True))
_RULES: TypeAdapter[dict[str, FieldRule]] = TypeAdapter(fields_of(Dialect.JSON, _path), config=DEFER_BUILD)


class FhirResourceState(SelectionAssertion):
    """Resources of one type, found by search parameters and fields, and what they must hold."""

    resource: str = Field(
        validation_alias=AliasChoices("resource", "resource_type"), description="The resource type, as Appointment."
    )
    search: dict[str, Any] = Field(
        default_factory=dict,
        description="Search parameters of that type; applied by the check, not by the server.",
    )
    # Named as the file has them; each path is one expression.
    fhirpath: dict[str, Any] = Field(
        default_factory=dict, description="FHIRPath expressions and what each must come to; needs meruit[checks]."
    )
    valid: Literal["r4"] | None = Field(
        default=None, description="Whether the resource must be valid R4; needs meruit[checks]."
    )

    @field_validator("resource")
    @classmethod
    def _check_resource_type(cls, name: str) -> str:
        if "${" not in name and name not in RESOURCE_TYPES:
            raise ValueError(f"{name!r} is not a FHIR resource type{nearest(name, RESOURCE_TYPES)}")
        return name

    @field_validator("where", "fields")
    @classmethod
    def _rules(cls, written: Any) -> Any:
        return _RULES.validate_python(written)

    @field_validator("fhirpath")
    @classmethod
    def _expressions(cls, written: dict[str, Any]) -> dict[str, Any]:
        return {text: _translate_author_error(partial(_expression, text, given)) for text, given in written.items()}

    @model_validator(mode="after")
    def _check_elements(self) -> "FhirResourceState":
        faults = [
            ((setting, path), why)
            for setting, paths in (("where", self.where), ("fields", self.fields), ("fhirpath", self.fhirpath))
            for path in paths
            if (why := (expression_error if setting == "fhirpath" else path_error)(self.resource, path)) is not None
        ]
        if faults:
            # Not a ValueError: pydantic would report it without its path.
            raise AssertionFaults(faults)
        return self

    @model_validator(mode="after")
    def _check_search(self) -> "FhirResourceState":
        if not holds_template(self.search) and "${" not in self.resource:
            _translate_author_error(lambda: _search(self.resource, self.search))
        if self.valid is not None:
            _translate_author_error(_validator)
        return self

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The rules about whose the resource is."""
        return fhir_identity(self.resource, path, rule)


def _translate_author_error(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


def _expression(text: str, given: Any) -> FieldRule:
    if not text.strip() or len(text) > MAX_EXPRESSION:
        raise AuthorError(f"a FHIRPath expression has 1 to {MAX_EXPRESSION:,} characters")
    _evaluator(text)
    return as_rule(given, Dialect.JSON)


@lru_cache(maxsize=1_024)
def _evaluator(text: str) -> Callable[..., list[Any]]:
    try:
        from fhirpathpy import compile as compile_expression  # an extra, and half a second to load
        from fhirpathpy.models import models
    except ImportError:
        raise AuthorError(f"FHIRPath needs another library{_EXTRA}") from None
    try:
        compiled: Callable[..., list[Any]] = compile_expression(text, models["r4"])
        # The library reports unknown functions only when it evaluates.
        compiled({"resourceType": "Patient"})
    except Exception as problem:  # noqa: BLE001 - its parser raises many types
        raise AuthorError(f"{text!r} is not a valid FHIRPath expression: {problem}") from None
    return compiled


@lru_cache(maxsize=1)
def _validator() -> Callable[[str], Any]:
    try:
        from fhir.resources.R4B import get_fhir_model_class  # an extra, and 0.4 seconds to load
    except ImportError:
        raise AuthorError(f"valid: r4 needs another library{_EXTRA}") from None
    return get_fhir_model_class


def _search(resource: str, parameters: Mapping[str, Any]) -> Search:
    """Compile the parameters; a number or truth value that YAML made of text becomes text again."""
    return compile_search(resource, {name: _search_texts(value) for name, value in parameters.items()})


def _search_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_search_texts(one) for one in value]
    if isinstance(value, bool):
        return str(value).lower()
    number = None if isinstance(value, str) else numeral(value)
    return value if number is None else format_decimal(number)


class ResourceReader:
    """Reads resources."""

    def parse(self, item: Item) -> Any:
        """Parse a resource."""
        content = item.content()
        document = dotted.read_json(content)
        if not isinstance(document, dict):
            raise UnreadableContent.at("is not a FHIR resource: it must be a JSON object", content, 0)
        why = cardinality_error(document)
        if why is not None:
            raise UnreadableContent.at(why, content, 0)
        base = item.facts.get(BASE)
        return document if base is None else mark_own_references(document, str(base))

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a dotted path, choice types found by their common name."""
        return dotted.values(document, _path(path))

    def check_path(self, path: str, selector: Mapping[str, Any]) -> object:
        """A dotted path that the resource type has."""
        resource = selector.get("resource") or selector.get("resource_type")
        if (why := path_error(str(resource), path)) is not None:
            raise AuthorError(why)
        return _path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Resources by `resource`, `search` and `where`."""
        for name in selector:
            if name not in _SELECTORS:
                raise AuthorError(f"resources are not found by {name!r}{nearest(name, _SELECTORS)}")
        resource = selector.get("resource") or selector.get("resource_type")
        if not isinstance(resource, str) or resource not in RESOURCE_TYPES:
            raise AuthorError(f"say which resource type: resource: Observation, not {resource!r}")
        search = _search(resource, selector.get("search") or {})
        rules = compile_rules(_RULES, selector.get("where"))

        def fits(_item: Item, document: Any) -> bool:
            return (
                document.get("resourceType") == resource
                and search(document)
                and all(rule.matcher.judge(self.values(document, path)) is None for path, rule in rules.items())
            )

        return fits


RESOURCES = ResourceReader()


def _example(asked: Mapping[str, Any], body: bytes, expect: str) -> CheckExample:
    was = {"ehr": Snapshot(SourceKind.FHIR)}
    now = {"ehr": Snapshot(SourceKind.FHIR, [make_item("Appointment/1", body, version="1")])}
    return CheckExample(assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect=expect)


_BOOKED = b'{"resourceType": "Appointment", "id": "1", "status": "booked", "minutesDuration": 30}'
_ASKED = {"resource": "Appointment", "changed": "created", "count": 1}


@state_check(
    "fhir-resource-state",
    reads=[SourceKind.FHIR],
    settings=FhirResourceState,
    reader=RESOURCES,
    examples=[
        _example({**_ASKED, "fields": {"status": "booked", "minutesDuration": 30}}, _BOOKED, "1"),
        _example({**_ASKED, "fields": {"status": "booked", "minutesDuration": 20}}, _BOOKED, "1/2"),
        _example({**_ASKED, "search": {"status": "cancelled"}}, _BOOKED, "0"),
    ],
)
def fhir_resource_state(asked: FhirResourceState, context: CheckContext) -> Checked | Missing:
    """The FHIR store has the resources, as many as required, with the required fields."""

    def more(document: Any) -> Iterator[FieldResult]:
        for text, rule in asked.fhirpath.items():
            yield _expression_result(text, rule, document, asked)
        if asked.valid is not None:
            yield _validity_result(document)

    return decide(asked, context, RESOURCES, {"resource": asked.resource, "search": asked.search}, more)


def _expression_result(text: str, rule: FieldRule, document: Any, asked: FhirResourceState) -> FieldResult:
    try:
        found = tuple(_evaluator(text)(document))
    except Exception as problem:  # noqa: BLE001 - the library raises many types
        why = f"cannot be evaluated: {problem}"
        return FieldResult(
            path=text,
            op="fhirpath",
            expected=rule.matcher.expected,
            actual=None,
            why=why[:200],
            weight=rule.weight,
            must=rule.must,
        )
    return field_result(text, rule, found, asked.evidence)


def _validity_result(document: Any) -> FieldResult:
    name = document.get("resourceType")
    try:
        _validator()(name).model_validate(document)
    except Exception as problem:  # noqa: BLE001 - an unknown type and an invalid resource have the same result
        first = str(problem).partition("\n")
        return FieldResult(
            path="valid", op="valid", expected=R4, actual=None, why=f"{first[0]} {first[2][:300]}".strip()
        )
    return FieldResult(path="valid", op="valid", expected=R4, actual=R4, why=None)
