"""Verdicts: three values, bounds, bands, gates, money."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from meruit.judge.plan import Plan
from meruit.judge.verdict import rejudge
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Measured, Missing, Provenance, Skipped
from meruit.model.kinds import DEFAULT_AXIS
from meruit.model.verdict import ReasonCode, Status, Verdict, VerificationResult

PlanOf = Callable[..., Plan]
Judge = Callable[[Plan, Sequence[Evidence]], VerificationResult]
MISSING = Missing("nobody measured it")


def codes(result: VerificationResult) -> set[ReasonCode]:
    return {reason.code for reason in result.reasons}


def test_all_met_is_a_pass_with_nothing_to_explain(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {}), [0.9, 0.5])
    assert (result.verdict, result.success, result.score, result.exact) == (Verdict.PASS, True, 1.0, "1")
    assert result.reasons == []
    assert result.coverage == 1.0
    assert result.weighted_score is None


def test_a_missing_required_metric_is_inconclusive_and_never_a_pass(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {}), [0.9, MISSING])
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)
    assert codes(result) == {ReasonCode.INDETERMINATE}
    low, high = result.bounds
    assert (low, high, result.coverage) == (0.5, 1.0, 0.5)


def test_an_unmeasured_required_criterion_never_passes(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of(*[{}] * 20), [0.9] * 19 + [MISSING])
    assert result.bounds.low >= 0.9
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)


def test_missing_weight_counts_in_the_bounds_instead_of_leaving_the_mean(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"weight": 1}, {"weight": 9}, aggregation="weighted")
    result = judged(plan, [0.9, MISSING])
    assert (result.bounds.low, result.bounds.high) == (0.1, 1.0)
    assert result.weighted_score == 0.1
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)


def test_a_verdict_is_given_when_what_is_missing_cannot_change_it(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"weight": 95}, {"weight": 5}, aggregation="weighted")
    assert judged(plan, [0.9, MISSING]).verdict is Verdict.PASS
    assert judged(plan, [0.9, MISSING]).success is True
    capped = plan_of({"required": True}, {}, aggregation="weighted")
    assert judged(capped, [0.1, MISSING]).verdict is Verdict.FAIL


def test_success_waits_while_the_band_is_open(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {}, aggregation="any"), [0.9, MISSING])
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)


def test_a_criterion_may_ask_to_be_excluded_when_missing(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({}, {"missing": "exclude", "required": False})
    result = judged(plan, [0.9, MISSING])
    assert (result.verdict, result.success, result.coverage) == (Verdict.PASS, True, 1.0)
    assert result.criterion_results[1].status is Status.EXCLUDED
    assert result.axes[DEFAULT_AXIS].weight == 1.0


def test_everything_excluded_does_not_pass(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({"missing": "exclude"}), [MISSING])
    assert (result.verdict, result.success, result.coverage) == (Verdict.INCONCLUSIVE, False, 0.0)
    assert codes(result) == {ReasonCode.NOTHING_MEASURED}
    assert (result.bounds.low, result.bounds.high) == (0.0, 0.0)


def test_a_skipped_criterion_leaves_the_mean(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {"assert": "x"}), [0.9, Skipped("not for this patient")])
    assert (result.verdict, result.success) == (Verdict.PASS, True)
    assert result.criterion_results[1].error == "not for this patient"


@pytest.mark.parametrize("aggregation", ["all", "any", "weighted"])
def test_no_criteria_fail_in_every_aggregation(aggregation: str, plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of(aggregation=aggregation), [])
    assert (result.verdict, result.success, result.score) == (Verdict.FAIL, False, 0.0)
    assert codes(result) == {ReasonCode.NO_CRITERIA}


def test_all_weights_zero_fail_with_the_reason(judged: Judge, plan_of: PlanOf) -> None:
    plan = plan_of({"weight": 1})
    rules = tuple(msgspec.structs.replace(rule, weight=0) for rule in plan.rules)
    result = judged(msgspec.structs.replace(plan, rules=rules, total_weight=0), [0.9])
    assert (result.verdict, result.success) == (Verdict.FAIL, False)
    assert codes(result) == {ReasonCode.NO_WEIGHT}


def test_nothing_required_under_all_does_not_succeed(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({"required": False}), [0.9])
    assert (result.verdict, result.success) == (Verdict.PASS, False)
    assert codes(result) == {ReasonCode.NOTHING_REQUIRED}


def test_optional_criteria_do_not_gate_all(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {"required": False}), [0.9, 0.1])
    assert (result.verdict, result.success) == (Verdict.PARTIAL, True)
    assert codes(result) == {ReasonCode.NOT_MET}


@pytest.mark.parametrize("aggregation", ["any", "weighted"])
def test_an_unset_required_does_not_turn_any_and_weighted_into_all(
    aggregation: str, plan_of: PlanOf, judged: Judge
) -> None:
    assert judged(plan_of({}, {}, aggregation=aggregation), [0.9, 0.1]).success is True


@pytest.mark.parametrize("aggregation", ["all", "any", "weighted"])
def test_an_explicit_required_gates_in_every_aggregation(aggregation: str, plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({}, {}, {}, {"required": True}, aggregation=aggregation)
    result = judged(plan, [0.9, 0.9, 0.9, 0.1])
    assert result.success is False
    assert result.verdict is Verdict.FAIL
    assert ReasonCode.REQUIRED_NOT_MET in codes(result)


def test_any_needs_one(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({}, {}, aggregation="any")
    assert judged(plan, [0.1, 0.9]).success is True
    assert judged(plan, [0.1, 0.2]).success is False


def test_a_written_minimum_of_zero_means_zero(plan_of: PlanOf, judged: Judge) -> None:
    assert judged(plan_of({}, aggregation="weighted", minimum_weighted_score=0.0), [0.1]).success is True
    none_given = judged(plan_of({}, {}, {}, aggregation="weighted"), [0.9, 0.1, 0.1])
    assert none_given.success is False
    assert ReasonCode.BELOW_MINIMUM in codes(none_given)


def test_the_default_minimum_is_one_half(plan_of: PlanOf, judged: Judge) -> None:
    assert judged(plan_of({}, {}, aggregation="weighted"), [0.9, 0.1]).success is True


def test_scores_that_are_exactly_nine_tenths_pass(plan_of: PlanOf, judged: Judge) -> None:
    assertions = [{"assert": "x", "weight": 0.1}] * 3
    result = judged(plan_of(*assertions), [Checked("1"), Checked("0.9"), Checked("0.8")])
    assert (result.exact, result.score, result.verdict) == ("9/10", 0.9, Verdict.PASS)
    uneven = judged(plan_of({"assert": "x", "weight": 3}, {"assert": "y", "weight": 7}), [Checked("2/3"), Checked("1")])
    assert (uneven.exact, uneven.verdict) == ("9/10", Verdict.PASS)


def test_a_score_keeps_its_full_precision(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {}, {}), [0.9, 0.9, 0.1])
    assert (result.score, result.exact, result.verdict) == (2 / 3, "2/3", Verdict.PARTIAL)


def test_partial_credit_counts_but_is_not_met(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({"assert": "x", "bonus": 1, "penalty": 2}), [Checked("1/2", {"fields": 2})])
    only = result.criterion_results[0]
    assert (only.met, only.score, only.exact, only.status) == (False, 0.5, "1/2", Status.NOT_MET)
    assert (result.verdict, result.success, result.bonus, result.penalty) == (
        Verdict.PARTIAL,
        False,
        0.0,
        2.0,
    )


@pytest.mark.parametrize("score", ["-0.1", "1.5", "nan", "much", "1/0", ""])
def test_a_score_outside_zero_and_one_is_refused(score: str, plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({"assert": "x"}), [Checked(score)])
    assert result.criterion_results[0].cause is Cause.CHECK_ERROR
    assert result.criterion_results[0].fault is Fault.SYSTEM
    assert result.verdict is Verdict.INCONCLUSIVE


def test_an_assertion_does_not_accept_a_bare_value(plan_of: PlanOf, judged: Judge) -> None:
    assert judged(plan_of({"assert": "x"}), [1.0]).criterion_results[0].cause is Cause.CHECK_ERROR


def test_axes_have_scores_of_their_own(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"axis": "correctness", "weight": 2}, {"axis": "safety"}, {}, {"axis": "safety"})
    result = judged(plan, [0.9, 0.1, 0.9, MISSING])
    assert list(result.axes) == ["correctness", "safety", DEFAULT_AXIS]
    safety = result.axes["safety"]
    assert (safety.score, safety.weight, safety.passed, safety.total) == (0.0, 2.0, 0, 2)
    assert (safety.bounds.low, safety.bounds.high) == (0.0, 0.5)
    assert (result.axes["correctness"].score, result.axes["correctness"].weight) == (1.0, 2.0)


def test_money_is_exact_and_follows_the_criteria(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"bonus": 0.1}, {"bonus": 0.2, "penalty": 0.5}, {"bonus": 5, "penalty": 0.7})
    result = judged(plan, [0.9, 0.9, 0.1])
    assert (result.bonus, result.penalty) == (0.3, 0.7)
    assert result.criterion_results[0].bonus == 0.1
    assert result.criterion_results[1].penalty is None
    assert (result.criterion_results[2].bonus, result.criterion_results[2].penalty) == (None, 0.7)


def test_an_unmeasurable_criterion_keeps_its_stakes_and_moves_no_money(plan_of: PlanOf, judged: Judge) -> None:
    stakes = {"bonus": 1, "penalty": 2, "weight": 3}
    result = judged(plan_of(stakes), [MISSING])
    only = result.criterion_results[0]
    assert (only.weight, only.bonus, only.penalty) == (3.0, 1.0, 2.0)
    assert (result.bonus, result.penalty) == (0.0, 0.0)
    assert judged(plan_of(stakes, penalize_missing=True), [MISSING]).penalty == 2.0


def test_a_result_carries_its_criterion(plan_of: PlanOf, judged: Judge) -> None:
    twins = judged(plan_of({"metric": "m"}, {"metric": "m"}, {"id": "mine"}), [0.9, 0.1, 0.9])
    assert [result.criterion_id for result in twins.criterion_results] == ["m", "m-2", "mine"]
    assert [result.index for result in twins.criterion_results] == [0, 1, 2]
    assert [result.required for result in twins.criterion_results] == [True, True, True]


def test_evidence_keeps_its_details_and_provenance(plan_of: PlanOf, judged: Judge) -> None:
    found = Measured(0.9, {"found": ["a"]}, Provenance.CLAIMED)
    only = judged(plan_of({}), [found]).criterion_results[0]
    assert (only.value, only.details, only.provenance) == (0.9, {"found": ["a"]}, Provenance.CLAIMED)


EVIDENCE: list[Any] = [
    0.9,
    0.1,
    MISSING,
    Measured(0.7, {"a": 1}, Provenance.CLAIMED),
    float("nan"),
    Skipped("why"),
    Missing("no", Cause.EXTRACTOR_ERROR, Fault.SYSTEM),
]


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_judging_the_evidence_of_a_result_gives_the_result(evidence: Any, plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"axis": "a"}, {}, {"missing": "exclude"})
    result = judged(plan, [evidence, 0.9, evidence])
    assert rejudge(plan, result).to_json() == result.to_json()


def test_judging_an_assertion_again_gives_the_result(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"assert": "x"}, {"assert": "y"}, {"assert": "z"})
    result = judged(plan, [Checked("1/3", {"a": 1}), Checked("7"), Checked("0", None, Fault.AUTHOR)])
    assert rejudge(plan, result).to_json() == result.to_json()


def test_results_read_back_as_they_were_written(plan_of: PlanOf, judged: Judge) -> None:
    result = judged(plan_of({}, {}), [0.9, MISSING])
    assert VerificationResult.from_json(result.to_json()) == result


def test_weights_are_counted_as_written() -> None:
    criteria = SuccessCriteria.model_validate(
        {
            "criteria": [
                {
                    "metric": "m",
                    "metric_type": "numeric",
                    "comparison": "gte",
                    "threshold": 1,
                    "weight": weight,
                }
                for weight in (0.1, "0.20000000000000000001", 3)
            ]
        }
    )
    from meruit.judge.plan import Trait, compile_plan

    plan = compile_plan(criteria, lambda _name: Trait())
    total = Fraction("0.1") + Fraction("0.20000000000000000001") + 3
    assert sum(rule.weight for rule in plan.rules) * plan.weight_unit == total


def test_an_axis_of_guards_that_weigh_nothing_shows_whether_they_held(plan_of: PlanOf, judged: Judge) -> None:
    plan = plan_of({"assert": "x"}, {"assert": "y", "weight": 0, "axis": "safety"})
    held, broken = (judged(plan, [Checked("1"), Checked(score)]).axes["safety"] for score in ("1", "0"))
    assert (held.score, held.weight, held.passed) == (1.0, 0.0, 1)
    assert (broken.score, broken.weight, broken.passed) == (0.0, 0.0, 0)
