"""What a report claims, and what it refuses to."""

import random
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.worlds import NOON, recorded, worlds

from meruit.errors import ReportError
from meruit.model.metering import UsageRecord
from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import Tokens, UsageStatus
from meruit.reports.agent_summary import AgentSummary, Measure
from meruit.reports.compare import Comparison, Point, RunPopulation, pareto_front
from meruit.reports.page import render
from meruit.reports.population import CostKind
from meruit.reports.report import MOST_AGENTS, Report, build_report

WARNING, VERIFIED = UsageStatus.WARNING, UsageStatus.VERIFIED


def of(report: Report, agent: str) -> AgentSummary:
    return next(one for one in report.agents if one.agent == agent)


def pair(report: Report, measure: Measure, among: RunPopulation = RunPopulation.VERIFIED) -> Comparison:
    return next(one for one in report.comparisons if (one.measure, one.among) == (measure, among))


def grid(tasks: int, **agents: Sequence[str | None]) -> list[UsageRecord]:
    """For each agent one run of each task, at these costs in turn."""
    return [
        recorded(agent, f"t{task:02}", cost=costs[task % len(costs)])
        for agent, costs in agents.items()
        for task in range(tasks)
    ]


# Imported counts.


def is_counted(record: UsageRecord) -> bool:
    return record.verdict.status is VERIFIED and not record.verdict.reported_by


def imported(record: UsageRecord) -> UsageRecord:
    return msgspec.structs.replace(record, verdict=msgspec.structs.replace(record.verdict, reported_by="file"))


def test_verified_figures_are_the_providers_alone() -> None:
    records = [recorded("a", "t1", cost="1"), imported(recorded("a", "t2", cost="5"))]
    report = build_report(records)
    assert (report.runs, report.verified, report.imported, report.include_imported) == (2, 1, 1, False)
    assert of(report, "a").verified == 1
    assert [(one.run, one.status, one.imported) for one in report.excluded] == [("a/t2/1", VERIFIED, True)]
    assert [(one.by_code, one.imported) for one in report.exclusions] == [({"imported": 1}, 1)]
    assert [(one.verified, one.quoted.total) for one in report.ledger] == [(True, Decimal(1)), (False, Decimal(5))]
    assert [(one.runs, one.without) for one in report.waterfalls] == [(1, 1)]


def test_imported_figures_are_counted_when_asked_for_and_the_data_say_so() -> None:
    records = [recorded("a", "t1", cost="1"), imported(recorded("a", "t2", cost="5"))]
    report = build_report(records, include_imported=True)
    assert (report.verified, report.imported, report.include_imported) == (2, 1, True)
    assert report.excluded == ()
    assert sum("--include-imported" in one for one in report.notes) == 1
    assert report.digest == build_report(records).digest


def test_a_run_that_is_not_verified_keeps_its_rule_when_imported() -> None:
    report = build_report([imported(recorded("a", status=WARNING))])
    assert [(one.code, one.imported) for one in report.excluded] == [("incomplete", True)]
    assert report.exclusions[0].by_code == {"incomplete": 1}


def test_unknown_costs_are_counted_by_reason() -> None:
    report = build_report([recorded("a", "t1", cost=None), recorded("a", "t2", cost="1")])
    assert any("no_model 1" in one for one in report.notes)


# Properties.


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_runs_changes_no_byte(records: list[UsageRecord], chance: random.Random) -> None:
    other = [*records]
    chance.shuffle(other)
    assert build_report(records).to_json() == build_report([*other, *other[:3]]).to_json()


@given(worlds())
def test_exclusions_add_up_and_the_data_can_be_read_back(records: list[UsageRecord]) -> None:
    report = build_report(records)
    assert Report.from_json(report.to_json()) == report
    for one in report.exclusions:
        assert one.excluded == sum(one.by_status.values()) == sum(one.by_code.values())
        assert one.runs == one.verified + one.excluded == of(report, one.agent).runs
    assert sum(one.excluded for one in report.exclusions) == len(report.excluded) == report.runs - report.verified
    assert {one.run for one in report.excluded}.isdisjoint(one.run.id for one in records if is_counted(one))


@given(worlds(most_agents=2))
def test_a_against_b_is_b_against_a_in_the_mirror(records: list[UsageRecord]) -> None:
    agents = sorted({one.run.framework for one in records})
    if len(agents) < 2:
        return
    ours, theirs = build_report(records, agents=agents), build_report(records, agents=agents[::-1])
    for one, other in zip(ours.comparisons, theirs.comparisons, strict=True):
        assert (one.a, one.b, one.won, one.lost, one.tied) == (other.b, other.a, other.lost, other.won, other.tied)
        assert (one.p, one.p_holm, one.tasks, one.left_out) == (other.p, other.p_holm, other.tasks, other.left_out)
        assert one.delta == (None if other.delta is None else pytest.approx(-other.delta))
        if one.estimate is not None and other.estimate is not None:
            ratio = one.measure in (Measure.COST, Measure.TOKENS)
            assert one.estimate == pytest.approx(1 / other.estimate if ratio else -other.estimate, rel=1e-6, abs=1e-9)


@given(worlds())
def test_costs_are_compared_on_tasks_verified_for_all_agents(records: list[UsageRecord]) -> None:
    report = build_report(records)
    verified = {(one.run.framework, one.run.task) for one in records if is_counted(one) and one.run.task}
    agents = {agent for agent, _ in verified}
    common = {task for _, task in verified if all((agent, task) in verified for agent in agents)}
    for one in report.comparisons:
        if one.among is RunPopulation.VERIFIED:
            assert one.tasks <= len(common)
    assert all(line.task in common for line in report.task_lines if line.compared)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_the_front_is_not_dominated_and_the_rest_is(places: list[tuple[int, int]]) -> None:
    points = [
        Point(str(number), float(cost), None, value / 6, None, False) for number, (cost, value) in enumerate(places)
    ]
    for one in pareto_front(points):
        better = [
            other
            for other in points
            if other.cost <= one.cost
            and other.value >= one.value
            and (other.cost, other.value) != (one.cost, one.value)
        ]
        assert one.on_front is not bool(better)


# What a person would argue about.


def test_verified_runs_alone_forget_the_failures() -> None:
    """An agent that fails a step in 20 % of its runs gets a warning there: verified-only reads 100 %, truth is 80 %."""
    records = [
        recorded("a", f"t{task}", number, success=number != 5, status=WARNING if number == 5 else VERIFIED)
        for task in range(10)
        for number in range(1, 6)
    ]
    found = of(build_report(records), "a")
    assert found.success.rate == 0.8
    assert found.success_verified.rate == 1.0
    assert found.success_verified.bounds is not None
    assert [*found.success_verified.bounds] == [0.8, 1.0]
    assert found.pass_hat_k["5"] == 0.0
    assert found.pass_at_k["2"] == 1.0


def test_cost_is_that_of_verified_runs() -> None:
    records = [recorded("a", "t", 1, cost="2"), recorded("a", "t", 2, cost="40", status=WARNING)]
    report = build_report(records)
    assert of(report, "a").spend.total == Decimal(2)
    verified, other = report.ledger
    assert (verified.verified, verified.quoted.total) == (True, Decimal(2))
    assert (other.verified, other.quoted.total) == (False, Decimal(40))


def test_failures_are_paid_for_too() -> None:
    records = [recorded("a", "t", number, success=number < 3, cost="1.50") for number in range(1, 5)]
    assert of(build_report(records), "a").spend.per_success == Decimal(3)


def test_an_unknown_cost_is_no_zero() -> None:
    records = [recorded("a", f"t{number}", cost=None if number == 3 else "1.00") for number in range(6)]
    spend = of(build_report(records), "a").spend
    assert spend.total == Decimal(5)
    assert spend.unknown == 1
    assert spend.per_success is None
    assert "1 of 6" in spend.why_not
    assert spend.typical.left_out == 1


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "1e999"])
def test_a_cost_that_is_no_amount_is_unknown(cost: str) -> None:
    assert of(build_report([recorded("a", cost=cost)]), "a").spend.total is None


def test_no_success_has_no_price() -> None:
    spend = of(build_report([recorded("a", success=False)]), "a").spend
    assert spend.per_success is None
    assert spend.why_not


def test_a_free_task_has_no_logarithm_and_is_counted() -> None:
    found = pair(build_report(grid(6, a=["0", "2"], b=["1"])), Measure.COST)
    assert (found.tasks, found.left_out) == (3, 3)
    assert found.estimate == pytest.approx(2)
    assert found.interval is None
    assert "3 of the 5 tasks" in found.why_not


def test_costs_are_compared_as_a_ratio_of_geometric_means() -> None:
    found = pair(build_report(grid(6, a=["2", "8"], b=["1", "1"])), Measure.COST)
    assert found.estimate == pytest.approx(4)
    assert found.value_a == pytest.approx(4)
    assert found.interval is not None
    assert found.interval.low < 4 < found.interval.high
    assert (found.won, found.lost, found.tied) == (0, 6, 0)
    assert found.totals is None


def test_thirty_tasks_have_a_ratio_of_totals() -> None:
    found = pair(build_report(grid(30, a=["2", "8", "5"], b=["1", "1.5"])), Measure.COST)
    assert found.totals is not None
    assert found.totals.ratio == pytest.approx(5 / 1.25)
    assert found.totals.interval.low < found.totals.ratio < found.totals.interval.high


def test_nothing_to_divide_by_is_no_ratio() -> None:
    found = pair(build_report(grid(30, a=["2"], b=["0"])), Measure.COST)
    assert found.totals is None
    assert found.estimate is None
    assert found.left_out == 30


def test_repeats_are_averaged_before_tasks_are() -> None:
    """One task ten times and four tasks once: each task counts once."""
    records = [recorded("a", "t0", number, success=False) for number in range(10)]
    records += [recorded("a", f"t{task}") for task in range(1, 5)]
    records += [recorded("b", f"t{task}") for task in range(5)]
    found = pair(build_report(records), Measure.SUCCESS, RunPopulation.FINISHED)
    assert found.estimate == pytest.approx(-0.2)
    assert (found.runs_a, found.runs_b) == (14, 5)


def test_the_pairs_of_a_measure_are_one_family() -> None:
    records = [
        recorded(agent, f"t{task}", score=min(1.0, level + task % 3 / 20))
        for agent, level in (("a", 0.2), ("b", 0.5), ("c", 0.51))
        for task in range(9)
    ]
    records = [
        msgspec.structs.replace(
            one, run=msgspec.structs.replace(one.run, score=min(1.0, (one.run.score or 0) + number % 4 / 50))
        )
        for number, one in enumerate(records)
    ]
    scores = [one for one in build_report(records).comparisons if one.measure is Measure.SCORE]
    assert len(scores) == 3
    assert min(one.p_holm or 1 for one in scores) == pytest.approx(3 * min(one.p or 1 for one in scores))


def test_an_agent_without_a_verified_run_is_noted_and_others_compared() -> None:
    records = grid(6, a=["1", "2"], b=["2", "3"])
    records += [recorded("c", f"t{task:02}", status=WARNING) for task in range(6)]
    report = build_report(records)
    assert any(note.startswith("c ") for note in report.notes)
    assert pair(report, Measure.COST).tasks == 6
    assert len([one for one in report.comparisons if one.among is RunPopulation.FINISHED]) == 3
    assert [one.agent for one in report.points] == ["a", "b"]


def test_unequal_exclusion_is_found() -> None:
    records = [recorded("a", f"t{task}") for task in range(20)]
    records += [recorded("b", f"t{task}", status=WARNING if task < 12 else VERIFIED) for task in range(20)]
    report = build_report(records)
    assert all((one.p_holm or 1) < 0.001 for one in report.exclusions)
    assert b"Exclusion is unequal" in render(report)
    assert build_report([recorded("a")]).exclusions[0].p is None


def test_an_unrecorded_result_counts_as_failure_within_bounds() -> None:
    records = [recorded("a", "t", 1), recorded("a", "t", 2, success=None), recorded("a", "t", 3, finished=False)]
    report = build_report(records)
    found = of(report, "a").success
    assert (found.rate, found.unknown) == (0.5, 1)
    assert found.bounds is not None
    assert [*found.bounds] == pytest.approx([1 / 3, 1])
    assert any("recorded success: 1." in note for note in report.notes)


def test_nothing_recorded_is_no_rate() -> None:
    report = build_report([recorded("a", f"t{task}", success=None) for task in range(6)])
    assert of(report, "a").success.rate is None
    assert of(report, "a").pass_at_k == {}
    assert report.measure is None
    assert not [one for one in report.comparisons if one.measure is Measure.SUCCESS]
    assert b"not recorded" in render(report)


def test_a_run_without_a_task_counts_for_its_agent_and_in_no_pair() -> None:
    records = [recorded(agent, "", number) for agent in "ab" for number in range(8)]
    report = build_report(records)
    assert of(report, "a").success.interval is not None
    assert report.comparisons == ()
    assert any("without a task: 16." in note for note in report.notes)


def test_costs_in_two_currencies_are_not_added() -> None:
    records = [recorded("a", "t", 1), recorded("a", "t", 2), recorded("a", "t", 3, currency="EUR")]
    report = build_report(records)
    assert (report.currency, of(report, "a").spend.total, of(report, "a").spend.unknown) == ("USD", Decimal(2), 1)
    assert any("another currency" in note for note in report.notes)


def test_one_kind_of_cost_serves_all() -> None:
    assert of(build_report([recorded("a")], cost=CostKind.BILLED), "a").spend.total is None


def test_a_weaker_policy_is_noted() -> None:
    report = build_report([recorded("a", interval_min=5)])
    assert [*report.intervals_min] == [5]
    assert any("5 minutes" in note for note in report.notes)


def test_score_is_compared_where_everybody_has_one() -> None:
    records = [recorded(agent, f"t{task}", score=task / 10) for agent in "ab" for task in range(6)]
    found = [build_report(several).measure for several in (records, [*records, recorded("c", score=None)])]
    assert found == [Measure.SCORE, Measure.SUCCESS]


def test_places_are_intervals() -> None:
    records = [
        recorded(agent, f"t{task}", success=agent == "a" or task == 3, cost="1" if agent == "b" else "2")
        for agent in "ab"
        for task in range(8)
    ]
    report = build_report(records)
    assert [(one.agent, one.place, one.place_by_cost) for one in report.agents] == [
        ("a", ConfidenceInterval(1, 1), ConfidenceInterval(2, 2)),
        ("b", ConfidenceInterval(2, 2), ConfidenceInterval(1, 1)),
    ]


def test_a_repeated_run_counts_once_and_a_different_one_is_refused() -> None:
    assert build_report([recorded("a"), recorded("a")]).runs == 1
    with pytest.raises(ReportError, match="'a/t/1'"):
        build_report([recorded("a"), recorded("a", success=False)])


def test_a_report_needs_recorded_agents_and_not_too_many() -> None:
    with pytest.raises(ReportError, match="'scout'"):
        build_report([recorded("scout")], agents=["scuot"])
    with pytest.raises(ReportError):
        build_report([])
    with pytest.raises(ReportError, match=f"{MOST_AGENTS:,}"):
        build_report([recorded(f"a{number}") for number in range(MOST_AGENTS + 1)])


def test_selected_agents_are_compared_in_the_order_given() -> None:
    report = build_report(grid(5, a=["1"], b=["2"], c=["3"]), agents=("c", "a"))
    assert report.runs == 10
    assert {(one.a, one.b) for one in report.comparisons} == {("c", "a")}


def test_the_digest_is_of_all_that_was_read() -> None:
    records = [recorded("a"), recorded("a", number=2)]
    one, other = build_report(records).digest, build_report([records[0], recorded("a", number=2, success=False)]).digest
    assert one != other
    assert len(one) == 64


def test_the_time_of_a_report_is_the_latest_in_its_data() -> None:
    assert build_report([recorded("a")]).as_of == NOON + timedelta(hours=3)


def test_prices_are_named_with_their_version() -> None:
    (table,) = build_report([recorded("a"), recorded("a", number=2), recorded("a", number=3, status=WARNING)]).prices
    assert (table.source, table.version, table.sha256, table.runs) == ("prices", "1", "ab" * 32, 2)


def test_a_float_is_rounded_to_significant_digits() -> None:
    records = [recorded("a", f"t{task}", success=task == 0) for task in range(3)]
    assert of(build_report(records), "a").success.rate == 0.3333333333


def test_tokens_are_added_up() -> None:
    records = [recorded("a", number=number, tokens=Tokens(10, 5, 1, 4, 0, 2)) for number in range(3)]
    found = of(build_report(records), "a").tokens
    assert (found.input, found.output, found.cached, found.reasoning) == (30, 15, 12, 6)
    assert found.typical.mean == pytest.approx(float(Fraction(15)))
