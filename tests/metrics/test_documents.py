"""JSON documents compared with references: json_equal and json_fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import AuthorError
from meruit.metrics.json_equal import json_equal
from meruit.metrics.json_fields import json_fields
from meruit.metrics.support.json_parts import MAX_IGNORED, MAX_LEAVES
from meruit.metrics.support.reference import MAX_CHARS
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Finding

SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def value(finding: Finding) -> Any:
    return finding.value if isinstance(finding, Measured) else finding


def details(finding: Finding) -> Any:
    assert isinstance(finding, Measured)
    return finding.details


def held_against(document: Any, reference: Any) -> Work:
    return Work(output={"answer": document}, input={"reference": reference})


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: by value, but true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


AT_ANSWER = Ask({"field": "answer"})


@given(
    DOCUMENTS.filter(lambda found: not isinstance(found, str)),
    DOCUMENTS.filter(lambda found: not isinstance(found, str)),
)
def test_documents_are_equal_when_their_canonical_json_is(document: Any, reference: Any) -> None:
    assert value(json_equal(AT_ANSWER)(held_against(document, reference))) is same(document, reference)
    assert value(json_equal(AT_ANSWER)(held_against(reference, reference))) is True
    assert value(json_fields(AT_ANSWER)(held_against(reference, reference))) == 1.0


@given(DOCUMENTS, DOCUMENTS)
def test_a_share_of_all_with_nothing_extra_is_equality(document: Any, reference: Any) -> None:
    work = held_against(document, reference)
    whole = value(json_fields(Ask({"field": "answer", "count_extra": True}))(work))
    assert (whole == 1.0) is value(json_equal(AT_ANSWER)(work))


@given(st.lists(DOCUMENTS, max_size=5), st.randoms(use_true_random=False))
def test_order_counts_unless_it_is_ignored(items: list[Any], chance: Any) -> None:
    shuffled = chance.sample(items, len(items))
    work = held_against(shuffled, items)
    assert value(json_equal(Ask({"field": "answer", "ignore_order": True}))(work)) is True
    assert value(json_equal(AT_ANSWER)(work)) is same(shuffled, items)


@pytest.mark.parametrize("text", ['{"a": 1}', '```json\n{"a": 1}\n```', ' ```\n{"a": 1.0}\n``` \n'])
def test_a_text_is_read_as_json_with_or_without_its_fence(text: str) -> None:
    assert value(json_equal(Ask())(Work(output={"text": text}, input={"reference": {"a": 1}}))) is True
    assert value(json_equal(Ask())(Work(output={"text": text}, input={"reference": '{"a": 1}'}))) is True


def test_an_output_with_more_than_text_is_compared_whole() -> None:
    work = Work(output={"text": '{"a": 1}', "b": 2}, input={"reference": {"a": 1}})
    assert details(json_equal(Ask())(work))["extra"] == ["b", "text"]


def test_what_differs_is_named_by_its_path() -> None:
    right: Any = {"a": [{"b": 1}, {"b": 2}], "c": {}, "d": None}
    found = details(
        json_fields(Ask())(Work(output={"a": [{"b": 1}, {"b": True}], "c": {}, "e": 0}, input={"reference": right}))
    )
    assert found == {
        "equal": 2,
        "counts": {"different": 1, "missing": 1, "extra": 1},
        "different": ["a.1.b"],
        "missing": ["d"],
        "extra": ["e"],
    }


def test_ignored_paths_do_not_count() -> None:
    work = held_against([{"id": 1, "n": 1}, {"id": 2, "n": 2}], [{"id": 8, "n": 1}, {"id": 9, "n": 2}])
    assert value(json_equal(AT_ANSWER)(work)) is False
    assert value(json_equal(Ask({"field": "answer", "ignore": "*.id"}))(work)) is True
    nothing_left = json_equal(Ask({"field": "answer", "ignore": ["*"]}))(work)
    assert isinstance(nothing_left, Missing)
    assert nothing_left.fault is Fault.AUTHOR


@pytest.mark.parametrize("metric", [json_equal, json_fields])
def test_what_is_too_large_or_absent_is_not_judged(metric: Any) -> None:
    many = [0] * (2 * MAX_LEAVES + 1)
    for work, fault in [
        (held_against(many, [0]), Fault.AGENT),
        (held_against([0], many), Fault.AUTHOR),
        (Work(output={"text": "a" * (MAX_CHARS + 1)}, input={"reference": {}}), Fault.AGENT),
        (Work(input={"reference": {}}, output={"b": 1}), Fault.AGENT),
        (Work(output={"answer": 1}), Fault.AUTHOR),
    ]:
        ask = Ask() if "text" in work.output else AT_ANSWER
        finding = metric(ask)(work)
        assert isinstance(finding, Missing)
        assert finding.fault is fault
        assert finding.cause in (Cause.TOO_COSTLY, Cause.METRIC_MISSING)


@pytest.mark.parametrize("metric", [json_equal, json_fields])
@pytest.mark.parametrize(
    "params",
    [
        *({"ignore": [1]}, {"ignore": ["a"] * (MAX_IGNORED + 1)}, {"ignore": {"a": 1}}, {"ignore": [""]}, {"sort": 1}),
        *({"ignore_order": 1}, {"reference": {"a": 1}, "ignore": ["a"]}, {"reference": [0] * (2 * MAX_LEAVES + 1)}),
    ],
)
def test_params_that_cannot_be_meant_are_refused(metric: Any, params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        metric(Ask(params))


def test_the_criterion_may_hold_the_document() -> None:
    assert value(json_equal(Ask({"reference": {"a": 1}}))(Work(output={"a": 1}))) is True
    assert value(json_fields(Ask({"reference": '{"a": 1, "b": 2}'}))(Work(output={"a": 1}))) == 0.5
