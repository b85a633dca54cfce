"""Equal candidates have one digest however they are written, and different ones never share it."""

import math
import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, SecretStr, computed_field, create_model, field_serializer

from meruit.errors import NotJsonSerializable
from meruit.gate.candidate import candidate_hash, is_lossless, to_json_value, to_json_value_and_hash

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


def hash_of(model: str, plain: Any) -> str:
    return to_json_value_and_hash(model, plain)[1]


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
    assert to_json_value(value) == value


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 3))
def test_nan_and_infinity_are_refused_at_any_depth(number: float, depth: int) -> None:
    value: Any = number
    for _ in range(depth):
        value = {"in": [value]}
    with pytest.raises(NotJsonSerializable):
        to_json_value(value)
    with pytest.raises(NotJsonSerializable):
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
    assert to_json_value(output(members)) == to_json_value(output(shuffled))
    assert to_json_value([set(members)]) == to_json_value([set(shuffled)])


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
    assert to_json_value(written) == {"labels": "2 labels", "words": ["b"], "by_name": {"a": 1}}


def test_a_whole_output_has_the_digest_of_what_json_has_of_it() -> None:
    output = AgentOutput(summary="done", parts=[Part(name="a")], price=Decimal("0.10"), raw=b"bytes", labels={2, 1})
    plain = to_json_value(output)
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
    with pytest.raises(NotJsonSerializable):
        to_json_value(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_is_not_taken_for_null(value: float) -> None:
    class Loose(BaseModel):
        anything: Any

    with pytest.raises(NotJsonSerializable):
        candidate_hash(Loose(anything=value))
    with pytest.raises(NotJsonSerializable):
        candidate_hash(Loose(anything=[{"deep": value}]))
    assert candidate_hash(Loose(anything=None))


class Labels(RootModel[set[str]]):
    pass


class Guess(BaseModel):
    key: SecretStr = SecretStr("")
    price: float = 0.0
    note: str = Field(default="", exclude=True)

    @field_serializer("price")
    def _rounded(self, price: float) -> float:
        return round(price, 1)


@pytest.mark.parametrize(
    ("output", "whole"),
    [
        (Guess(), False),
        (AgentOutput(summary="x"), False),
        ({"a": [1, 2.5, None, True, "x"], "b": {}}, True),
        ({1: "a"}, False),
        ([Decimal("0.10"), Severity.LOW, date(2026, 1, 2), timedelta(1), (1, 2)], True),
        (Labels({"a"}), False),
    ],
)
def test_whether_json_shows_all_of_an_output_is_known(output: Any, whole: bool) -> None:
    assert is_lossless(output, to_json_value(output)) is whole


@given(json_values)
def test_what_is_json_is_shown_whole_and_nothing_else_is_it(value: Any) -> None:
    assert is_lossless(value, to_json_value(value))
    assert not is_lossless([value], to_json_value(value))
    assert not is_lossless({"a": value}, to_json_value(value)) or value == {"a": value}


class One(BaseModel):
    a: int


class Other(BaseModel):
    a: int


def test_equal_content_of_two_models_is_two_candidates() -> None:
    assert to_json_value_and_hash("One | Other", One(a=1))[1] != to_json_value_and_hash("One | Other", Other(a=1))[1]


class Labelled(BaseModel):
    labels: Labels
    more: deque[frozenset[str]] = deque()


def test_sets_stand_in_one_order_wherever_they_are() -> None:
    code = (
        "from tests.gate.test_candidate import *\n"
        "one = Labelled(labels=set('abcdefgh'), more=[frozenset('xyzuvw')])\n"
        "print(candidate_hash(one), to_json_value(one))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ((one for one in (1, 2)), "generator"),
        ({"rows": iter([1])}, "list_iterator"),
        ({1: "a", "1": "b"}, "keys"),
    ],
)
def test_what_would_be_lost_on_the_way_is_refused(value: Any, why: str) -> None:
    with pytest.raises(NotJsonSerializable, match=why):
        to_json_value(value)
