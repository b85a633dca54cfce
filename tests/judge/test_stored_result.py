"""A stored result in full: every field and every reason that a reader of records relies on."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.golden import check_golden

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
        "scale": None,
        "value_scale": None,
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
            scale="fraction",
            value_scale="fraction",
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
    for other in (EVIDENCE[:-1], [*EVIDENCE, 1.0]):
        with pytest.raises(ValueError, match=f"{len(other)} pieces"):
            conclude(plan, other, Circumstances("c", WHEN))


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


UNFIT = [
    ("gte", 0.5, "numeric", True, Cause.WRONG_TYPE, "the value is true, not a number"),
    ("gte", 0.5, "numeric", "a", Cause.WRONG_TYPE, "str"),
    ("gte", 0.5, "numeric", float("nan"), Cause.NOT_A_NUMBER, "the value is nan"),
    (
        "gte",
        0.5,
        "numeric",
        2**53 + 1,
        Cause.OUT_OF_DOMAIN,
        "2^53",
    ),
    ("lte", 5, "latency", -1, Cause.OUT_OF_DOMAIN, "-1 is impossible for latency"),
    (
        "gte",
        0.9,
        "percentage",
        95,
        Cause.OUT_OF_DOMAIN,
        "between 0 and 1",
    ),
    ("gte", 1, "count", 1.5, Cause.WRONG_TYPE, "1.5"),
    ("eq", "a", "custom", 1, Cause.WRONG_TYPE, "int"),
]


@pytest.mark.parametrize(("comparison", "threshold", "kind", "value", "cause", "why"), UNFIT)
def test_an_unfit_value_has_a_cause_a_reason_and_a_fault(
    comparison: str, threshold: Any, kind: str, value: Any, cause: Cause, why: str
) -> None:
    made = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": kind, "comparison": comparison, "threshold": threshold}
    )
    for blame in (Fault.AGENT, Fault.SYSTEM):
        found = compile_test(made, bracket(made, None), blame)(value)
        assert isinstance(found, Missing)
        assert (found.cause, found.fault, found.details) == (cause, blame, None)
        assert why in found.why


@pytest.mark.golden
def test_every_reason_has_its_code_and_sentence(plan_of: Callable[..., Plan]) -> None:
    spoken: list[str] = []

    def codes(plan: Plan, *evidence: Any) -> list[tuple[ReasonCode, str | None]]:
        reasons = conclude(plan, list(evidence), Circumstances("c", WHEN)).reasons
        spoken.extend(f"{reason.code}: {reason.message}\n" for reason in reasons)
        return [(reason.code, reason.criterion_id) for reason in reasons]

    assert codes(plan_of()) == [(ReasonCode.NO_CRITERIA, None)]
    assert codes(plan_of({"required": False}), 0.9) == [(ReasonCode.NOTHING_REQUIRED, None)]
    assert codes(plan_of({"missing": "exclude"}), Skipped("x")) == [(ReasonCode.NOTHING_MEASURED, None)]
    weighted = plan_of({}, {}, {}, aggregation="weighted", minimum_weighted_score=0.75)
    assert codes(weighted, 0.9, 0.9, 0.1) == [(ReasonCode.NOT_MET, "m2"), (ReasonCode.BELOW_MINIMUM, None)]
    assert codes(plan_of({"assert": "x"}), 1.0) == [(ReasonCode.INDETERMINATE, "x")]
    assert codes(plan_of({"assert": "x"}), Checked("7")) == [(ReasonCode.INDETERMINATE, "x")]
    contained = plan_of({"metric_type": "contains", "comparison": "contains_all", "threshold": []})
    assert codes(contained, ["a"]) == [(ReasonCode.INDETERMINATE, "m0")]
    rules = tuple(msgspec.structs.replace(rule, weight=0) for rule in plan_of({}).rules)
    weightless = msgspec.structs.replace(plan_of({}), rules=rules, total_weight=0)
    assert codes(weightless, 0.9) == [(ReasonCode.NO_WEIGHT, None)]
    check_golden("judge/reasons", "".join(spoken))


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


def test_a_skipped_criterion_has_no_fault(plan_of: Callable[..., Plan]) -> None:
    result = conclude(plan_of({}, {}), [0.9, Skipped("no")], Circumstances("c", WHEN))
    assert (result.criterion_results[1].fault, result.criterion_results[1].cause) == (Fault.NONE, None)


def test_a_minimum_that_is_just_reached_needs_no_reason(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({}, {}, aggregation="weighted", minimum_weighted_score=0.5)
    reasons = conclude(plan, [0.9, 0.1], Circumstances("c", WHEN)).reasons
    assert [(reason.code, reason.criterion_id) for reason in reasons] == [(ReasonCode.NOT_MET, "m1")]


@pytest.mark.parametrize(
    ("provenance", "blame"), [(Provenance.CLAIMED, Fault.AGENT), (Provenance.COMPUTED, Fault.SYSTEM)]
)
def test_the_agent_is_responsible_for_a_claimed_value(provenance: Provenance, blame: Fault) -> None:
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
def test_the_answer_of_governance_is_recorded(
    status: GovernanceStatus, flags: list[str], reason: Reason | None, success: bool, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of({}, {"required": False})
    result = apply_governance(conclude(plan, [0.9, 0.1], Circumstances("c", WHEN)), status, flags, reason)
    assert (result.success, result.governance, result.governance_flags) == (success, status, flags)
    assert result.reasons[1:] == ([] if reason is None else [reason])
    assert (result.reasons[0].code, result.reasons[0].criterion_id) == (ReasonCode.NOT_MET, "m1")
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
    with pytest.raises(MeruitError, match="other criteria"):
        rejudge(other, result)
