"""The quick path of judging says, byte for byte, what judging each criterion by itself says."""

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.verdict import Circumstances, _judge, _own_reasons, _summarize, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Checked, Evidence, Measured, Missing, Provenance, Skipped
from meruit.model.kinds import MetricType
from meruit.model.verdict import VerificationResult

WHEN = Circumstances("c", datetime(2026, 1, 1, tzinfo=UTC), "in", "out", None, {"engine": "1"})
conditions = st.sampled_from(
    [
        {"metric_type": "numeric", "comparison": "gte", "threshold": 0.5},
        {"metric_type": "count", "comparison": "in_range", "threshold": {"min": 1, "max": 3}},
        {"metric_type": "contains", "comparison": "contains_all", "threshold": ["a", "b"]},
        {"metric_type": "numeric", "comparison": "gt", "threshold": 0.5},
        {"metric_type": "numeric", "comparison": "lt", "threshold": -0.0},
        {"metric_type": "latency", "comparison": "lte", "threshold": 1},
        {"metric_type": "numeric", "comparison": "neq", "threshold": 1},
        {"metric_type": "numeric", "comparison": "eq", "threshold": 0.5, "tolerance": 0.5},
        {"metric_type": "numeric", "comparison": "in_range", "threshold": {"min": None, "max": 0.5}},
        {"metric_type": "contains", "comparison": "contains_any", "threshold": "a"},
        {"metric_type": "percentage", "comparison": "gte", "threshold": 50, "scale": "percent"},
        {"metric_type": "boolean", "comparison": "neq", "threshold": True},
        {"metric_type": "percentage", "comparison": "eq", "threshold": 1},
        {"metric_type": "custom", "comparison": "eq", "threshold": "yes"},
        {"assert": "resource-exists"},
    ]
)
NEAR = (0.0, 0.5, 1.0, 3.0, 100.0, float(2**53))
"""Thresholds and ends of domains, of which the neighbours decide too."""
odd = [
    -0.0,
    7,
    50,
    math.nan,
    math.inf,
    -math.inf,
    2**53,
    2**53 + 1,
    -(2**60),
    10**400,
    True,
    False,
    "yes",
    "a b",
    ["a"],
]
values = st.sampled_from(
    [*odd, []]
    + [int(number) for number in NEAR]
    + [one for number in NEAR for one in (number, math.nextafter(number, 0), math.nextafter(number, math.inf))]
)
details = st.sampled_from([None, {}, {"found": ["a"]}])
found = st.one_of(
    values,
    st.builds(Measured, values, details, st.sampled_from([None, Provenance.CLAIMED])),
    st.builds(Missing, st.just("it is gone")),
    st.builds(Checked, st.sampled_from(["0", "1", "2/3", "2"])),
    st.just(Skipped("not asked")),
)
extras = st.fixed_dictionaries(
    {"weight": st.sampled_from([1, 2.5, 0])},
    optional={"bonus": st.just(2), "penalty": st.just(0.5), "required": st.booleans(), "axis": st.just("x")},
)


def judge_each(plan: Plan, evidence: list[Evidence]) -> VerificationResult:
    """The oracle: every criterion by itself, nothing remembered, every field by its name."""
    results = [_judge(rule, one) for rule, one in zip(plan.rules, evidence, strict=True)]
    outcome = _summarize(plan, results)
    slots = zip(plan.slots, results, strict=True)
    return msgspec.structs.replace(
        outcome,
        **msgspec.structs.asdict(WHEN),
        criterion_results=results,
        metrics={slot: one.value for slot, one in slots if one.value is not None},
        reasons=_own_reasons(outcome.reasons, results),
    )


@given(
    st.lists(st.tuples(conditions, extras, found, found), min_size=1, max_size=6),
    st.sampled_from(["all", "any", "weighted"]),
)
def test_quick_judging_equals_judging_each_by_itself(
    cases: list[tuple[dict[str, Any], dict[str, Any], Evidence, Evidence]], aggregation: str
) -> None:
    criteria = [
        {**condition, **extra} | ({} if "assert" in condition else {"metric": f"m{number // 2}"})
        for number, (condition, extra, _, _) in enumerate(cases)
    ]
    # Two criteria share a metric, and so its value in the result. Some weight there must be.
    criteria[0]["weight"] = criteria[0]["weight"] or 1
    whole = {"criteria": criteria, "aggregation": aggregation}
    # A metric of our own counts in fractions; of another's numbers, the criterion gives the scale.
    own = Trait(MetricType.ACCURACY, Provenance.COMPUTED)
    plan = compile_plan(SuccessCriteria.model_validate(whole), lambda name: own if name == "m0" else Trait())
    for evidence in ([first for _, _, first, _ in cases], [second for _, _, _, second in cases]):
        quick = conclude(plan, evidence, WHEN)
        assert msgspec.json.encode(quick) == msgspec.json.encode(judge_each(plan, evidence))
        for judged, rule in zip(quick.criterion_results, plan.rules, strict=True):
            # A reader who changes the threshold of one result changes no other.
            assert not rule.shared or judged.threshold is not rule.threshold
