"""What holds for any criteria and any evidence."""

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meruit.judge.batch import VERDICTS, judge_columns
from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude, rejudge
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Checked, Evidence, Missing
from meruit.model.verdict import Status, Verdict, VerificationResult

WHEN = Circumstances("c", datetime(2026, 1, 1, tzinfo=UTC))
weights = st.sampled_from([0.1, 0.2, 0.25, 1, 2.5, 7, 100])
amounts = st.none() | st.sampled_from([0, 0.000001, 0.1, 0.2, 3])

criterion = st.fixed_dictionaries(
    {"weight": weights},
    optional={
        "required": st.booleans(),
        "bonus": amounts,
        "penalty": amounts,
        "axis": st.sampled_from(["a", "b"]),
    },
)
finding = st.one_of(
    st.sampled_from([0.0, 0.5, 0.9, 1.0, math.nan]),
    st.builds(Missing, st.just("nobody knows")),
)
case = st.tuples(criterion, finding)
aggregations = st.sampled_from(["all", "any", "weighted"])


def plan_of(parts: list[dict[str, Any]], aggregation: str, minimum: float | None = None) -> Plan:
    criteria = [
        {"metric": f"m{number}", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5, **part}
        for number, part in enumerate(parts)
    ]
    whole = {"criteria": criteria, "aggregation": aggregation, "minimum_weighted_score": minimum}
    return compile_plan(SuccessCriteria.model_validate(whole), lambda _name: Trait())


def verdict_on(
    cases: list[tuple[dict[str, Any], Evidence]], aggregation: str, minimum: float | None = None
) -> VerificationResult:
    return conclude(plan_of([part for part, _ in cases], aggregation, minimum), [found for _, found in cases], WHEN)


@given(
    st.lists(case, min_size=1, max_size=8).flatmap(lambda cases: st.tuples(st.just(cases), st.permutations(cases))),
    aggregations,
)
def test_the_order_of_criteria_never_changes_the_outcome(
    both: tuple[list[tuple[dict[str, Any], Evidence]], list[tuple[dict[str, Any], Evidence]]],
    aggregation: str,
) -> None:
    one, other = (verdict_on(cases, aggregation) for cases in both)
    assert (one.verdict, one.success, one.exact, one.bounds) == (
        other.verdict,
        other.success,
        other.exact,
        other.bounds,
    )
    assert (one.bonus, one.penalty, one.coverage) == (other.bonus, other.penalty, other.coverage)
    assert one.axes == other.axes


@given(
    st.lists(st.tuples(criterion, st.sampled_from([0.1, 0.9])), max_size=8),
    criterion,
    st.sampled_from(["all", "any"]),
)
def test_adding_a_met_criterion_never_lowers_success_when_all_is_measured(
    cases: list[tuple[dict[str, Any], Evidence]], added: dict[str, Any], aggregation: str
) -> None:
    before, after = verdict_on(cases, aggregation), verdict_on([*cases, (added, 0.9)], aggregation)
    assert after.success >= before.success
    assert after.bounds.low >= before.bounds.low


@given(st.lists(case, min_size=1, max_size=8), aggregations)
def test_the_score_lies_within_its_bounds(cases: list[tuple[dict[str, Any], Evidence]], aggregation: str) -> None:
    result = verdict_on(cases, aggregation)
    assert 0 <= result.bounds.low <= result.score <= result.bounds.high <= 1
    assert 0 <= result.coverage <= 1
    for axis in result.axes.values():
        assert axis.bounds.low <= axis.score <= axis.bounds.high


@given(st.lists(case, min_size=1, max_size=6), aggregations)
def test_an_outcome_is_given_only_when_no_measurement_could_change_it(
    cases: list[tuple[dict[str, Any], Evidence]], aggregation: str
) -> None:
    result = verdict_on(cases, aggregation)
    settled = [
        verdict_on(
            [(part, value if isinstance(found, Missing) or found != found else found) for part, found in cases],
            aggregation,
        )
        for value in (0.1, 0.9)
    ]
    outcomes = {(world.verdict, world.success) for world in settled}
    if len(outcomes) == 1:
        assert (result.verdict, result.success) in outcomes
    else:
        assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)


@given(st.lists(case, max_size=8), aggregations)
def test_what_could_not_be_measured_never_passes_and_moves_no_money(
    cases: list[tuple[dict[str, Any], Evidence]], aggregation: str
) -> None:
    result = verdict_on([(part, Missing("nobody knows")) for part, _ in cases], aggregation)
    assert not result.success
    assert result.verdict is not Verdict.PASS
    assert (result.bonus, result.penalty) == (0.0, 0.0)


@given(
    st.lists(
        st.tuples(criterion, finding | st.builds(Checked, st.sampled_from(["0", "1", "2/3", "9"]))),
        max_size=8,
    ),
    aggregations,
)
def test_every_result_judged_again_from_its_own_evidence_is_byte_equal(
    cases: list[tuple[dict[str, Any], Evidence]], aggregation: str
) -> None:
    parts = [({**part, "assert": "x"} if isinstance(found, Checked) else part, found) for part, found in cases]
    criteria = [
        part
        if "assert" in part
        else {"metric": f"m{n}", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5, **part}
        for n, (part, _) in enumerate(parts)
    ]
    whole = SuccessCriteria.model_validate({"criteria": criteria, "aggregation": aggregation})
    plan = compile_plan(whole, lambda _name: Trait())
    result = conclude(plan, [found for _, found in parts], WHEN)
    stored = VerificationResult.from_json(result.to_json())
    assert rejudge(plan, stored).to_json() == result.to_json()


comparisons = st.sampled_from(
    [
        {"metric_type": "numeric", "comparison": "gte", "threshold": 0.5},
        {"metric_type": "percentage", "comparison": "gt", "threshold": 0.9},
        {"metric_type": "latency", "comparison": "lte", "threshold": 2000},
        {"metric_type": "count", "comparison": "in_range", "threshold": [1, 3]},
        {"metric_type": "numeric", "comparison": "eq", "threshold": 1},
        {"metric_type": "numeric", "comparison": "neq", "threshold": 1},
        {"metric_type": "boolean", "comparison": "eq", "threshold": True},
        {"metric_type": "contains", "comparison": "contains_all", "threshold": ["a"]},
        {"metric_type": "contains", "comparison": "contains_any", "threshold": ["a"]},
        {"metric_type": "numeric", "comparison": "lt", "threshold": "0.30000000000000001"},
    ]
)
values = (
    st.sampled_from([0.0, 0.25, 0.3, 0.30000000000000004, 0.5, 0.9, 0.90001, 1.0, 1.00005, 2.0, 2.5, 3.0, 1999.9, -1.0])
    | st.floats()
    | st.sampled_from([math.nan, math.inf])
)


@given(
    st.lists(st.tuples(criterion, comparisons, st.booleans()), min_size=1, max_size=6),
    aggregations,
    st.none() | st.sampled_from([0, 0.5, 0.75, 1]),
    st.booleans(),
    st.data(),
)
def test_columns_and_single_works_are_judged_alike(
    parts: list[tuple[dict[str, Any], dict[str, Any], bool]],
    aggregation: str,
    minimum: float | None,
    penalize: bool,
    data: st.DataObject,
) -> None:
    criteria = []
    for number, (part, comparison, exclude) in enumerate(parts):
        extra = {"missing": "exclude"} if exclude and part.get("required") is not True else {}
        criteria.append({"metric": f"m{number}", **comparison, **part, **extra})
    whole = {
        "criteria": criteria,
        "aggregation": aggregation,
        "minimum_weighted_score": minimum,
        "penalize_missing": penalize,
    }
    plan = compile_plan(SuccessCriteria.model_validate(whole), lambda _name: Trait())
    rows = data.draw(st.lists(st.tuples(*[values] * len(criteria)), min_size=1, max_size=5))
    columns = {f"m{number}": np.array([row[number] for row in rows]) for number in range(len(criteria))}
    batch = judge_columns(plan, columns)
    for number, row in enumerate(rows):
        single = conclude(plan, list(row), WHEN)
        assert VERDICTS[batch.verdict[number]] is single.verdict
        assert bool(batch.success[number]) is single.success
        assert (batch.low[number], batch.high[number]) == (single.bounds.low, single.bounds.high)
        assert (batch.bonus_micros[number] / 1e6, batch.penalty_micros[number] / 1e6) == (
            single.bonus,
            single.penalty,
        )
        for state, judged in zip(batch.states[:, number], single.criterion_results, strict=True):
            known = judged.status in (Status.MET, Status.NOT_MET)
            assert state == (int(judged.met) if known else 2)
