"""One result in full, and every sentence the judge can say: what a reader of stored records relies on."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from meruit.errors import MeruitError
from meruit.judge.compare import bracket, compile_test
from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.verdict import MAX_CACHED_STATUSES, Circumstances, apply_governance, conclude, evidence_of, rejudge
from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Measured, Missing, Provenance, Skipped
from meruit.model.kinds import MetricType
from meruit.model.verdict import GovernanceStatus, Reason, ReasonCode, Status

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CRITERIA = SuccessCriteria.model_validate(
    {
        "criteria": [
            {
                "metric": "accuracy",
                "metric_type": "percentage",
                "comparison": "gte",
                "threshold": 0.9,
                "weight": 2,
                "bonus": 0.03,
                "penalty": 0.01,
            },
            {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "penalty": 0.02},
            {"assert": "record-exists", "axis": "safety", "bonus": 0.5, "name": "the record exists"},
            {"assert": "nothing-else", "axis": "safety", "required": True, "penalty": 1},
            {
                "metric": "tone",
                "metric_type": "custom",
                "comparison": "eq",
                "threshold": "kind",
                "bonus": 1,
                "penalty": 2,
            },
        ]
    }
)
EVIDENCE: list[Evidence] = [
    Measured(0.95, {"expected": 20}, Provenance.CLAIMED),
    2500,
    Checked("1", {"seen": 1}),
    Checked("1/3", {"seen": 2}),
    Missing("nobody listened", Cause.EXTRACTOR_ERROR, Fault.SYSTEM),
]


@pytest.fixture
def plan() -> Plan:
    traits = {"latency_ms": Trait(MetricType.LATENCY, Provenance.OBSERVED)}
    return compile_plan(CRITERIA, lambda name: traits.get(name, Trait(None, Provenance.COMPUTED)))


def common(number: int, name: str, **rest: Any) -> dict[str, Any]:
    return {
        "criterion_id": name,
        "index": number,
        "metric": name,
        "error": None,
        "cause": None,
        "details": None,
        "axis": "__default__",
        "required": True,
        "weight": 1.0,
        "natural": None,
        **rest,
    }


def test_a_result_in_full(plan: Plan) -> None:
    stamp = Circumstances("c-1", WHEN, "in", "out", "meta", {"engine": "1"})
    result = conclude(plan, EVIDENCE, stamp)
    assert rejudge(plan, result) == result
    told = result.to_dict()
    assert told.pop("criterion_results") == [
        common(
            0,
            "accuracy",
            value=0.95,
            threshold=0.9,
            comparison="gte",
            met=True,
            weight=2.0,
            bonus=0.03,
            penalty=None,
            status="met",
            score=1.0,
            exact="1",
            fault="none",
            provenance="claimed",
            details={"expected": 20},
        ),
        common(
            1,
            "latency_ms",
            value=2500,
            threshold=2000,
            comparison="lte",
            met=False,
            bonus=None,
            penalty=0.02,
            status="not_met",
            score=0.0,
            exact="0",
            fault="agent",
            provenance="observed",
            natural="latency",
        ),
        common(
            2,
            "the record exists",
            metric="record-exists",
            value=None,
            threshold=None,
            comparison=None,
            met=True,
            bonus=0.5,
            penalty=None,
            status="met",
            score=1.0,
            exact="1",
            fault="none",
            provenance=None,
            axis="safety",
            details={"seen": 1},
        ),
        common(
            3,
            "nothing-else",
            value=None,
            threshold=None,
            comparison=None,
            met=False,
            bonus=None,
            penalty=1.0,
            status="not_met",
            score=1 / 3,
            exact="1/3",
            fault="agent",
            provenance=None,
            axis="safety",
            details={"seen": 2},
        ),
        common(
            4,
            "tone",
            value=None,
            threshold="kind",
            comparison="eq",
            met=False,
            bonus=1.0,
            penalty=2.0,
            status="indeterminate",
            score=0.0,
            exact="0",
            cause="extractor_error",
            fault="system",
            error="nobody listened",
            provenance="computed",
        ),
    ]
    assert told == {
        "contract_id": "c-1",
        "success": False,
        "metrics": {"accuracy": 0.95, "latency_ms": 2500},
        "weighted_score": None,
        "bonus": 0.53,
        "penalty": 1.02,
        "governance_flags": [],
        "verified_at": "2026-01-02T03:04:05Z",
        "verdict": "fail",
        "score": 5 / 9,
        "exact": "5/9",
        "axes": {
            "__default__": {
                "score": 0.5,
                "weight": 4.0,
                "passed": 1,
                "total": 3,
                "bounds": {"low": 0.5, "high": 0.75},
            },
            "safety": {"score": 2 / 3, "weight": 2.0, "passed": 1, "total": 2, "bounds": {"low": 2 / 3, "high": 2 / 3}},
        },
        "bounds": {"low": 5 / 9, "high": 13 / 18},
        "coverage": 5 / 6,
        "reasons": [
            {"code": "required_not_met", "message": "latency_ms is required and not met", "criterion_id": "latency_ms"},
            {
                "code": "required_not_met",
                "message": "nothing-else is required and not met",
                "criterion_id": "nothing-else",
            },
            {"code": "indeterminate", "message": "tone: nobody listened", "criterion_id": "tone"},
        ],
        "governance": "not_checked",
        "criteria_digest": plan.digest,
        "input_digest": "in",
        "output_digest": "out",
        "metadata_digest": "meta",
        "versions": {"engine": "1"},
        "bonus_micros": 530_000,
        "penalty_micros": 1_020_000,
    }


def test_the_evidence_of_a_result_is_what_was_found(plan: Plan) -> None:
    result = conclude(plan, EVIDENCE, Circumstances("c", WHEN))
    assert [evidence_of(judged) for judged in result.criterion_results] == [
        EVIDENCE[0],
        Measured(2500, None, Provenance.OBSERVED),
        Checked("1", {"seen": 1}, Fault.NONE),
        EVIDENCE[3],
        EVIDENCE[4],
    ]


def test_evidence_that_does_not_fit_the_plan_is_refused(plan: Plan) -> None:
    with pytest.raises(ValueError, match="shorter"):
        conclude(plan, EVIDENCE[:-1], Circumstances("c", WHEN))


def test_a_digest_follows_the_meaning_of_the_criteria() -> None:
    def digest(**whole: Any) -> str:
        made = SuccessCriteria.model_validate({"criteria": [{"assert": "x"}], **whole})
        return compile_plan(made, lambda _name: Trait()).digest

    assert digest() == digest(aggregation="all")
    assert digest() != digest(aggregation="any")
    assert len(digest()) == 64


def test_what_a_plan_remembers_is_bounded(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({}, {})
    plan.outcome_cache.update({(Status.MET,) * 3 + (number,): object() for number in range(MAX_CACHED_STATUSES // 2)})  # type: ignore[misc]
    result = conclude(plan, [0.9, 0.1], Circumstances("c", WHEN))
    assert list(plan.outcome_cache) == [(Status.MET, Status.NOT_MET)]
    assert conclude(plan, [0.8, 0.2], Circumstances("c", WHEN)).bounds == result.bounds


def test_results_do_not_share_what_can_be_changed(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({})
    one, other = (conclude(plan, [0.9], Circumstances("c", WHEN)) for _ in range(2))
    one.axes.clear()
    assert other.axes


SENTENCES = [
    ("gte", 0.5, "numeric", True, Cause.WRONG_TYPE, "the value is true, not a number"),
    ("gte", 0.5, "numeric", "a", Cause.WRONG_TYPE, "the value is str, not a number"),
    ("gte", 0.5, "numeric", float("nan"), Cause.NOT_A_NUMBER, "the value is nan"),
    (
        "gte",
        0.5,
        "numeric",
        2**53 + 1,
        Cause.OUT_OF_DOMAIN,
        "the integer is beyond 2^53, where numbers are no longer exact",
    ),
    ("lte", 5, "latency", -1, Cause.OUT_OF_DOMAIN, "-1 is impossible for latency"),
    (
        "gte",
        0.9,
        "percentage",
        95,
        Cause.OUT_OF_DOMAIN,
        "95 is no share between 0 and 1: another scale than the threshold's?",
    ),
    ("gte", 1, "count", 1.5, Cause.WRONG_TYPE, "1.5 is no whole number"),
    ("eq", "a", "custom", 1, Cause.WRONG_TYPE, "the value is int, not a text"),
]


@pytest.mark.parametrize(("comparison", "threshold", "kind", "value", "cause", "why"), SENTENCES)
def test_a_value_that_cannot_be_judged_says_why_and_who_answers_for_it(
    comparison: str, threshold: Any, kind: str, value: Any, cause: Cause, why: str
) -> None:
    made = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": kind, "comparison": comparison, "threshold": threshold}
    )
    for blame in (Fault.AGENT, Fault.SYSTEM):
        assert compile_test(made, bracket(made, None), blame)(value) == Missing(why, cause, blame)


def test_the_other_sentences_of_the_judge(plan_of: Callable[..., Plan]) -> None:
    def said(plan: Plan, *evidence: Any) -> list[str]:
        return [reason.message for reason in conclude(plan, list(evidence), Circumstances("c", WHEN)).reasons]

    assert said(plan_of()) == ["there are no criteria, and nothing passes by default"]
    assert said(plan_of({"required": False}), 0.9) == ["no criterion is required, so `all` asks for nothing"]
    assert said(plan_of({"missing": "exclude"}), Skipped("x")) == ["every criterion was excluded: nothing was judged"]
    weighted = plan_of({}, {}, {}, aggregation="weighted", minimum_weighted_score=0.75)
    assert said(weighted, 0.9, 0.9, 0.1) == ["m2 is not met", "the score is 0.6667, 0.75 is needed"]
    assert said(plan_of({"assert": "x"}), 1.0) == ["x: an assertion needs what its check found, not a value"]
    assert said(plan_of({"assert": "x"}), Checked("7")) == ["x: the check gave the score '7', not one from 0 to 1"]
    contained = plan_of({"metric_type": "contains", "comparison": "contains_all", "threshold": []})
    assert said(contained, ["a"]) == ["m0: the threshold names nothing to look for"]
    rules = tuple(rule._replace(weight=0) for rule in plan_of({}).rules)
    weightless = plan_of({})._replace(rules=rules, total_weight=0)
    assert said(weightless, 0.9) == ["every weight is 0, so no score exists"]


def test_a_tolerance_in_percent_is_a_tolerance_in_percent() -> None:
    made = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": "percentage", "comparison": "eq", "threshold": 90, "tolerance": 5}
    )
    test = compile_test(made, bracket(made, MetricType.ACCURACY), Fault.SYSTEM)
    assert [test(value) for value in (0.85, 0.95, 0.951, 0.849)] == [True, True, False, False]
    plain = made.model_copy(update={"tolerance": None})
    test = compile_test(plain, bracket(plain, MetricType.ACCURACY), Fault.SYSTEM)
    assert [test(value) for value in (0.9, 0.9000009, 0.900001)] == [True, True, False]


def test_money_that_is_not_earned_or_owed_is_not_counted(plan_of: Callable[..., Plan]) -> None:
    skipped = plan_of({}, {"assert": "x", "bonus": 1, "penalty": 1}, penalize_missing=True)
    result = conclude(skipped, [0.9, Skipped("no")], Circumstances("c", WHEN))
    assert (result.bonus, result.penalty) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("comparison", "threshold", "met", "not_met"),
    [
        ("gte", 90, 0.9, 0.899),
        ("gt", 90, 0.901, 0.9),
        ("lte", 90, 0.9, 0.901),
        ("lt", 90, 0.899, 0.9),
        ("in_range", [80, 90], 0.8, 0.799),
        ("in_range", {"max": 90}, 0.9, 0.901),
        ("neq", 90, 0.91, 0.9),
    ],
)
def test_every_operator_reads_percent(comparison: str, threshold: Any, met: float, not_met: float) -> None:
    made = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": "percentage", "comparison": comparison, "threshold": threshold}
    )
    fractions = compile_test(made, bracket(made, MetricType.ACCURACY), Fault.SYSTEM)
    assert (fractions(met), fractions(not_met)) == (True, False)
    percent = compile_test(made, bracket(made, None), Fault.SYSTEM)
    assert (percent(met * 100), percent(not_met * 100)) == (True, False)


@pytest.mark.parametrize(
    ("kind", "value"), [("latency", 0.0), ("count", 0), ("count", 2**53), ("percentage", 0.0), ("percentage", 1.0)]
)
def test_the_ends_of_what_is_possible_are_possible(kind: str, value: Any) -> None:
    made = SuccessCriterion.model_validate({"metric": "m", "metric_type": kind, "comparison": "gte", "threshold": 0})
    assert compile_test(made, bracket(made, None), Fault.SYSTEM)(value) is True


def test_zero_percent_is_possible() -> None:
    made = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": "percentage", "comparison": "lte", "threshold": 90}
    )
    assert compile_test(made, bracket(made, None), Fault.SYSTEM)(0.0) is True


def test_a_bonus_or_a_penalty_alone_is_money(plan_of: Callable[..., Plan]) -> None:
    earned = conclude(plan_of({"bonus": 0.5}), [0.9], Circumstances("c", WHEN))
    owed = conclude(plan_of({"penalty": 0.5}), [0.1], Circumstances("c", WHEN))
    assert (earned.bonus, owed.penalty) == (0.5, 0.5)


def test_a_check_earns_or_costs_and_never_both(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({"assert": "x", "bonus": 1, "penalty": 2})
    held = conclude(plan, [Checked("1")], Circumstances("c", WHEN)).criterion_results[0]
    failed = conclude(plan, [Checked("0")], Circumstances("c", WHEN)).criterion_results[0]
    assert (held.bonus, held.penalty, held.met) == (1.0, None, True)
    assert (failed.bonus, failed.penalty, failed.status) == (None, 2.0, Status.NOT_MET)


def test_details_stay_on_a_criterion_that_is_not_met(plan_of: Callable[..., Plan]) -> None:
    result = conclude(plan_of({}), [Measured(0.1, {"missing": ["a"]})], Circumstances("c", WHEN))
    assert result.criterion_results[0].details == {"missing": ["a"]}


def test_a_skipped_criterion_is_nobodys_fault(plan_of: Callable[..., Plan]) -> None:
    result = conclude(plan_of({}, {}), [0.9, Skipped("no")], Circumstances("c", WHEN))
    assert (result.criterion_results[1].fault, result.criterion_results[1].cause) == (Fault.NONE, None)


def test_a_minimum_that_is_just_reached_needs_no_reason(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({}, {}, aggregation="weighted", minimum_weighted_score=0.5)
    reasons = conclude(plan, [0.9, 0.1], Circumstances("c", WHEN)).reasons
    assert [(reason.message, reason.criterion_id) for reason in reasons] == [("m1 is not met", "m1")]


@pytest.mark.parametrize(
    ("provenance", "blame"), [(Provenance.CLAIMED, Fault.AGENT), (Provenance.COMPUTED, Fault.SYSTEM)]
)
def test_who_claims_a_value_answers_for_it(provenance: Provenance, blame: Fault) -> None:
    made = SuccessCriteria.model_validate(
        {"criteria": [{"metric": "m", "metric_type": "accuracy", "comparison": "gte", "threshold": 50}]}
    )
    plan = compile_plan(made, lambda _name: Trait(MetricType.ACCURACY, provenance), ("slot",))
    result = conclude(plan, [7.0], Circumstances("c", WHEN))
    assert result.criterion_results[0].fault is blame
    half = conclude(plan, [0.5], Circumstances("c", WHEN))
    assert (half.success, half.metrics) == (True, {"slot": 0.5})


DOUBT = Reason(ReasonCode.GOVERNANCE_INVALID, "governance rejects the outcome: clock")


@pytest.mark.parametrize(
    ("status", "flags", "reason", "success"),
    [
        (GovernanceStatus.CLEAR, ["odd"], None, True),
        (GovernanceStatus.INVALID, ["clock"], DOUBT, False),
        (GovernanceStatus.REVIEW, [], Reason(ReasonCode.GOVERNANCE_UNAVAILABLE, "down"), False),
    ],
)
def test_what_governance_said_is_part_of_the_record(
    status: GovernanceStatus, flags: list[str], reason: Reason | None, success: bool, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of({}, {"required": False})
    result = apply_governance(conclude(plan, [0.9, 0.1], Circumstances("c", WHEN)), status, flags, reason)
    assert (result.success, result.governance, result.governance_flags) == (success, status, flags)
    assert result.reasons[1:] == ([] if reason is None else [reason])
    assert result.reasons[0].message == "m1 is not met"
    assert rejudge(plan, result) == result


def test_a_record_is_judged_again_from_what_it_says_of_its_metrics() -> None:
    made = SuccessCriteria.model_validate(
        {
            "criteria": [
                {"metric": "accuracy", "metric_type": "percentage", "comparison": "gte", "threshold": 90},
                {"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 1},
                {"metric": "words", "metric_type": "count", "comparison": "lte", "threshold": 5, "id": "few"},
                {"metric": "gone", "metric_type": "count", "comparison": "gte", "threshold": 1, "required": False},
            ]
        }
    )
    traits = {"accuracy": Trait(MetricType.ACCURACY, Provenance.COMPUTED), "gone": Trait(None, Provenance.OBSERVED)}
    plan = compile_plan(made, lambda name: traits.get(name, Trait()), ("accuracy", "words", "words[few]", "gone"))
    evidence: list[Evidence] = [0.95, 3, 4, Missing("nobody looked")]
    result = conclude(plan, evidence, Circumstances("c", WHEN))
    assert result.metrics == {"accuracy": 0.95, "words": 3, "words[few]": 4}
    assert rejudge(made, result) == result
    other = SuccessCriteria.model_validate({"criteria": [{"assert": "x"}]})
    with pytest.raises(MeruitError, match="judged by other criteria, or not at all"):
        rejudge(other, result)
