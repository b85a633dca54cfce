"""Check `answer-match`: what the agent answers when it completes its task."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import FieldRule, StateAssertion, as_rule
from meruit.checks.framework.compile import state_check
from meruit.checks.framework.context import CheckContext, missing_if_unread
from meruit.checks.framework.selection import FieldResult, field_result
from meruit.checks.matching.matchers import Dialect
from meruit.checks.matching.ordering import within
from meruit.checks.values.decimals import numeral
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.environment import (
    ANSWER_SOURCE,
    Item,
    Snapshot,
    SourceKind,
    answer_snapshot,
    as_work_part,
)
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample

WHOLE = "answer"
"""The path shown in the evidence for the whole answer."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_UNIT = re.compile(r"\s*([^\s.,;:!?()]+(?:[./*^][^\s.,;:!?()]+)*)?")


class AnswerNumber(BaseModel):
    """The number that an answer must give, alone or in a sentence."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    # Any: a number or a text that is filled in.
    value: Any = Field(description="The number.")
    unit: str | None = Field(default=None, min_length=1, description="Its unit, written after it; not converted.")
    by: Any = Field(default=0, description="How far it may be off.")


class AnswerMatch(StateAssertion):
    """What the answer must be: a value or matcher, or a number with its unit."""

    path: str | None = Field(default=None, description="A dotted path into a JSON answer; default: all of it.")
    # Any: a literal or a matcher, as authors write it.
    expected: Any = Field(default=None, description="The expected answer: a value or a matcher, as {set: [A, B]}.")
    number: AnswerNumber | None = Field(default=None, description="The expected number: {value, unit, by}.")

    @field_validator("path")
    @classmethod
    def _is_path(cls, written: str | None) -> str | None:
        if written is not None:
            _translate_author_error(lambda: dotted.compile_path(written))
        return written

    @field_validator("expected")
    @classmethod
    def _is_matcher(cls, written: Any) -> Any:
        return None if written is None else _translate_author_error(lambda: as_rule(written, Dialect.JSON))

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.expected is None) == (self.number is None):
            raise ValueError("an answer needs exactly one of expected and number")
        asked = self.number
        if asked is not None and "${" not in f"{asked.value}{asked.by}":
            reach = numeral(asked.by)
            if numeral(asked.value) is None or reach is None or reach < 0:
                raise ValueError("number takes {value, unit, by}; value and by are numbers, by not negative")
        return self


def _translate_author_error(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except AuthorError as problem:
        raise ValueError(str(problem)) from None


class AnswerReader:
    """Reads an answer: JSON as it is, text without the blanks around it."""

    def parse(self, item: Item) -> Any:
        """The answer; raises UnreadableContent."""
        content = item.content()
        if item.facts.get("format") == "json":
            return dotted.read_json(content)
        try:
            return content.decode().strip()
        except UnicodeDecodeError as fault:
            raise UnreadableContent.at("is not UTF-8", content, fault.start) from None

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a dotted path; a text is read as JSON first."""
        if isinstance(document, str):
            document = dotted.read_json(document.encode())
        return dotted.values(document, dotted.compile_path(path))

    def check_path(self, path: str, _selector: Mapping[str, Any]) -> object:
        """A dotted path."""
        return dotted.compile_path(path)

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """There is one answer, so nothing selects it."""
        if selector:
            raise AuthorError(f"an answer is not found by {min(selector)!r}; it needs only a path")
        return lambda _item, _document: True


ANSWERS = AnswerReader()


def _example(asked: Mapping[str, Any], answer: Any, expect: str) -> CheckExample:
    now = {ANSWER_SOURCE: answer_snapshot(answer)}
    return CheckExample(
        assertion=asked,
        work=Work(input=as_work_part({"ehr": Snapshot(SourceKind.FHIR)}), output=as_work_part(now)),
        expect=expect,
    )


@state_check(
    "answer-match",
    reads=[SourceKind.ANSWER],
    settings=AnswerMatch,
    reader=ANSWERS,
    examples=[
        _example({"expected": "MEM88771"}, " MEM88771\n", "1"),
        _example({"number": {"value": 3.1, "unit": "mEq/L"}}, "His potassium is 3.1 mEq/L.", "1"),
        _example({"number": {"value": 3.1, "unit": "mEq/L"}}, "3.1 mmol/L", "0"),
        _example({"path": "members", "expected": {"set": ["A", "B"]}}, {"members": ["B", "A"]}, "1"),
        _example({"expected": "yes"}, None, "0"),
    ],
)
def answer_match(asked: AnswerMatch, context: CheckContext) -> Checked | Missing:
    """The agent's answer is the expected value, number or set."""
    trouble = missing_if_unread(context.source, context.after, "after")
    if trouble is not None:
        return trouble
    evidence: dict[str, Any] = {"source": context.source, "fields": []}
    item = next(iter(context.after.items), None)
    if item is None:
        return Checked("0", evidence | {"why": "no answer was given"}, Fault.AGENT)
    document = context.work_context.document(context.source, item, ANSWERS)
    try:
        if isinstance(document, UnreadableContent):
            raise document
        found = _values(document, asked.path)
    except UnreadableContent as fault:
        return Checked("0", evidence | {"why": f"the answer cannot be read: {fault.why}"}, Fault.AGENT)
    if asked.capture is not None:
        context.work_context.names[asked.capture] = document
    result = _result(asked, found)
    evidence["fields"] = [result.redact(asked.evidence).to_dict()]
    return Checked("1" if result.why is None else "0", evidence, Fault.AGENT)


def _values(document: Any, path: str | None) -> tuple[Any, ...]:
    if path is not None:
        return ANSWERS.values(document, path)
    return tuple(document) if isinstance(document, list) else (document,)


def _result(asked: AnswerMatch, found: tuple[Any, ...]) -> FieldResult:
    path = asked.path or WHOLE
    if asked.number is None:
        rule: FieldRule = asked.expected
        return field_result(path, rule, found)
    wanted = asked.number
    shown = f"{wanted.value} {wanted.unit or ''}".strip()
    actual = found[0] if len(found) == 1 else list(found)
    why = f"has {len(found):,} values" if len(found) != 1 else _number_fault(wanted, found[0])
    return FieldResult(
        path=path,
        op="number",
        expected=shown,
        actual=actual if isinstance(actual, str | list | dict) else str(actual),
        why=why,
    )


class _StatedNumber(msgspec.Struct, frozen=True):
    """A number as it was answered."""

    text: str
    unit: str | None


def _number_fault(wanted: AnswerNumber, answer: Any) -> str | None:
    """Why an answer is not the number; an answer with two numbers is not an answer."""
    match answer:
        case {"value": value, **rest}:
            numbers = [_StatedNumber(str(value), None if rest.get("unit") is None else str(rest["unit"]))]
        case str():
            numbers = [_parse_number(answer, one) for one in _NUMBER.finditer(answer)]
        case _:
            numbers = [_StatedNumber(str(answer), None)]
    if len(numbers) != 1:
        return f"has {len(numbers):,} numbers; exactly 1 required"
    number, value, reach = numeral(numbers[0].text.replace(",", "")), numeral(wanted.value), numeral(wanted.by)
    if number is None or value is None or reach is None:
        return f"{numbers[0].text!r:.80} is not a number"
    if wanted.unit is not None and numbers[0].unit != wanted.unit:
        return f"is in {numbers[0].unit or 'no unit'}, not in {wanted.unit}"
    return None if within(number, value, reach) else f"is {numbers[0].text}"


def _parse_number(text: str, found: re.Match[str]) -> _StatedNumber:
    unit = _UNIT.match(text, found.end())
    return _StatedNumber(found[0], None if unit is None else unit[1])
