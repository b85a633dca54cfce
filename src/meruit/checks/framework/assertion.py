"""The settings that assertions of all checks share."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Self, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from meruit.checks.matching.compare import TemplateValue
from meruit.checks.matching.formulas import Formula, check_templates
from meruit.checks.matching.matchers import WORDS, Dialect, Matcher, matcher
from meruit.checks.values.dates import duration
from meruit.checks.values.decimals import numeral
from meruit.errors import AuthorError
from meruit.model.assertion import AT_LEAST_ONE, Range, as_range

T = TypeVar("T")

DEFER_BUILD = ConfigDict(defer_build=True)
"""Builds validators on first use, so that listing the checks stays fast."""
MAX_FIELDS = 500
"""Fields of one assertion."""


class Credit(StrEnum):
    """The score of an assertion that holds in part."""

    FIELDS = "fields"
    """The share of its fields that fit."""
    ALL = "all"
    """0 unless all of it holds."""


class ItemChange(StrEnum):
    """What happened to an item between before and after."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    ANY = "any"
    NONE = "none"


class MatchMode(StrEnum):
    """Which of several selected items is compared with the fields."""

    BEST = "best"
    """The one that fits best; of equals the first by key."""
    ANY = "any"
    """The same as best: one item that fits is enough."""
    ALL = "all"
    """Each of them: the score is their mean."""
    FIRST = "first"
    """The first by key."""


class EvidenceDisplay(StrEnum):
    """How values are shown in the evidence."""

    PLAIN = "plain"
    HASH = "hash"
    """Only their digests, for data about patients."""


class FieldRule(msgspec.Struct, frozen=True):
    """What one field must be, and its weight."""

    matcher: Matcher
    weight: Fraction = Fraction(1)
    must: bool = False
    """Whether the score is 0 when this field does not fit."""
    identity: bool | None = None
    """Whether it says whose the item is, and so selects it; None leaves that to the check."""


_OF_RULES = {"weight", "must", "identity"}
Fields = Mapping[str, FieldRule]
"""Path to rule."""
PathRule = tuple[str, FieldRule]
"""One path and its rule."""


def fields_of(dialect: Dialect, check_path: Callable[[str], object]) -> Any:
    """The type of `fields:` or `where:` for one dialect of values; faults are reported at their path."""

    def path(written: str) -> str:
        if "${" in written:
            raise ValueError("a path must not have ${…}; use it in the value, as in where")
        _translate_author_error(lambda: check_path(written))
        return written

    def rule(written: Any) -> Any:
        return _translate_author_error(lambda: as_rule(written, dialect))

    return Annotated[
        dict[Annotated[str, AfterValidator(path)], Annotated[Any, AfterValidator(rule)]],
        Field(max_length=MAX_FIELDS),
        BeforeValidator(_list_to_mapping),
    ]


def compile_rules(rules: TypeAdapter[dict[str, FieldRule]], written: Any) -> dict[str, FieldRule]:
    """Compile the rules of a selector; raises AuthorError with every problem."""
    try:
        return rules.validate_python(written or {})
    except ValidationError as problem:
        why = "; ".join(one["msg"].removeprefix("Value error, ") for one in problem.errors(include_url=False))
        raise AuthorError(f"the selector is not valid: {why}") from None


def _translate_author_error(compute: Callable[[], T]) -> T:
    """Turn an AuthorError into a ValueError, which pydantic collects."""
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


def as_rule(written: Any, dialect: Dialect) -> FieldRule:
    """Compile the value of a path: a matcher, optionally with `weight`, `must` and `identity`."""
    weight, must, identity = Fraction(1), False, None
    if isinstance(written, FieldRule):
        return written
    if isinstance(written, Mapping) and not isinstance(written, TemplateValue) and written.keys() & _OF_RULES:
        number = numeral(written.get("weight", 1))
        if number is None or number <= 0:
            raise AuthorError("weight must be a number above 0")
        weight, must, identity = Fraction(number), written.get("must", False), written.get("identity")
        if not isinstance(must, bool) or not isinstance(identity, bool | None):
            raise AuthorError(f"{'identity' if isinstance(must, bool) else 'must'} takes true or false")
        written = {name: value for name, value in written.items() if name not in _OF_RULES}
    check_templates(written)
    return FieldRule(matcher=matcher(written, dialect), weight=weight, must=must, identity=identity)


def _list_to_mapping(written: Any) -> Any:
    """Turn the list form, `[{path, expected}]`, into a mapping."""
    if not isinstance(written, list):
        return written
    found: dict[str, Any] = {}
    for one in written:
        path = one.get("path") if isinstance(one, Mapping) else None
        if not isinstance(path, str):
            raise ValueError("each field of a list needs a path, as {path: status, expected: booked}")  # noqa: TRY004 - pydantic gathers ValueErrors
        if path in found:
            raise ValueError(f"the path {path!r} is listed twice")
        found[path] = _list_entry_to_rule(path, {name: value for name, value in one.items() if name != "path"})
    return found


def _list_entry_to_rule(path: str, field: dict[str, Any]) -> dict[str, Any]:
    """Turn an entry of the list form into the value that the mapping form has."""
    if "expected" not in field:
        return field if field.keys() - _OF_RULES else field | {"exists": True}
    if not field.keys() <= {"expected", *_OF_RULES}:
        raise ValueError(f"{path}: only weight, must and identity may be used with expected")
    wanted = field.pop("expected")
    if isinstance(wanted, Mapping) and not isinstance(wanted, TemplateValue):
        return field | dict(wanted)
    if isinstance(wanted, str) and not isinstance(wanted, TemplateValue) and wanted in WORDS:
        return field | {wanted: True}
    return field | {"equals": wanted}


def _check_duration(text: str) -> str:
    _translate_author_error(lambda: duration(text))
    return text


class SettleSettings(BaseModel):
    """How long a source is read again until it is stable."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    stable: int = Field(default=2, ge=1, le=10, description="Successive readings that must agree.")
    within: Annotated[str, AfterValidator(_check_duration)] = Field(default="30s", description="How long to try.")

    @property
    def within_s(self) -> float:
        """`within` in seconds."""
        return duration(self.within).total_seconds()


def _check_pick(text: str) -> str:
    if not re.fullmatch(r"only|first|last|(latest|earliest) \S+", text):
        raise ValueError("expected only, first, last, or latest or earliest with a path, as latest effective")
    return text


class Let(BaseModel):
    """A value read from the state before the run; it also takes the selector keys of the source's check."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow", validate_by_name=False)

    source: str | None = Field(default=None, alias="from", description="The source; default: the assertion's own.")
    pick: Annotated[str, AfterValidator(_check_pick)] = Field(
        default="only", description="Which of several items: only, first, last, latest PATH or earliest PATH."
    )
    path: str = Field(min_length=1, description="The path of the value.")

    @property
    def selector(self) -> Mapping[str, Any]:
        """The keys that select the item."""
        return self.__pydantic_extra__ or {}


def _check_formula(text: str) -> str:
    _translate_author_error(lambda: Formula(text))
    return text


def _check_name(text: str) -> str:
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,63}", text):
        raise ValueError(f"{text!r:.80} is not a valid name: use a letter, then letters, digits and _")
    try:
        means_itself = Formula(text).names == {text}
    except AuthorError:
        means_itself = False
    if not means_itself:
        raise ValueError(f"{text!r} has another meaning in formulas; choose another name")
    return text


Name = Annotated[str, AfterValidator(_check_name)]


class StateAssertion(BaseModel):
    """Settings of every check."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", validate_by_name=False, arbitrary_types_allowed=True
    )

    source: str | None = Field(default=None, alias="from", min_length=1, description="The source that is read.")
    credit: Credit = Field(
        default=Credit.FIELDS, description="The score of a partial match: the share of its fields, or all or nothing."
    )
    settle: SettleSettings | None = Field(default=None, description="Read the source again until it is stable.")
    let: dict[Name, Let] = Field(default_factory=dict, description="Values read from the state before the run.")
    when: Annotated[str, AfterValidator(_check_formula)] | None = Field(
        default=None, description="A condition on those values; the assertion is skipped where it is false."
    )
    capture: Name | None = Field(default=None, description="Name by which later checks refer to the matched item.")
    evidence: EvidenceDisplay = Field(
        default=EvidenceDisplay.PLAIN, description="Whether the evidence shows values or only their digests."
    )


Count = Annotated[
    Range,
    BeforeValidator(as_range),
    WithJsonSchema({"anyOf": [{"type": ["integer", "string"]}, {"type": "array"}, {"type": "object"}]}),
]


def _normalize_match(match: MatchMode) -> MatchMode:
    return MatchMode.BEST if match is MatchMode.ANY else match


class SelectionAssertion(StateAssertion):
    """Settings of every check that selects items and compares fields; subclasses define the types of the paths."""

    where: Any = Field(default_factory=dict, description="Conditions that select items: path to matcher.")
    changed: ItemChange | None = Field(default=None, description="How the item must have changed during the run.")
    count: Count = Field(default=AT_LEAST_ONE, description="How many there must be.")
    match: Annotated[MatchMode, AfterValidator(_normalize_match)] = Field(
        default=MatchMode.BEST, description="Which of several items is compared; any is the same as best."
    )
    fields: Any = Field(default_factory=dict, description="What it must hold: path to matcher.")

    def identity(self) -> list[PathRule]:
        """The rules that say whose an item is: an item of another is not the one asked for."""
        found: list[PathRule] = []
        for path, rule in self.fields.items():
            if rule.identity is not None:
                found += [(path, rule)] if rule.identity else []
            else:
                found += self.derive_identity(path, rule)
        return found

    # Subclasses know their paths; others have no identity unless the author says `identity: true`.
    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:  # noqa: ARG002 - for subclasses
        """The rules about whose the item is that follow from a field."""
        return ()

    @model_validator(mode="after")
    def _check_count(self) -> Self:
        if self.count.high == 0 and (self.fields or self.capture is not None):
            other = "fields" if self.fields else "capture"
            raise ValueError(f"count: 0 allows no item, so {other} cannot apply; remove one of them")
        return self
