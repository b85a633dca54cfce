"""Task runs brought to one result: exact means and bands, two worlds, and how far a number may be believed."""

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit import VerificationEngine
from meruit.benchmarks.score import (
    TaskRunOutcome,
    _quantile,
    _wilson,
    benchmark_score,
    highest_score,
    pass_at_k,
    pass_hat_k,
    score_interval,
)
from meruit.judge.plan import Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Missing
from meruit.model.task_run import RunStatus
from meruit.model.verdict import Bounds, Verdict, VerificationResult

TASKS = ("a", "b", "c", "d")
SCORES = st.fractions(0, 1, max_denominator=40)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def done(
    task: str, low: Fraction | str | int, high: Fraction | str | int | None = None, name: str = "r"
) -> TaskRunOutcome:
    """A run that was completed, as its task's own bands judge it."""
    exact, most = Fraction(low), Fraction(low if high is None else high)
    both = {band(exact), band(most)}
    verdict = both.pop() if len(both) == 1 else Verdict.INCONCLUSIVE
    return TaskRunOutcome(name, task, RunStatus.COMPLETED, verdict, exact, most, 1.0 if high is None else 0.5)


def band(score: Fraction) -> Verdict:
    """The specification, word for word."""
    return Verdict.PASS if score >= Fraction("0.9") else Verdict.PARTIAL if score > 0 else Verdict.FAIL


@st.composite
def runs(draw: st.DrawFn) -> list[TaskRunOutcome]:
    """Runs of four tasks, however they ended."""
    found = []
    for number in range(draw(st.integers(0, 12))):
        task, name = draw(st.sampled_from(TASKS)), f"run-{number:02}"
        match draw(st.sampled_from(("completed", "completed", "open", "timed_out", "cancelled", "error"))):
            case "completed":
                found.append(done(task, draw(SCORES), name=name))
            case "open":
                low, high = sorted((draw(SCORES), draw(SCORES)))
                found.append(done(task, low, high, name))
            case "error":
                found.append(
                    TaskRunOutcome(name, task, RunStatus.COMPLETED, Verdict.ERROR, Fraction(0), Fraction(1), 0.0)
                )
            case status:
                found.append(TaskRunOutcome(name, task, RunStatus(status), begun=draw(st.booleans())))
    return found


def counting(several: Sequence[TaskRunOutcome]) -> list[TaskRunOutcome]:
    return [run for run in several if run.status is not RunStatus.CANCELLED]


# The specified mean and its bands


@given(runs())
def test_the_score_is_the_exact_mean(
    several: list[TaskRunOutcome],
) -> None:
    score, counted = benchmark_score(several, TASKS), counting(several)
    low = sum((run.low for run in counted), Fraction(0)) / max(1, len(counted))
    high = sum((run.high for run in counted), Fraction(0)) / max(1, len(counted))
    assert (Fraction(score.exact), score.score, score.bounds) == (low, float(low), Bounds(float(low), float(high)))
    begun = [run.task for run in several if run.status is RunStatus.CANCELLED and run.begun]
    given_up = len(begun) + len({*TASKS} - {*begun} - {run.task for run in counted})
    number = len(counted) + given_up
    worst, best = low * len(counted) / number, (high * len(counted) + given_up) / number
    same = band(worst) if band(worst) is band(best) else Verdict.INCONCLUSIVE
    assert score.verdict is (
        Verdict.FAIL if all(run.verdict is Verdict.FAIL for run in counted) and not given_up else same
    )
    assert score.runs == len(counted)


@given(runs(), st.sampled_from(TASKS))
def test_a_pass_holds_even_if_a_cancelled_task_had_failed(several: list[TaskRunOutcome], task: str) -> None:
    rest = [run for run in several if run.task != task]
    if benchmark_score([*rest, TaskRunOutcome("x", task, RunStatus.CANCELLED)], TASKS).verdict is Verdict.PASS:
        assert benchmark_score([*rest, done(task, 0)], TASKS).verdict is Verdict.PASS


@given(runs(), st.randoms())
def test_the_order_of_runs_never_matters(several: list[TaskRunOutcome], chance: random.Random) -> None:
    shuffled = list(several)
    chance.shuffle(shuffled)
    assert benchmark_score(shuffled, TASKS) == benchmark_score(several, TASKS)


@given(runs())
def test_cancelled_runs_are_listed_and_timed_out_ones_count_0(
    several: list[TaskRunOutcome],
) -> None:
    score = benchmark_score(several, TASKS)
    without = benchmark_score(counting(several), TASKS)
    assert score.cancelled == [run.id for run in several if run.status is RunStatus.CANCELLED]
    assert (score.exact, score.tasks, score.pass_rate) == (without.exact, without.tasks, without.pass_rate)
    late = [run for run in several if run.status is RunStatus.TIMED_OUT]
    assert score.timed_out == len(late)
    as_failed = [done(run.task, 0, name=run.id) if run in late else run for run in several]
    assert benchmark_score(as_failed, TASKS).bounds == score.bounds


@given(runs())
def test_every_task_with_a_counted_run_is_reported(several: list[TaskRunOutcome]) -> None:
    score, counted = benchmark_score(several, TASKS), counting(several)
    assert [one.task for one in score.tasks] == [task for task in TASKS if any(run.task == task for run in counted)]
    for one in score.tasks:
        mine = [run for run in counted if run.task == one.task]
        assert (one.runs, one.passes) == (len(mine), sum(run.verdict is Verdict.PASS for run in mine))
        assert one.score == float(sum((run.low for run in mine), Fraction(0)) / len(mine))
        assert sum(one.verdicts.values()) == one.runs
    if score.tasks:
        worst = next(one for one in score.tasks if one.task == score.worst_task)
        assert all(worst.score <= one.score for one in score.tasks)
    else:
        assert (score.worst_task, score.pass_rate_interval, score.verdict) == (None, None, Verdict.INCONCLUSIVE)


@given(runs())
def test_every_statistic_is_within_its_bounds(several: list[TaskRunOutcome]) -> None:
    score = benchmark_score(several, TASKS)
    assert 0 <= score.bounds.low <= score.bounds.high <= 1
    assert 0 <= score.coverage <= 1
    assert score.inconclusive == sum(run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR) for run in counting(several))
    for interval, number in ((score.pass_rate_interval, score.pass_rate), (score.score_interval, score.score)):
        if interval is not None:
            assert 0 <= interval.low <= number <= interval.high <= 1
    chances = [*score.pass_at_k.values(), *score.pass_hat_k.values()]
    assert all(0 <= chance <= 1 for chance in chances)


@pytest.mark.parametrize("scores", [("0.9",), ("1", "0.9", "0.8"), ("1",) * 9 + ("0",), ("0.95", "0.85")])
def test_exactly_nine_tenths_pass(scores: tuple[str, ...]) -> None:
    score = benchmark_score([done("a", one) for one in scores], ["a"])
    assert (score.verdict, score.exact) == (Verdict.PASS, "9/10")


def test_a_hair_less_is_partial_and_more_than_nothing_is_too() -> None:
    assert benchmark_score([done("a", Fraction(9, 10) - Fraction(1, 10**30))], ["a"]).verdict is Verdict.PARTIAL
    assert benchmark_score([done("a", Fraction(1, 10**30))], ["a"]).verdict is Verdict.PARTIAL
    assert benchmark_score([done("a", 0)], ["a"]).verdict is Verdict.FAIL


def test_no_counted_run_is_inconclusive_and_no_task_fails() -> None:
    for tasks, verdict in ((["a"], Verdict.INCONCLUSIVE), ([], Verdict.FAIL)):
        score = benchmark_score([TaskRunOutcome("x", "a", RunStatus.CANCELLED, begun=False)], tasks)
        assert (score.verdict, score.score, score.runs, score.pass_at_k) == (verdict, 0.0, 0, {})
        assert len(score.reasons) == 1


def test_a_cancelled_task_matters_only_if_it_could_decide() -> None:
    given_up = TaskRunOutcome("x", "b", RunStatus.CANCELLED, begun=False)
    assert benchmark_score([done("a", 1), given_up], ["a", "b"]).verdict is Verdict.INCONCLUSIVE
    many = [done(f"t{number}", 1) for number in range(9)]
    assert benchmark_score([*many, given_up], [*(run.task for run in many), "b"]).verdict is Verdict.PASS
    again = [done("a", 1), done("b", 1)]
    assert benchmark_score([*again, given_up], ["a", "b"]).verdict is Verdict.PASS
    assert (
        benchmark_score([*again, msgspec.structs.replace(given_up, begun=True)], ["a", "b"]).verdict
        is Verdict.INCONCLUSIVE
    )


def test_a_failed_required_criterion_caps_its_task_run_only() -> None:
    breach = TaskRunOutcome("x", "a", RunStatus.COMPLETED, Verdict.FAIL, Fraction(19, 20), Fraction(19, 20))
    assert benchmark_score([breach], ["a"]).verdict is Verdict.FAIL
    mixed = benchmark_score([breach, done("b", 1)], ["a", "b"])
    assert (mixed.verdict, mixed.exact, mixed.pass_rate, mixed.worst_task) == (Verdict.PASS, "39/40", 0.5, "a")


def test_a_task_without_a_run_that_counts_is_named() -> None:
    given_up = TaskRunOutcome("x", "b", RunStatus.CANCELLED)
    assert benchmark_score([done("a", 1), given_up], ["a", "b"]).reasons[0].split()[3] == "b"
    assert benchmark_score([done("a", 1), done("b", 1)], ["a", "b"]).reasons == []


def test_a_verdict_needs_bounds_that_agree() -> None:
    missing = done("a", "0.5", "0.8")
    assert benchmark_score([missing], ["a"]).verdict is Verdict.PARTIAL
    assert benchmark_score([done("a", "0.5", "0.9")], ["a"]).verdict is Verdict.INCONCLUSIVE
    assert benchmark_score([done("a", 0, 1)], ["a"]).verdict is Verdict.INCONCLUSIVE
    assert benchmark_score([missing, *[done("b", 1)] * 9], ["a", "b"]).verdict is Verdict.PASS


def test_of_equal_scores_fewer_passes_are_worse() -> None:
    often = [done("a", "0.9"), done("a", "0.9"), done("a", "0.9")]
    once = [done("b", 1), done("b", "0.8")]
    assert benchmark_score([*often, *once], ["a", "b"]).worst_task == "b"


# Repeats


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_and_pass_hat_k_equal_full_enumeration(drawn: tuple[int, int, int]) -> None:
    tries, passes, k = drawn
    outcomes = [number < passes for number in range(tries)]
    chosen = list(combinations(outcomes, k))
    assert pass_at_k(tries, passes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert pass_hat_k(tries, passes, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_repeats_are_brought_together_task_by_task() -> None:
    several = [done("a", 1), done("a", 0), done("b", 1), done("b", 1), done("b", 1)]
    score = benchmark_score(several, ["a", "b"])
    assert score.pass_at_k == pytest.approx({"1": 0.75, "2": 1.0, "3": 1.0})
    assert score.pass_hat_k == pytest.approx({"1": 0.75, "2": 0.5, "3": 1.0})
    assert [(one.task, one.runs, one.passes) for one in score.tasks] == [("a", 2, 1), ("b", 3, 3)]


# How far it may be believed


@pytest.mark.parametrize(
    ("passes", "number", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_the_interval_of_the_pass_rate_is_wilsons(passes: int, number: int, low: float, high: float) -> None:
    found = _wilson(passes / number, number)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_solves_its_equation(drawn: tuple[int, int]) -> None:
    passes, number = drawn
    rate, found = passes / number, _wilson(passes / number, number)
    assert found is not None
    for end in found.low, found.high:
        if 0 < end < 1:
            assert abs(rate - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / number), rel=1e-6)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (10, 2.2281), (11, 2.2010), (12, 2.1788), (20, 2.0860), (30, 2.0423), (120, 1.9799)],
)
def test_the_quantiles_are_students(freedom: int, quantile: float) -> None:
    assert _quantile(freedom) == pytest.approx(quantile, abs=3e-4)


def test_quantiles_fall_to_those_of_the_normal_distribution() -> None:
    found = [_quantile(freedom) for freedom in range(1, 2_000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(1.96, abs=2e-3)


def test_with_one_run_per_task_the_interval_is_students() -> None:
    # Mean 0.5, standard deviation 0.4082, standard error 0.2357, t(2) 4.3027; and a longer one by hand.
    found = score_interval([[Fraction(2, 5)], [Fraction(1, 2)], [Fraction(3, 5)]])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.25159, 0.74841), abs=1e-4)


def test_repeats_of_one_task_do_not_make_a_result_surer() -> None:
    once = score_interval([[Fraction(1)], [Fraction(0)], [Fraction(1)]])
    often = score_interval([[Fraction(1)] * 50, [Fraction(0)] * 50, [Fraction(1)] * 50])
    assert once is not None
    assert often is not None
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


@pytest.mark.parametrize(("score", "low", "high"), [("1", 0.8389, 1.0), ("0", 0.0, 0.1611), ("0.5", 0.2993, 0.7007)])
def test_twenty_equal_tasks_still_leave_room_for_doubt(score: str, low: float, high: float) -> None:
    found = score_interval([[Fraction(score)] for _ in range(20)])
    assert found is not None
    # Wilson's interval of 20 of 20, 0 of 20 and 10 of 20.
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_tasks_that_all_pass_are_as_sure_as_their_number() -> None:
    nearly = score_interval([[Fraction(1)]] * 19 + [[Fraction(19, 20)]])
    spread = score_interval([[Fraction(1)]] * 19 + [[Fraction(1, 2)]])
    assert nearly is not None
    assert spread is not None
    assert nearly.low < 0.85
    # One that fails shows how far tasks are apart.
    assert spread.low == pytest.approx(0.975 - 2.093 * 0.025, abs=1e-3)


def test_one_task_alone_says_nothing_of_others() -> None:
    assert benchmark_score([done("a", 1), done("a", 0)], ["a"]).score_interval is None


# The upper bound, exactly

BROKEN = Missing("down", Cause.CHECK_ERROR, Fault.SYSTEM)


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 0.1, 0.3, 1, 2.5)), st.sampled_from(("met", "half", "not", "open", "out"))),
        min_size=1,
        max_size=6,
    )
)
def test_the_upper_bound_assumes_that_missing_criteria_pass(drawn: list[tuple[float, str]]) -> None:
    if not any(weight for weight, _ in drawn):
        drawn = [*drawn, (1, "met")]
    criteria = [
        {"assert": "x", "weight": weight, "missing": "exclude" if how == "out" else "bounds"} for weight, how in drawn
    ]
    plan = compile_plan(SuccessCriteria.model_validate({"criteria": criteria}), lambda _name: Trait())
    found: dict[str, Evidence] = {
        "met": Checked("1"),
        "half": Checked("1/3"),
        "not": Checked("0"),
        "open": BROKEN,
        "out": BROKEN,
    }
    best: dict[str, Evidence] = found | {"open": Checked("1")}

    def judged(evidence: Mapping[str, Evidence]) -> VerificationResult:
        return conclude(plan, [evidence[how] for _, how in drawn], Circumstances("c", NOW))

    counts = any(weight for weight, how in drawn if how != "out")
    # Where nothing applied, nobody knows.
    assert highest_score(judged(found)) == (Fraction(judged(best).exact) if counts else 1)


def test_an_unjudged_run_has_the_widest_bounds() -> None:
    refused = VerificationEngine().verify_sync("c", {}, {}, {"criteria": 5}, {})
    assert (refused.verdict, highest_score(refused)) == (Verdict.ERROR, Fraction(1))
