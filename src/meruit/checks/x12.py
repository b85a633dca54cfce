"""Check `x12-response`: an X12 response must have come, with its outcome and fields."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from meruit.checks.formats.x12 import (
    TA1,
    Interchange,
    TransactionSet,
    X12Flaw,
    X12Path,
    compile_path,
    flaws,
    read,
    values,
)
from meruit.checks.formats.x12_guides import X12ImplementationGuide, guide_violations, guides_of
from meruit.checks.framework.assertion import FieldRule, Fields, PathRule, SelectionAssertion, as_rule, fields_of
from meruit.checks.framework.batches import BatchReader, PathDocument, decide_each
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext, for_evidence
from meruit.checks.framework.identity import x12_identity
from meruit.checks.framework.selection import FieldResult
from meruit.checks.matching.matchers import Dialect, matcher
from meruit.errors import AuthorError
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample
from meruit.suggestions import nearest

MAX_LISTED = 10
"""Flaws and violations of a guide that the evidence lists."""
VERSION = "version"
"""The path shown in the evidence for the guide's version, which has two places."""


@lru_cache(maxsize=4096)
def _path(text: str) -> X12Path:
    return compile_path(text)


def _text(written: Any) -> Any:
    """A code that YAML read as a number: 271 is "271"."""
    return str(written) if type(written) is int else written


def _rule(written: Any) -> FieldRule:
    try:
        return as_rule(written, Dialect.TEXT)
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


if TYPE_CHECKING:
    X12Fields = Fields
    Version = FieldRule
else:
    X12Fields = fields_of(Dialect.TEXT, _path)
    # Any: a literal or a matcher, as authors write it.
    Version = Annotated[Any, AfterValidator(_rule)]
SetId = Annotated[str, BeforeValidator(_text), Field(pattern=r"^([0-9]{3}|TA1|.*\$\{.*)$")]


# Outcomes: the meaning of a response's codes.


class OutcomeCodes(msgspec.Struct, frozen=True):
    """Where a response has its outcome, and the codes of each outcome."""

    codes: frozenset[str]
    paths: tuple[str, ...]
    """Paths in order: the first that has values decides, and all of its values must agree."""
    among: frozenset[str] | None = None
    """The codes about the outcome; None where every code is."""


def _outcomes(
    words: Mapping[str, str], *paths: str, total: Sequence[str] = (), sifted: bool = False
) -> dict[str, OutcomeCodes]:
    """By word; the words of `total` are about all that the last path finds."""
    codes = {word: frozenset(written.split()) for word, written in words.items()}
    among = frozenset[str]().union(*codes.values()) if sifted else None
    return {
        word: OutcomeCodes(codes=found, paths=paths[-1:] if word in total else paths, among=among)
        for word, found in codes.items()
    }


_REFUSED = _outcomes({"rejected": "N Y"}, "AAA.1")
_ACKNOWLEDGED = _outcomes(
    {"accepted": "A E", "accepted_with_errors": "E", "partially_accepted": "P", "rejected": "R M W X"}, "AK9.1"
)
OUTCOMES: Mapping[str, Mapping[str, OutcomeCodes]] = {
    # The plan as a whole is service type 30; other types are used where it is absent.
    "271": _REFUSED | _outcomes({"active": "1 2 3 4 5", "inactive": "6 7 8"}, "EB[3=30].1", "EB.1", sifted=True),
    # The event's decision, or its services' where it has none; in total means each of them.
    "278": _REFUSED
    | _outcomes(
        {
            "certified": "A1",
            "partially_certified": "A2",
            "denied": "A3",
            "pended": "A4",
            "modified": "A6",
            "cancelled": "C",
            "contact_payer": "CT",
            "no_action_required": "NA",
        },
        "HL[EV]/HCR.1",
        "HCR.1",
        total=["certified", "denied"],
    ),
    TA1: _outcomes({"accepted": "A E", "accepted_with_errors": "E", "rejected": "R"}, "TA1.4"),
    "997": _ACKNOWLEDGED,
    "999": _ACKNOWLEDGED,
}
"""By transaction set, the possible outcomes."""


# Reading.


class X12Envelope:
    """An interchange and its flaws, computed once."""

    def __init__(self, interchange: Interchange) -> None:
        self._interchange = interchange

    @cached_property
    def flaws(self) -> Sequence[X12Flaw]:
        """All of them."""
        return flaws(self._interchange)


class X12Document(PathDocument):
    """A transaction set that came in an interchange."""

    def __init__(self, transaction: TransactionSet, envelope: X12Envelope) -> None:
        self.transaction = transaction
        self.envelope = envelope

    def at(self, path: str) -> tuple[Any, ...]:
        """Everything at a path, as `HL[23]/EB[1=B].7`."""
        return (self.transaction.version,) if path == VERSION else values(self.transaction, _path(path))

    def names(self) -> Sequence[str]:
        """The identifiers of its segments."""
        return list(dict.fromkeys(one.name for one in self.transaction.segments))


def _split(content: bytes) -> list[X12Document]:
    answers = []
    for interchange in read(content):
        envelope = X12Envelope(interchange)
        answers += [X12Document(transaction, envelope) for transaction in interchange.transactions]
        # Beside transaction sets, a TA1 is a part of their envelope.
        if not interchange.transactions:
            answers += [
                X12Document(
                    TransactionSet(
                        isa=interchange.isa, gs=interchange.isa, marks=interchange.marks, segments=[one], loops=[]
                    ),
                    envelope,
                )
                for one in interchange.acknowledgements
            ]
    return answers


def _selection_rules(set_id: str | None, version: FieldRule | None, correlate_by: Fields, where: Fields) -> Fields:
    meant: dict[str, FieldRule] = {}
    if set_id is not None:
        is_ta1 = set_id == TA1
        meant["TA1.1" if is_ta1 else "ST.1"] = FieldRule(matcher("exists" if is_ta1 else set_id, Dialect.TEXT))
    elif "ST" not in {*correlate_by, *where}:
        # The acknowledgement of an interchange is not a response.
        meant["ST"] = FieldRule(matcher("exists", Dialect.TEXT))
    if version is not None:
        meant[VERSION] = version
    for fields in (correlate_by, where):
        if twice := meant.keys() & fields.keys():
            raise ValueError(f"{min(twice)} is given twice, in set, correlate_by or where; write it once")
        meant |= fields
    return meant


class X12Selector(BaseModel):
    """The selector of responses for `let`."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", validate_by_name=False, arbitrary_types_allowed=True
    )

    set_id: SetId | None = Field(default=None, alias="set")
    version: Version | None = None
    correlate_by: X12Fields = Field(default_factory=dict)
    where: X12Fields = Field(default_factory=dict)

    def selection_rules(self) -> Fields:
        """The rules that select a response."""
        return _selection_rules(self.set_id, self.version, self.correlate_by, self.where)


READER = BatchReader(_split, X12Selector, _path)


class X12Response(SelectionAssertion):
    """Which response must have come, and what it must hold."""

    set_id: SetId | None = Field(default=None, alias="set", description='The transaction set, as "271", or TA1.')
    version: Version | None = Field(default=None, description="The guide's version, as 005010X217, or a matcher.")
    correlate_by: X12Fields = Field(default_factory=dict, description="Which responses: path to matcher.")
    where: X12Fields = Field(
        default_factory=dict, description="Further conditions that select responses: path to matcher."
    )
    outcome: str | None = Field(
        default=None, description="Its required outcome, such as certified, active or accepted."
    )
    envelope: Literal["ok"] | None = Field(
        default=None, description="`ok` requires correct counts, control numbers and HL tree of its interchange."
    )
    # Only true is allowed: requiring an invalid response has no use.
    valid: Literal[True] | None = Field(
        default=None, description="Whether it must follow its implementation guide; needs set, version and pyx12."
    )
    fields: X12Fields = Field(default_factory=dict, description="What it must hold: path to matcher.")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        self.selection_rules()
        if self.count.low == 0 and (self.outcome or self.envelope or self.valid):
            raise ValueError("count allows no response, so outcome and envelope cannot apply; remove one of them")
        if self.outcome is not None and "${" not in f"{self.outcome}{self.set_id}":
            self._outcome_of(self.outcome)
        if self.valid and "${" not in str(self.set_id):
            self.guides()
        return self

    def selection_rules(self) -> Fields:
        """The rules that select a response."""
        return _selection_rules(self.set_id, self.version, self.correlate_by, self.where)

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The rules about whose the response is."""
        return x12_identity(path, rule)

    def _outcome_of(self, word: str) -> OutcomeCodes:
        words = OUTCOMES.get(self.set_id or "")
        if words is None:
            raise ValueError(f"outcome is defined for the sets {', '.join(OUTCOMES)}; set one of them, or use fields")
        if word not in words:
            raise ValueError(
                f"a {self.set_id} has no outcome {word!r}{nearest(word, words)}; it has {', '.join(words)}"
            )
        return words[word]

    def outcome_codes(self) -> OutcomeCodes | None:
        """The codes of the outcome."""
        return None if self.outcome is None else self._outcome_of(self.outcome)

    def guides(self) -> list[X12ImplementationGuide]:
        """The guides of a valid response; raises ValueError where none is known."""
        version = None if self.version is None else self.version.matcher.expected
        if self.set_id is None or not isinstance(version, str):
            raise ValueError('valid needs set and version, as set: "999", version: 005010X231A1')
        if "${" in version:
            return []
        try:
            return guides_of(self.set_id, version)
        except AuthorError as problem:
            raise ValueError(str(problem)) from None


# Examples.

_ISA = "ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260301*1319*^*00501*000000907*0*P*:~"
_271 = (
    f"{_ISA}GS*HB*PAYER*CLINIC*20260301*1319*1*X*005010X279A1~ST*271*0001*005010X279A1~BHT*0022*11*1*20260301*1319~"
    "HL*1**20*1~HL*2*1*21*1~HL*3*2*22*0~TRN*2*93175-012547*9877281234~NM1*IL*1*SMITH*ROBERT****MI*123456789~"
    "EB*1**30~EB*B*IND*98***27*10~SE*10*0001~GE*1*1~IEA*1*000000907~"
).encode()


def _example(expect: str, **asked: Any) -> CheckExample:
    before, after = (
        {"clearinghouse": Snapshot(SourceKind.X12, several)} for several in ([], [make_item("000001", _271)])
    )
    return CheckExample(
        assertion=asked, work=Work(input=as_work_part(before), output=as_work_part(after)), expect=expect
    )


@state_check(
    "x12-response",
    reads=[SourceKind.X12],
    settings=X12Response,
    reader=READER,
    is_text=lambda _settings: True,
    examples=[
        _example("1", set="271", correlate_by={"TRN.2": "93175-012547"}, envelope="ok", outcome="active"),
        _example("1", set="271", fields={"HL[22]/NM1[1=IL].9": "123456789", "AAA": "absent"}),
        _example("1/2", set="271", fields={"EB[1=B].7": {"near": {"value": 10, "by": 0}}, "EB[1=C].7": "exists"}),
        _example("0", set="271", correlate_by={"TRN.2": "93175-012548"}),
    ],
)
def x12_response(asked: X12Response, context: CheckContext) -> Checked | Missing:
    """An X12 response with this outcome and these fields came."""
    outcome = asked.outcome_codes()
    guides = asked.guides() if asked.valid else []

    def besides(document: X12Document) -> Iterator[FieldResult]:
        if outcome is not None:
            yield _outcome_result(str(asked.outcome), outcome, document)
        if asked.envelope is not None:
            yield _flaws_result("envelope", "ok", list(map(str, document.envelope.flaws)))
        if asked.valid:
            yield _flaws_result("valid", "valid", guide_violations(document.transaction, guides))

    return decide_each(asked, asked.selection_rules(), context, READER, besides)


def _outcome_result(word: str, outcome: OutcomeCodes, document: X12Document) -> FieldResult:
    found, where = list[str](), ""
    for where in outcome.paths:
        found = [code for code in document.at(where) if outcome.among is None or code in outcome.among]
        if found:
            break
    why: str | None = f"no code at {' or '.join(outcome.paths)}"
    if found:
        why = next((f"{where} is {code!r}" for code in found if code not in outcome.codes), None)
    return FieldResult(path="outcome", op="outcome", expected=word, actual=for_evidence(tuple(found)), why=why)


def _flaws_result(name: str, wanted: str, faults: Sequence[str]) -> FieldResult:
    if not faults:
        return FieldResult(path=name, op=name, expected=wanted, actual=wanted, why=None)
    listed = [*faults[:MAX_LISTED], *([f"and {len(faults) - MAX_LISTED:,} more"] if faults[MAX_LISTED:] else [])]
    why = f"{len(faults):,} wrong; the first: {faults[0]}"
    return FieldResult(path=name, op=name, expected=wanted, actual=for_evidence(tuple(listed)), why=why)
