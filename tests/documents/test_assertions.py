"""Assertions that are not valid are refused when they are written, with their line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import check_golden

from meruit.documents.authoring import parse_criteria
from meruit.errors import CriteriaError, Problem
from meruit.model.criterion import Assertion
from meruit.registry import checks, faults_of


def refused(text: str) -> tuple[Problem, ...]:
    with pytest.raises(CriteriaError) as raised:
        parse_criteria(text, "c.yaml", assertions_too=True)
    return raised.value.problems


def places(text: str) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.where) for problem in refused(text)]


WRONG = """\
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


def test_each_fault_is_reported_with_its_line() -> None:
    inside = "success_criteria.criteria"
    assert places(WRONG) == [
        (3, f"{inside}[0].assert"),
        (6, f"{inside}[1].excpt"),
        (7, f"{inside}[1].evidence"),
        (10, f"{inside}[2].assertion.when"),
        (12, f"{inside}[2].assertion.let.k.pick"),
        (17, f"{inside}[3].fields.status"),
        (18, f"{inside}[3].fields.due"),
        (19, f"{inside}[3].fields.note"),
        (20, f"{inside}[3].fields.a..b"),
        (21, f"{inside}[3].count"),
    ]


@pytest.mark.golden
def test_each_fault_is_explained() -> None:
    check_golden("documents/assertion_mistakes", "".join(f"{problem}\n" for problem in refused(WRONG)))


def test_a_good_assertion_is_taken_in_both_forms() -> None:
    for criterion in (
        {"assert": "state-unchanged", "except": ["a"], "weight": 2},
        {"assertion": {"assert": "state-unchanged", "except": ["a"]}, "weight": 2},
    ):
        (found,) = parse_criteria(json.dumps({"criteria": [criterion]}), assertions_too=True).criteria
        assert found.assertion is not None
        assert found.assertion.settings == {"except": ["a"]}
        assert (found.axis, found.required, found.weight) == ("safety", True, 2)


def test_the_authors_settings_override_the_checks_defaults() -> None:
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
def test_any_assertion_is_accepted_or_refused(data: st.DataObject, name: str) -> None:
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
    assert refused(text)
