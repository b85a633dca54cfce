"""Corrected rates: against scipy, and by simulation with a known truth."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speed.label_coverage import draw_world, main, repeat_equal, repeat_few_labels, repeat_rate
from tests.sampling import IN_FULL

from meruit.errors import MeruitError
from meruit.review.corrected import (
    CROSS_FIT_BELOW,
    FEWEST_LABELS,
    RatedCase,
    Target,
    correct_difference,
    correct_rate,
)
from meruit.review.plan import plan_from_error, plan_from_pilot
from meruit.review.rogan_gladen import correct_by_error_rates

WORLDS = 1_000 if IN_FULL else 120
SLACK = 0.02 if IN_FULL else 0.05
"""Three standard errors of a share of 95 % among so many worlds."""


@pytest.mark.parametrize(
    ("rate", "errors", "labels"),
    [(0.5, (0.05, 0.30), 60), (0.9, (0.15, 0.15), 120), (0.2, (0.05, 0.30), 120)],
)
def test_corrected_intervals_hold_where_raw_ones_do_not(rate: float, errors: tuple[float, float], labels: int) -> None:
    found = repeat_rate(rate, errors, labels, worlds=WORLDS, cases=600)
    assert abs(found.corrected - 0.95) < 0.02 + SLACK
    assert found.raw < 0.3


def test_intervals_for_like_cases_allow_for_groups() -> None:
    found = repeat_rate(0.7, (0.15, 0.15), 150, worlds=WORLDS, cases=600, group=10, target=Target.LIKE_THESE)
    assert abs(found.corrected - 0.95) < 0.02 + SLACK


def test_few_labels_never_make_an_interval_too_narrow() -> None:
    found = repeat_rate(0.95, (0.05, 0.05), 20, worlds=WORLDS, cases=400)
    assert found.corrected > 0.93


def test_equal_agents_are_rarely_called_different() -> None:
    raw, corrected = repeat_equal(0.7, (0.15, 0.15), (0.05, 0.30), 60, worlds=WORLDS, cases=300)
    assert raw > 0.5
    assert corrected < 0.07 + SLACK


def test_unequal_probabilities_are_weighed_out() -> None:
    """The judge errs in one stratum only, and that one is labelled three times as often."""
    chance = Random(5)
    held = 0
    for _ in range(WORLDS):
        cases, truths = [], []
        for place in range(600):
            hard = place % 4 == 0
            truth = chance.random() < 0.7
            truths.append(truth)
            judged = truth if not hard else chance.random() < 0.5
            probability = 0.45 if hard else 0.15
            drawn = chance.random() < probability
            cases.append(
                RatedCase(float(judged), float(truth) if drawn else None, probability, "hard" if hard else "easy")
            )
        interval = correct_rate(cases).interval
        assert interval is not None
        held += interval.low <= sum(truths) / 600 <= interval.high
    assert abs(held / WORLDS - 0.95) < 0.02 + SLACK


def test_the_weight_is_the_slope_of_a_regression() -> None:
    from scipy import stats  # type: ignore[import-untyped]  # scipy has no types

    world = draw_world(Random(2), 5_000, 1_000, 0.6, (0.1, 0.2))
    found = correct_rate(world.cases, Target.LIKE_THESE)
    labelled = [one for one in world.cases if one.truth is not None]
    line = stats.linregress([one.judged for one in labelled], [one.truth for one in labelled])
    # The two added labels move it in the third decimal.
    assert found.weight == pytest.approx(line.slope, abs=0.01)
    raw = sum(one.judged for one in world.cases) / 5_000
    assert found.raw == pytest.approx(raw)
    assert found.estimate == pytest.approx(line.intercept + line.slope * raw, abs=0.005)


def test_a_useless_judge_is_not_relied_on() -> None:
    chance = Random(1)
    cases = [
        RatedCase(float(chance.random() < 0.5), float(chance.random() < 0.8) if place < 400 else None, 0.2)
        for place in range(2_000)
    ]
    found = correct_rate(cases)
    labels = [one.truth or 0.0 for one in cases if one.truth is not None]
    assert found.weight is not None
    assert found.weight < 0.1
    assert found.estimate == pytest.approx(sum(labels) / 400, abs=0.01)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=FEWEST_LABELS, max_size=130))
def test_labels_of_all_cases_leave_nothing_to_chance(rows: list[tuple[bool, bool]]) -> None:
    found = correct_rate([RatedCase(float(judged), float(truth)) for judged, truth in rows])
    truth = sum(truth for _, truth in rows) / len(rows)
    if len(rows) >= CROSS_FIT_BELOW:
        assert found.estimate == pytest.approx(truth)
    assert found.interval is not None
    assert found.interval.high - found.interval.low == pytest.approx(0, abs=1e-9)
    wider = correct_rate([RatedCase(float(judged), float(truth)) for judged, truth in rows], Target.LIKE_THESE)
    assert wider.interval is not None
    assert 0 <= wider.interval.low < wider.interval.high <= 1


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from([-1.0, 0.0, 1.0])), min_size=10))
def test_an_estimate_lies_in_its_interval(rows: list[tuple[float, float]]) -> None:
    cases = [RatedCase(judged, truth, 0.5) for judged, truth in rows]
    for target in Target:
        found = correct_difference(cases, target)
        assert found.interval is not None
        assert found.estimate is not None
        assert -1 <= found.interval.low <= found.estimate <= found.interval.high <= 1


def test_too_little_gives_a_reason_instead_of_an_interval() -> None:
    assert correct_rate([]).why_not
    unlabelled = correct_rate([RatedCase(1.0), RatedCase(0.0)])
    assert (unlabelled.raw, unlabelled.estimate) == (0.5, None)
    few = correct_rate([RatedCase(1.0, 1.0, 0.5)] * (FEWEST_LABELS - 1))
    assert few.estimate == 1
    assert few.interval is None
    assert few.why_not


def test_a_known_error_corrects_another_set() -> None:
    found = correct_by_error_rates(
        met=560, cases=1_000, true_positive=90, false_negative=10, true_negative=80, false_positive=20
    )
    assert found.estimate == pytest.approx((0.56 + 0.8 - 1) / 0.7)
    assert found.interval is not None
    assert found.interval.low < 0.5 < found.interval.high
    # With a perfect judge that is known for certain, it is the interval of Agresti and Coull.
    sure = correct_by_error_rates(
        met=30, cases=100, true_positive=10**7, false_negative=0, true_negative=10**7, false_positive=0
    )
    z = 1.959963984540054
    middle, number = (30 + z * z / 2) / (100 + z * z), 100 + z * z
    assert sure.interval is not None
    assert sure.interval.low == pytest.approx(middle - z * (middle * (1 - middle) / number) ** 0.5, abs=1e-5)


@pytest.mark.parametrize(
    "counts",
    [
        {"true_positive": 0, "false_negative": 0, "true_negative": 50, "false_positive": 5},
        {"true_positive": 50, "false_negative": 5, "true_negative": 0, "false_positive": 0},
        {"true_positive": 15, "false_negative": 10, "true_negative": 15, "false_positive": 10},
        {"true_positive": 25, "false_negative": 0, "true_negative": 24, "false_positive": 0},
    ],
)
def test_a_judge_that_is_not_known_well_corrects_nothing(counts: dict[str, int]) -> None:
    found = correct_by_error_rates(met=50, cases=100, **counts)
    assert (found.estimate, found.interval) == (None, None)
    assert found.why_not


def test_without_judged_cases_there_is_nothing_to_correct() -> None:
    found = correct_by_error_rates(met=0, cases=0, true_positive=9, false_negative=1, true_negative=9, false_positive=1)
    assert found.estimate is None


def test_a_plan_reaches_the_width_that_it_promises() -> None:
    plan = plan_from_error(tpr=0.9, tnr=0.8, rate=0.7, half_width=0.05, cases=2_000)
    found = repeat_rate(0.7, (0.1, 0.2), plan.labels, worlds=20, cases=2_000)
    assert found.width / 2 < 0.05 * 1.1
    assert plan.labels < plan.without_judge
    errors = [0.0] * 261 + [1.0] * 21 + [-1.0] * 18
    pilot = plan_from_pilot(errors, half_width=0.05, cases=2_000)
    assert pilot.basis == "pilot"
    assert pilot.labels == pytest.approx(plan.labels, rel=0.1)
    assert plan_from_error(tpr=1, tnr=1, rate=0.5, half_width=0.05, cases=5).labels == 5


@pytest.mark.parametrize("half_width", [0.0, 1.0, float("nan")])
def test_a_plan_refuses_a_width_that_is_not_a_share(half_width: float) -> None:
    with pytest.raises(MeruitError):
        plan_from_error(tpr=0.9, tnr=0.9, rate=0.5, half_width=half_width, cases=10)


def test_a_plan_refuses_what_it_cannot_use() -> None:
    with pytest.raises(MeruitError):
        plan_from_error(tpr=1.2, tnr=0.9, rate=0.5, half_width=0.1, cases=10)
    with pytest.raises(MeruitError):
        plan_from_error(tpr=0.9, tnr=0.9, rate=0.5, half_width=0.1, cases=0)
    with pytest.raises(MeruitError):
        plan_from_pilot([0.0] * 3, half_width=0.1, cases=10)


@pytest.mark.skipif(not IN_FULL, reason="the whole table takes minutes")
def test_the_table_of_the_docs_can_be_made() -> None:
    lines: list[str] = []
    main(["5"], lines.append)
    assert len(lines) > 50


def test_prediction_powered_inference_agrees() -> None:
    """Figures of ppi_py 0.2.3, `ppi_mean_pointestimate` and `ppi_mean_ci`, with the same lambda and data."""
    counts = {(1.0, 1.0): 520, (0.0, 1.0): 80, (1.0, 0.0): 60, (0.0, 0.0): 340}
    labelled = [RatedCase(*pair, 0.1) for pair, times in counts.items() for _ in range(times)]
    cases = [*labelled, *[RatedCase(1.0)] * 5_400, *[RatedCase(0.0)] * 3_600]
    found = correct_rate(cases, Target.LIKE_THESE)
    assert found.weight == pytest.approx(0.7046577896247358)
    assert found.estimate == pytest.approx(0.61268384, abs=1e-8)
    assert found.interval is not None
    # Two labels are added, which a thousand hardly feel.
    assert (found.interval.low, found.interval.high) == pytest.approx((0.59029455, 0.63507313), abs=2e-4)


@pytest.mark.parametrize("labels", [50, 75, 99])
def test_error_rates_of_few_labels_hold(labels: int) -> None:
    holds, refused = repeat_few_labels(0.5, (0.15, 0.15), labels, worlds=300)
    assert holds > 0.92
    assert refused < 0.05
    lines: list[str] = []
    main(["few", "2"], lines.append)
    assert len(lines) == 14
