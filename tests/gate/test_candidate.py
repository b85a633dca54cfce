"""Equal candidates have one digest however they are written, and different ones never share it."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field, create_model, field_serializer

from meruit.gate.candidate import NotJson, candidate_hash, hash_of, jsonable

SMALL = 2**53
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SMALL, SMALL)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


class Severity(StrEnum):
    LOW = "low"


class Part(BaseModel):
    name: str
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Line:
    labels: frozenset[int]


class AgentOutput(BaseModel):
    summary: str
    parts: list[Part] = Field(default_factory=list)
    price: Decimal = Decimal("0.10")
    raw: bytes = b""
    on: date = date(2026, 1, 2)
    severity: Severity = Severity.LOW
    score: float = 1.0
    labels: set[int] = Field(default_factory=set)
    by_name: dict[str, set[int]] = Field(default_factory=dict)
    pairs: tuple[frozenset[int], ...] = ()
    line: Line | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no property under another decorator.
    @property
    def marked(self) -> set[int]:
        return self.labels


def backwards(value: Any) -> Any:
    """The same value with its keys the other way round."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(one) for one in value] if isinstance(value, list) else value


def as_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(json_values)
def test_neither_the_order_of_keys_nor_the_way_a_number_is_written_matters(value: Any) -> None:
    assert hash_of("M", backwards(value)) == hash_of("M", as_floats(value)) == hash_of("M", value)


@given(json_values, json_values)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    same = repr(backwards(as_floats(one))) == repr(backwards(as_floats(other)))
    if same:
        assert hash_of("M", one) == hash_of("M", other)
    elif as_floats(one) != as_floats(other):
        assert hash_of("M", one) != hash_of("M", other)


@given(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), json_values)
def test_models_of_different_names_have_different_candidates(one: str, other: str, value: Any) -> None:
    assert (hash_of(one, value) == hash_of(other, value)) == (one == other)


@given(json_values)
def test_what_json_has_stays_as_it_is(value: Any) -> None:
    assert jsonable(value) == value


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 3))
def test_what_is_no_number_is_refused_wherever_it_stands(number: float, depth: int) -> None:
    value: Any = number
    for _ in range(depth):
        value = {"in": [value]}
    with pytest.raises(NotJson, match="is no number"):
        jsonable(value)
    with pytest.raises(NotJson, match="is no number"):
        candidate_hash(AgentOutput(summary="x", score=number))


@given(st.lists(st.integers(0, 64), unique=True), st.randoms(use_true_random=False))
def test_a_set_has_no_order_wherever_it_stands(members: list[int], chance: Any) -> None:
    """Text is hashed differently in every process: without this, a restart would make a candidate another one."""

    def output(order: list[int]) -> AgentOutput:
        return AgentOutput(
            summary="x",
            labels=set(order),
            by_name={"a": set(order)},
            pairs=(frozenset(order),),
            line=Line(frozenset(order)),
        )

    shuffled = chance.sample(members, len(members))
    assert jsonable(output(members)) == jsonable(output(shuffled))
    assert jsonable([set(members)]) == jsonable([set(shuffled)])


def test_sets_that_were_filled_in_another_order_are_equal_candidates() -> None:
    assert candidate_hash(AgentOutput(summary="x", labels={0, 8})) == candidate_hash(
        AgentOutput.model_validate({"summary": "x", "labels": [8, 0]})
    )


def test_a_serializer_of_the_authors_own_is_heard() -> None:
    class Written(BaseModel):
        labels: set[int]
        words: list[str]
        by_name: dict[str, int]

        @field_serializer("by_name")
        def known(self, by_name: dict[str, int]) -> dict[str, int]:
            return {"a": by_name["a"]}

        @field_serializer("labels")
        def count(self, labels: set[int]) -> str:
            return f"{len(labels)} labels"

        @field_serializer("words")
        def first(self, words: list[str]) -> list[str]:
            return words[:1]

    written = Written(labels={3, 1}, words=["b", "a"], by_name={"a": 1, "b": 2})
    assert jsonable(written) == {"labels": "2 labels", "words": ["b"], "by_name": {"a": 1}}


def test_a_whole_output_has_the_digest_of_what_json_has_of_it() -> None:
    output = AgentOutput(summary="done", parts=[Part(name="a")], price=Decimal("0.10"), raw=b"bytes", labels={2, 1})
    plain = jsonable(output)
    assert plain == {
        "summary": "done",
        "parts": [{"name": "a", "at": "2026-01-02T00:00:00Z"}],
        "price": "0.10",
        "raw": "bytes",
        "on": "2026-01-02",
        "severity": "low",
        "score": 1.0,
        "labels": [1, 2],
        "by_name": {},
        "pairs": [],
        "line": None,
        "marked": [1, 2],
    }
    assert candidate_hash(output) == hash_of("AgentOutput", plain)
    assert len(candidate_hash(output)) == 64


def test_equal_payloads_of_another_model_are_another_candidate() -> None:
    one, other = (create_model(name, text=(str, ...)) for name in ("Summary", "Report"))
    assert candidate_hash(one(text="x")) == candidate_hash(one(text="x")) != candidate_hash(other(text="x"))


def test_a_nested_change_is_another_candidate() -> None:
    one = AgentOutput(summary="x", parts=[Part(name="a")])
    later = Part(name="a", at=datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1))))
    assert candidate_hash(one) != candidate_hash(one.model_copy(update={"parts": [later]}))


def cycle() -> list[Any]:
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    return round_and_round


def tower() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


class Silent(BaseModel):
    """Breaks without a word."""

    text: str = ""

    @field_serializer("text")
    def write(self, text: str) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", "\ud800", {"\ud800": 1}, cycle(), tower(), lambda: 1, Silent()],
    ids=["object", "bytes", "surrogate", "key", "cycle", "tower", "function", "silent"],
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(NotJson):
        jsonable(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_taken_for_null(value: float) -> None:
    class Loose(BaseModel):
        anything: Any

    with pytest.raises(NotJson):
        candidate_hash(Loose(anything=value))
    with pytest.raises(NotJson):
        candidate_hash(Loose(anything=[{"deep": value}]))
    assert candidate_hash(Loose(anything=None))
