"""Tool calls in recorded messages: tool_calls, num_tool_calls and trajectory."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import AuthorError
from meruit.metrics.support.messages import MAX_CALLS, MAX_EXPECTED, MAX_MESSAGES, RecordedCall, calls_of
from meruit.metrics.tool_calls import num_tool_calls, tool_calls
from meruit.metrics.trajectory import trajectory
from meruit.model.evidence import Cause, Fault, Measured, Missing, Provenance
from meruit.model.work import Work
from meruit.registry import Ask, Finding

NAMES = st.lists(st.sampled_from("abc"), max_size=6)


def value(finding: Finding) -> Any:
    assert isinstance(finding, Measured), finding
    return finding.value


def messages(*names: str) -> Work:
    calls = [{"id": str(place), "function": name, "arguments": {"n": place}} for place, name in enumerate(names)]
    return Work(metadata={"messages": [{"role": "assistant", "tool_calls": calls}]})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
        {"type": "function_call", "name": "f", "arguments": '{"x": 1}', "call_id": "c"},
        {"role": "assistant", "content": [{"type": "text"}, {"type": "tool_use", "name": "f", "input": {"x": 1}}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": "f", "arguments": {"x": 1}}]},
        {"source": "agent", "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"x": 1}}]},
        {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "f", "args": '{"x": 1}'}]},
        {"type": "ai", "tool_calls": [{"name": "f", "args": {"x": 1}, "id": "c"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
    ],
    ids=["openai", "responses", "anthropic", "inspect", "atif", "pydantic-ai", "langchain", "gemini"],
)
def test_calls_are_read_as_each_framework_writes_them(message: dict[str, Any]) -> None:
    found = calls_of(Work(metadata={"messages": ["noise", {"role": "user", "content": "f"}, message]}))
    assert not isinstance(found, Missing)
    assert found.calls == (RecordedCall("f", {"x": 1}),)
    assert found.provenance is Provenance.OBSERVED


def test_arguments_that_are_not_json_stay_a_text() -> None:
    calls = [{"name": "f", "args": text} for text in ("{", " ", None)] + [{"args": {}}, {"name": ""}]
    found = calls_of(Work(output={"messages": [{"tool_calls": calls}]}))
    assert not isinstance(found, Missing)
    assert [call.arguments for call in found.calls] == ["{", {}, {}]
    assert found.provenance is Provenance.CLAIMED


@pytest.mark.parametrize("recorded", ["text", [None] * (MAX_MESSAGES + 1)])
def test_messages_that_cannot_be_read_are_nobodys_failure(recorded: Any) -> None:
    finding = num_tool_calls(Ask())(Work(metadata={"messages": recorded}))
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.SYSTEM


def test_more_calls_than_the_limit_are_not_judged() -> None:
    finding = num_tool_calls(Ask())(messages(*["a"] * (MAX_CALLS + 1)))
    assert isinstance(finding, Missing)
    assert finding.cause is Cause.TOO_COSTLY


@given(NAMES.filter(bool), NAMES)
def test_the_share_in_any_order_is_that_of_the_common_calls(expected: list[str], made: list[str]) -> None:
    common = sum(min(expected.count(name), made.count(name)) for name in set(expected))
    assert value(tool_calls(Ask({"calls": expected}))(messages(*made))) == common / len(expected)
    counted = tool_calls(Ask({"calls": expected, "extra": "count"}))(messages(*made))
    assert value(counted) == common / (len(expected) + len(made) - common)


@given(NAMES.filter(bool), NAMES)
def test_the_share_in_order_is_that_of_the_longest_common_row(expected: list[str], made: list[str]) -> None:
    best = 0
    for size in range(len(expected) + 1):
        for mask in range(1 << len(expected)):
            row = [name for place, name in enumerate(expected) if mask >> place & 1]
            rest = iter(made)
            if len(row) == size and all(name in rest for name in row):
                best = max(best, size)
    assert value(tool_calls(Ask({"calls": expected, "order": "in_order"}))(messages(*made))) == best / len(expected)
    assert value(trajectory(Ask({"steps": expected}))(messages(*made))) is (best == len(expected))


def test_no_order_of_patterns_hides_a_match() -> None:
    patterns = [{"name": "a*"}, {"name": "ab", "arguments": {"n": 1}}, {"name": "ab"}]
    for order in permutations(patterns):
        assert value(tool_calls(Ask({"calls": [*order]}))(messages("ac", "ab", "ab"))) == 1.0


@pytest.mark.parametrize(
    ("rule", "arguments", "fits"),
    [
        ("subset", {}, True),
        ("subset", {"n": 0.0}, True),
        ("subset", {"n": 1}, False),
        ("subset", {"m": None}, False),
        ("exact", {"n": 0}, True),
        ("exact", {}, False),
        ("ignore", {"n": 99}, True),
    ],
)
def test_arguments_are_compared_by_the_rule(rule: str, arguments: dict[str, Any], fits: bool) -> None:
    ask = Ask({"calls": [{"name": "a", "arguments": arguments}], "arguments": rule})
    assert value(tool_calls(ask)(messages("a"))) == float(fits)


def test_arguments_that_are_no_object_fit_only_where_they_are_ignored() -> None:
    work = Work(metadata={"messages": [{"tool_calls": [{"name": "a", "args": "[1"}]}]})
    assert value(tool_calls(Ask({"calls": [{"name": "a", "arguments": {"n": 1}}]}))(work)) == 0.0
    assert value(tool_calls(Ask({"calls": ["a"]}))(work)) == 1.0


def test_the_work_may_name_the_expected_calls() -> None:
    recorded = messages("a").metadata
    assert value(tool_calls(Ask())(Work(input={"expected_tool_calls": ["a", "b"]}, metadata=recorded))) == 0.5
    wrong: Any
    for wrong in ([], None, [1], [{"name": "a", "args": {}}], [{"arguments": {}}], [{"name": "a", "arguments": 1}]):
        finding = tool_calls(Ask())(Work(input={"expected_tool_calls": wrong}, metadata=recorded))
        assert isinstance(finding, Missing)
        assert finding.fault is Fault.AUTHOR


@pytest.mark.parametrize(
    "params",
    [
        {"calls": []},
        {"calls": [""]},
        {"calls": ["a"] * (MAX_EXPECTED + 1)},
        {"order": "some"},
        {"extra": 1},
        {"call": "a"},
    ],
)
def test_expected_calls_that_cannot_be_meant_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        tool_calls(Ask(params))


@pytest.mark.parametrize(
    "params",
    [
        *({"steps": []}, {"steps": [], "forbidden": []}, {"max_steps": -1}, {"max_steps": True}, {"max_steps": 1.5}),
        *({"forbidden": [{}]}, {"step": ["a"]}),
    ],
)
def test_a_trajectory_that_cannot_fail_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        trajectory(Ask(params))


def test_each_violation_of_a_trajectory_is_named() -> None:
    finding = trajectory(Ask({"steps": ["b", "a"], "forbidden": ["c*"], "max_steps": 2}))(messages("a", "b", "cd"))
    assert isinstance(finding, Measured)
    assert finding.details == {"steps": 3, "missing": "a", "forbidden": [{"step": 3, "name": "cd"}], "max_steps": 2}


def test_a_run_without_calls_breaks_no_ban() -> None:
    nothing = Work(metadata={"messages": []})
    assert value(trajectory(Ask({"forbidden": ["*"], "max_steps": 0}))(nothing)) is True
    assert value(num_tool_calls(Ask())(nothing)) == 0
    with pytest.raises(AuthorError):
        num_tool_calls(Ask({"of": "a"}))
    finding = trajectory(Ask())(nothing)
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.AUTHOR
