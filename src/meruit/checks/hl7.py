"""Check `hl7-structural`: HL7 v2 messages that must have been sent, with their segments, order and fields."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from meruit.checks.formats.hl7v2 import Hl7Message, Hl7Path, compile_path, read_batch, values
from meruit.checks.framework.assertion import Count, FieldRule, Fields, PathRule, SelectionAssertion, fields_of
from meruit.checks.framework.batches import BatchReader, PathDocument, decide_each
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext
from meruit.checks.framework.identity import hl7_identity
from meruit.checks.framework.selection import FieldResult
from meruit.checks.matching.matchers import Dialect
from meruit.model.assertion import Range
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample

NEGATIVE_ACKS = frozenset({"AE", "AR", "CE", "CR"})
"""Acknowledgement codes of a receiver that refuses a message."""
MAX_SEGMENTS = 100
"""Segments that one assertion may name."""


@lru_cache(maxsize=4096)
def _path(text: str) -> Hl7Path:
    return compile_path(text)


if TYPE_CHECKING:
    Er7Fields = Fields
else:
    Er7Fields = fields_of(Dialect.TEXT, _path)
SegmentName = Annotated[str, Field(pattern="^[A-Z][A-Z0-9]{2}$")]


class Hl7Document(PathDocument):
    """A message that was sent."""

    def __init__(self, message: Hl7Message) -> None:
        self.message = message

    def at(self, path: str) -> tuple[Any, ...]:
        """Everything at a path, as `PID-3[5=MR].1`."""
        return values(self.message, _path(path))

    def names(self) -> Sequence[str]:
        """The names of its segments."""
        return list(self.message.texts)


def _split(content: bytes) -> list[Hl7Document]:
    return [Hl7Document(message) for message in read_batch(content)]


class Hl7Selector(BaseModel):
    """The selector of messages for `let`."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", arbitrary_types_allowed=True)

    correlate_by: Er7Fields = Field(default_factory=dict)
    where: Er7Fields = Field(default_factory=dict)

    def selection_rules(self) -> Fields:
        """The rules that select a message."""
        return {**self.correlate_by, **self.where}


READER = BatchReader(_split, Hl7Selector, _path)


class Hl7Structural(SelectionAssertion):
    """Which message must have been sent, and what it must hold."""

    correlate_by: Er7Fields = Field(default_factory=dict, description="Which messages are meant: path to matcher.")
    where: Er7Fields = Field(
        default_factory=dict, description="Further conditions that select messages: path to matcher."
    )
    segments: dict[SegmentName, Count] = Field(
        default_factory=dict, max_length=MAX_SEGMENTS, description="How often each segment must occur."
    )
    order: tuple[SegmentName, ...] = Field(
        default=(), max_length=MAX_SEGMENTS, description="Segments that must occur, the first of each in this order."
    )
    fields: Er7Fields = Field(default_factory=dict, description="What it must hold: path to matcher.")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if twice := self.correlate_by.keys() & self.where.keys():
            raise ValueError(f"{min(twice)} is in correlate_by and in where; write it once")
        if len({*self.order}) < len(self.order):
            raise ValueError("order names a segment twice; name each once")
        if self.count.low == 0 and (self.segments or self.order):
            raise ValueError("count allows no message, so segments and order cannot apply; remove one of them")
        return self

    def selection_rules(self) -> Fields:
        """The rules that select a message."""
        return {**self.correlate_by, **self.where}

    def derive_identity(self, path: str, rule: FieldRule) -> Sequence[PathRule]:
        """The rules about whose the message is."""
        return hl7_identity(path, rule)


_SIU = b"MSH|^~\\&|CLINIC||SCHEDAPP||20260303120000||SIU^S13|1|P|2.5.1\rSCH|10345\rPID|1||483671^^^GHH^MR\rRGS|1|A\r"


def _example(expect: str, **asked: Any) -> CheckExample:
    before, after = ({"outbound": Snapshot(SourceKind.HL7, several)} for several in ([], [make_item("000001", _SIU)]))
    return CheckExample(
        assertion=asked, work=Work(input=as_work_part(before), output=as_work_part(after)), expect=expect
    )


@state_check(
    "hl7-structural",
    reads=[SourceKind.HL7],
    settings=Hl7Structural,
    evidence="field_results",
    reader=READER,
    is_text=lambda _settings: True,
    examples=[
        _example("1", correlate_by={"MSH-9.1": "SIU", "MSH-9.2": "S13"}, count=1, fields={"PID-3[5=MR].1": "483671"}),
        _example("1", segments={"SCH": 1, "RGS": ">=1"}, order=["MSH", "SCH", "PID", "RGS"]),
        _example("1/2", segments={"SCH": 1, "AIS": ">=1"}),
        _example("0", correlate_by={"MSH-9.2": "S12"}),
    ],
)
def hl7_structural(asked: Hl7Structural, context: CheckContext) -> Checked | Missing:
    """An HL7 v2 message with these segments and fields was sent."""

    def structure(document: Hl7Document) -> Iterator[FieldResult]:
        for name, wanted in asked.segments.items():
            yield _segment_count_result(name, wanted, len(document.message.texts.get(name, ())))
        if asked.order:
            yield _segment_order_result(asked.order, document.message)

    refused = [one.key for one in context.after.items if one.facts.get("ack") in NEGATIVE_ACKS]
    # A message that the receiver refused counts neither as sent nor as collateral.
    context.work_context.select(context.source, refused)
    accepted = context.filter_items(lambda one: one.key not in refused)
    return decide_each(asked, asked.selection_rules(), accepted, READER, structure)


def _segment_count_result(name: str, wanted: Range, found: int) -> FieldResult:
    return FieldResult(
        path=name,
        op="segments",
        expected=str(wanted),
        actual=found,
        why=None if found in wanted else f"occurs {found} times",
    )


def _segment_order_result(wanted: Sequence[str], message: Hl7Message) -> FieldResult:
    # The names are kept in the order in which they first came.
    found = [name for name in message.texts if name in wanted]
    why = None
    if lacking := [name for name in wanted if name not in message.texts]:
        why = f"lacks {', '.join(lacking)}"
    elif found != [*wanted]:
        late, early = next(pair for pair in zip(wanted, found, strict=True) if pair[0] != pair[1])
        why = f"{early} comes before {late}"
    return FieldResult(path="order", op="order", expected=[*wanted], actual=found, why=why)
