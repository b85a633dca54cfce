"""The journal of a run: no output is paid for twice, and none is left behind."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from meruit.errors import CostLimitReached, EvaluationConflict
from meruit.evaluations import run_target as running
from meruit.evaluations.evaluation import Case, CaseError, EvaluationStatus
from meruit.evaluations.journal import FOLDER, RunJournal, open_journal
from meruit.evaluations.reader import CaseFilter, Evaluations
from meruit.evaluations.run import RunLimits
from meruit.evaluations.run_target import run_target
from meruit.evaluations.service import Evaluator
from meruit.evaluations.targets import FunctionTarget
from meruit.verify.catalogue import CompiledCriteria

DOLLAR = 1_000_000


def made(number: int, cost: int = DOLLAR) -> Case:
    return Case(f"c{number}", output={"text": "yes"}, cost_micros=cost)


def test_what_was_made_is_there_after_a_death(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    first = RunJournal(file)
    for number in range(4):
        first.begin(Case(f"c{number}"))
    first.end(made(1))
    first.end(made(2))
    first.forget([("c1", 0)])
    # The last line is cut off, as by a full disk.
    with file.open("ab") as opened:
        opened.write(b'{"made":{"case_id":"c3"')
    again = RunJournal(file)
    assert (again.lost, {*again.made}) == (2, {("c2", 0)})
    assert again.made["c2", 0].fill(Case("c2", {"q": 1})) == Case("c2", {"q": 1}, {"text": "yes"}, cost_micros=DOLLAR)
    # What is lost stays lost, and is not lost a second time.
    assert RunJournal(file).lost == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_damaged_line_costs_no_other(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b'{"lost":1}\n\xff\xfe\n{"made":5}\n{"made":{"case_id":"a"}}\n')
    journal = RunJournal(file)
    assert (journal.lost, {*journal.made}) == (1, {("a", 0)})


def test_one_process_runs_an_evaluation(tmp_path: Path) -> None:
    with open_journal(tmp_path, "ev_1"):
        with pytest.raises(EvaluationConflict), open_journal(tmp_path, "ev_1"):
            pass
        with open_journal(tmp_path, "ev_2"):
            pass
    assert [*(tmp_path / FOLDER).iterdir()] == []


def run(evaluator: Evaluator, criteria: CompiledCriteria, answer: Any, **limits: Any) -> None:
    started = evaluator.start("first", criteria)
    cases = [Case(f"c{n}", {"n": n, "reference": "yes"}) for n in range(6)]
    chosen = RunLimits(**{"concurrency": 1, "retries": 0, **limits})
    asyncio.run(run_target(evaluator, started, criteria, cases, FunctionTarget(answer), chosen))


def test_outputs_of_a_dead_process_are_used_and_counted(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    asked: list[int] = []

    async def answer(given: dict[str, Any]) -> dict[str, Any]:
        asked.append(given["n"])
        return {"output": "yes", "cost": 1.0}

    def die() -> None:
        with evaluator.journal(evaluator.start("first", criteria)) as journal:
            journal.begin(Case("c4"))
            journal.end(made(4))
            journal.begin(Case("c5"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die()
    # One dollar is spent, one may be.
    with pytest.raises(CostLimitReached):
        run(evaluator, criteria, answer, cost_limit_micros=4 * DOLLAR)
    assert asked == [0, 1]
    run(evaluator, criteria, answer)
    assert asked == [0, 1, 2, 3, 5]
    found = reader.find("first")
    assert (found.status, found.cases) == (EvaluationStatus.FINISHED, 6)
    assert reader.summary(found).cost_micros == 6 * DOLLAR


def test_what_is_made_is_recorded_when_a_run_is_interrupted(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    async def answer(given: dict[str, Any]) -> str:
        if given["n"] == 3:
            raise asyncio.CancelledError
        return "yes"

    with pytest.raises(asyncio.CancelledError):
        run(evaluator, criteria, answer)
    assert [one.case_id for one in reader.cases(reader.find("first"))] == ["c0", "c1", "c2"]


def test_an_output_that_is_not_json_is_the_targets_error(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    def answer(given: dict[str, Any]) -> dict[str, Any]:
        return {"x": float("nan")} if given["n"] == 2 else {"text": "yes"}

    run(evaluator, criteria, answer, retries=3)
    found = reader.find("first")
    (failed,) = reader.cases(found, CaseFilter(error=True))
    assert (failed.case_id, failed.error) == ("c2", CaseError.TARGET_ERROR)
    assert reader.summary(found).overall.passed == 5


def test_slow_pace_does_not_hold_up_what_is_made(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FLUSH_S", 0.01)
    run(evaluator, criteria, lambda _: "yes", rate_per_s=20, concurrency=4)
    found = reader.find("first")
    assert found.cases == 6
    # Recorded as they came, not together at the end.
    assert found.segments > 1
