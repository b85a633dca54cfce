"""What two verdicts differ in: nothing from itself, the opposite from the other end, and only what a reader asks."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meruit.judge.difference import (
    CriterionDifference,
    DifferenceKind,
    FieldChange,
    VerdictDifference,
    VerdictSummary,
    difference,
)
from meruit.judge.plan import Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Evidence, Missing
from meruit.model.verdict import Verdict, VerificationResult

WHEN = Circumstances("c", datetime(2026, 1, 1, tzinfo=UTC))


def judged(found: dict[str, tuple[Evidence, dict[str, Any]]]) -> VerificationResult:
    usual = {"metric_type": "numeric", "comparison": "gte", "threshold": 0.5}
    criteria = [{"metric": name, **usual, **part} for name, (_, part) in found.items()]
    plan = compile_plan(SuccessCriteria.model_validate({"criteria": criteria}), lambda _name: Trait())
    return conclude(plan, [value for value, _ in found.values()], WHEN)


results = st.builds(
    judged,
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(
            st.sampled_from([0.2, 0.9]) | st.builds(Missing, st.just("nobody knows")),
            st.fixed_dictionaries({}, optional={"threshold": st.sampled_from([0.1, 0.95]), "weight": st.just(2)}),
        ),
        min_size=1,
    ),
)


@given(results)
def test_nothing_differs_from_itself(result: VerificationResult) -> None:
    assert difference(result, result).is_empty
    assert difference(result, VerificationResult.from_json(result.to_json())).is_empty


@given(results, results)
def test_from_the_other_end_everything_is_turned(one: VerificationResult, other: VerificationResult) -> None:
    there = difference(one, other)
    assert difference(other, one) == there.inverse()
    assert there.inverse().inverse() == there
    assert VerdictDifference.from_json(there.to_json()).to_json() == there.to_json()


@given(results, results)
def test_what_is_not_listed_is_the_same_in_both(one: VerificationResult, other: VerificationResult) -> None:
    listed = {found.criterion_id for found in difference(one, other).criteria}
    before = {judged.criterion_id: judged for judged in one.criterion_results}
    after = {judged.criterion_id: judged for judged in other.criterion_results}
    for name in {*before, *after} - listed:
        assert (before[name].status, before[name].value) == (after[name].status, after[name].value)


def test_a_moved_threshold_shows_with_what_it_did() -> None:
    old = judged({"a": (0.7, {}), "b": (0.9, {})})
    new = judged({"a": (0.7, {"threshold": 0.8}), "c": (0.9, {"weight": 2})})
    found = difference(old, new)
    assert (found.before, found.after) == (
        VerdictSummary(Verdict.PASS, True, 1.0),
        VerdictSummary(Verdict.PARTIAL, False, 2 / 3),
    )
    assert {change.field for change in found.changes} >= {"verdict", "success", "score", "criteria_digest"}
    moved, removed, added = found.criteria
    assert moved.kind is DifferenceKind.CHANGED
    assert moved.changes[:2] == (FieldChange("status", "met", "not_met"), FieldChange("threshold", 0.5, 0.8))
    assert (removed.criterion_id, removed.kind, added.criterion_id, added.kind) == (
        *("b", DifferenceKind.REMOVED),
        *("c", DifferenceKind.ADDED),
    )
    assert FieldChange("value", 0.9, None) in removed.changes
    assert FieldChange("weight", None, 2.0) in added.changes


def test_true_is_not_one_to_a_reader() -> None:
    usual = {"metric_type": "custom", "comparison": "eq", "threshold": 1}
    found = difference(judged({"a": (True, usual)}), judged({"a": (1, usual)}))
    assert found.criteria == (CriterionDifference("a", DifferenceKind.CHANGED, (FieldChange("value", True, 1),)),)
