"""Assertions that cannot be meant are refused when they are written, at their line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.documents.authoring import parse_criteria
from meruit.errors import CriteriaError
from meruit.model.criterion import Assertion
from meruit.registry import checks, faults_of


def told(text: str) -> list[str]:
    with pytest.raises(CriteriaError) as refused:
        parse_criteria(text, "c.yaml", assertions_too=True)
    return [str(problem) for problem in refused.value.problems]


def test_each_fault_is_told_with_its_line() -> None:
    text = """\
success_criteria:
  criteria:
    - assert: state-unchange
    - name: nothing else
      assert: state-unchanged
      excpt: ["AuditEvent/*"]
      evidence: maybe
    - assertion:
        assert: state-unchanged
        when: "k +"
        let:
          k: {pick: any, path: a}
    - assert: portal-state-match
      correlate_by: {resource: prior_auth}
      fields:
        cpt: "72148"
        status: {one_off: [pending]}
        due: {before: 2026-03-06T10:00:00}
        note: {matches: "("}
        a..b: 1
      count: -1
"""
    inside = "success_criteria.criteria"
    assert [line.partition("; ")[0] for line in told(text)] == [
        f"line 3, {inside}[0].assert: no check is named 'state-unchange' (did you mean 'state-unchanged'?)",
        f"line 6, {inside}[1].excpt: unknown key 'excpt' (did you mean 'except'?)",
        f"line 7, {inside}[1].evidence: expected one of 'plain', 'hash', got 'maybe'",
        f"line 10, {inside}[2].assertion.when: 'k +' is no formula",
        (
            f"line 12, {inside}[2].assertion.let.k.pick: expected only, first, last, or latest or earliest with a "
            "path, as latest effective"
        ),
        f"line 17, {inside}[3].fields.status: no matcher is called 'one_off' (did you mean 'one_of'?)",
        f"line 18, {inside}[3].fields.due: before: 2026-03-06T10:00:00 has a time and no zone",
        f"line 19, {inside}[3].fields.note: '(' is no regular expression: missing ): (",
        f"line 20, {inside}[3].fields.a..b: 'a..b' is no path: a name is missing at character 3",
        f'line 21, {inside}[3].count: expected a number of items: 1, ">=1", [1, 3] or {{min: 1, max: 3}}',
    ]


def test_a_good_assertion_is_taken_in_both_forms() -> None:
    for criterion in (
        {"assert": "state-unchanged", "except": ["a"], "weight": 2},
        {"assertion": {"assert": "state-unchanged", "except": ["a"]}, "weight": 2},
    ):
        (found,) = parse_criteria(json.dumps({"criteria": [criterion]}), assertions_too=True).criteria
        assert found.assertion is not None
        assert found.assertion.settings == {"except": ["a"]}
        assert (found.axis, found.required, found.weight) == ("safety", True, 2)


def test_what_the_author_says_goes_before_what_the_check_would_have() -> None:
    written = {"assert": "state-unchanged", "axis": "tidiness", "required": False}
    (found,) = parse_criteria(json.dumps({"criteria": [written]})).criteria
    assert (found.axis, found.required) == ("tidiness", False)


def test_numbers_of_an_assertion_keep_every_digit() -> None:
    expected = "{near: {value: 0.1000000000000000000001, by: 0}}"
    text = f"criteria:\n- assert: portal-state-match\n  query: a\n  expected: {expected}"
    (found,) = parse_criteria(text).criteria
    assert found.assertion is not None
    assert "0.1000000000000000000001" in str(found.assertion.settings)
    assert faults_of(found.assertion) == []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["in", "not", "path", "gte", "near", "weight"]), inner)
    ),
    max_leaves=6,
)


@given(st.data(), st.sampled_from(checks.names()))
def test_whatever_an_author_writes_is_understood_or_refused(data: st.DataObject, name: str) -> None:
    settings = checks.get(name).settings
    assert settings is not None
    known = [field.alias or key for key, field in settings.model_fields.items()]
    written = data.draw(st.dictionaries(st.sampled_from(known) | st.text(max_size=5), ANYTHING, max_size=4))
    written.pop("assert", None)
    for place, why in faults_of(Assertion.model_validate({"assert": name, **written})):
        assert isinstance(place, tuple)
        assert why


@pytest.mark.parametrize("depth", [100, 2_000])
def test_an_assertion_of_any_depth_is_refused_without_a_crash(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = f'{{"criteria": [{{"assert": "state-unchanged", "except": {deep}}}]}}'
    assert told(text)
