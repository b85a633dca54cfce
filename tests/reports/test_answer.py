"""The sentence at the top: it names who leads, how surely, at what cost, and whose counts say so."""

import re

import pytest
from hypothesis import given
from tests.reports.worlds import recorded, worlds

from meruit.model.metering import UsageRecord
from meruit.model.usage import UsageStatus
from meruit.reports.answer import MOST_NAMES, PopulationCounts, describe_basis
from meruit.reports.report import build_report

TASKS = 8


def runs(agent: str, successes: int, cost: str | None = "1.00", tasks: int = TASKS) -> list[UsageRecord]:
    """One run of each task; costs vary a little, because equal ones have no interval."""
    return [
        recorded(agent, f"t{task}", success=task < successes, cost=None if cost is None else f"{cost}{task}")
        for task in range(tasks)
    ]


def answer(*agents: list[UsageRecord]) -> str:
    return build_report([one for several in agents for one in several]).answer


@given(worlds())
def test_every_report_has_one_sentence(records: list[UsageRecord]) -> None:
    found = build_report(records)
    for text in (found.answer, found.basis):
        assert text.endswith(".")
        assert not re.search(r"None|nan|inf\b|\bx\b", text)


def test_a_clear_leader_does_the_work_best() -> None:
    found = answer(runs("heron", 8), runs("wren", 1))
    assert found.startswith("heron does the work best: it succeeds in 100.0 % of 8 runs")
    assert "87.5 points more than wren" in found


def test_a_lead_that_may_be_chance_is_called_so() -> None:
    found = answer(runs("heron", 8), runs("wren", 7))
    assert found.startswith("No agent is clearly best: heron succeeds in 100.0 %")
    assert "wren may be chance" in found


def test_equal_results_are_not_a_lead() -> None:
    found = answer(runs("heron", 5, "9.00"), runs("wren", 5), runs("owl", 0, "0.10"))
    assert found.startswith("No agent is clearly best: heron and wren share the highest success, 62.5 %; ")
    assert re.search(r"wren is the cheapest of them, at 0\.11\d times \(.+\) what heron costs\.", found)
    assert "none of them is clearly the cheapest" in answer(runs("heron", 5, None), runs("wren", 5))


def test_a_leader_of_some_is_not_the_best_of_all() -> None:
    found = answer(runs("heron", 8), runs("wren", 7), runs("owl", 0))
    assert found.startswith("heron leads: it succeeds in 100.0 %")
    assert "its lead over wren may be chance" in found
    assert "owl" not in found


def test_agents_without_common_tasks_are_not_ranked() -> None:
    few = answer(runs("heron", 3, tasks=3), runs("wren", 0, tasks=3))
    assert few.startswith("No agent is clearly best")
    assert "too few tasks" in few
    assert "cost cannot be compared" in few


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("3.00", "1.00", r"a task costs 2\.99 times \(.+\) what wren costs"),
        ("1.00", "2.00", r"it is also the cheapest, at 0\.50\d times \(.+\) what wren costs"),
        (None, "2.00", "its cost cannot be compared"),
    ],
)
def test_the_cost_is_that_of_the_leader(ours: str | None, theirs: str, words: str) -> None:
    assert re.search(words, answer(runs("heron", 8, ours), runs("wren", 1, theirs)))
    # Pairs are in the order of their names; the sentence is about the leader whichever it is.
    assert re.search(words.replace("wren", "ant"), answer(runs("heron", 8, ours), runs("ant", 1, theirs)))


def test_a_leader_that_is_not_counted_has_an_unknown_cost() -> None:
    ours = [recorded("heron", f"t{task}", imported=True) for task in range(TASKS)]
    found = build_report([*ours, *runs("wren", 1)])
    assert "its cost is unknown" in found.answer
    assert found.verified_by_file == TASKS


def test_equal_costs_do_not_clearly_differ() -> None:
    dear = [recorded("wren", f"t{task}", success=False, cost=f"{1 + (task % 2) / 2}") for task in range(TASKS)]
    cheap = [recorded("heron", f"t{task}", cost=f"{1 + (task + 1) % 2 / 2}") for task in range(TASKS)]
    assert "does not clearly differ" in answer(dear, cheap)


def test_one_agent_is_described_by_itself() -> None:
    assert answer(runs("heron", 6)).startswith("heron succeeds in 75.0 % of 8 runs (95 % interval ")
    assert "USD per success" in answer(runs("heron", 6))
    assert "at an unknown cost: no cost is known" in answer(runs("heron", 6, None))


def test_a_score_is_an_average() -> None:
    found = answer([recorded("heron", f"t{task}", score=task / 10) for task in range(TASKS)])
    assert "scores 35.0 % on average over 8 runs" in found


def test_unknown_results_give_no_answer() -> None:
    assert answer([recorded("heron", success=None)]).startswith("Unknown: ")
    both = [recorded(agent, success=None) for agent in ("heron", "wren")]
    assert answer(both).startswith("Unknown: ")


def test_an_agent_without_any_result_does_not_lead() -> None:
    found = answer([recorded("ant", success=None)], [recorded("bee", success=False)])
    assert "bee succeeds in 0.0 %" in found


def test_many_agents_and_long_names_keep_the_sentence_short() -> None:
    several = [runs(f"{number} {'x' * 300}", 8 if number == 0 else 7) for number in range(9)]
    found = answer(*several)
    assert found.count("…") == 1 + MOST_NAMES
    assert f"and {8 - MOST_NAMES} more" in found
    assert len(found) < 600


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        (PopulationCounts(9, 9, 0, include_imported=False), ["provider for 9 of 9"]),
        (PopulationCounts(9, 6, 2, include_imported=False), ["provider for 6 of 9", "2 were imported", "1 is not"]),
        (PopulationCounts(9, 0, 5, include_imported=True), ["provider for 0 of 9", "files for 5 (--", "4 are not"]),
    ],
)
def test_the_basis_tells_the_provider_from_files(counts: PopulationCounts, parts: list[str]) -> None:
    found = describe_basis(counts)
    assert all(one in found for one in parts)
    assert len(found.split("; ")) == len(parts)


def test_the_basis_counts_every_run_once() -> None:
    records = [recorded("a", f"t{task}", imported=task == 1) for task in range(4)]
    records.append(recorded("a", "t9", status=UsageStatus.PENDING))
    assert [int(one) for one in re.findall(r"\d+", build_report(records).basis)] == [3, 5, 1, 1]
