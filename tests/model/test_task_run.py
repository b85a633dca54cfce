"""What runs are made of: statuses that end, and answers in which what is hidden is absent."""

import json
from datetime import UTC, datetime

from meruit.model.task import Reveal
from meruit.model.task_run import ENDED, Completion, CriterionStatus, RunStatus, TaskRun, TaskRunAxis
from meruit.model.verdict import Bounds, Verdict

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_run_has_ended_unless_it_is_pending_or_under_way() -> None:
    assert {*RunStatus} - ENDED == {RunStatus.PENDING, RunStatus.RUNNING}


def test_the_words_of_the_specification_are_kept() -> None:
    assert {str(status) for status in CriterionStatus} == {"passed", "failed", "error", "skipped"}
    assert {"completed", "timed_out", "cancelled"} == {str(status) for status in ENDED}


def test_what_is_hidden_from_a_completion_is_absent_and_not_null() -> None:
    assert json.loads(Completion("trn_1", RunStatus.COMPLETED).to_json()) == {
        "task_run_id": "trn_1",
        "status": "completed",
    }
    told = json.loads(Completion("trn_1", RunStatus.COMPLETED, Verdict.FAIL, 0.0).to_json())
    assert told == {"task_run_id": "trn_1", "status": "completed", "verdict": "fail", "score": 0.0}


def test_a_run_reads_as_it_was_written() -> None:
    axes = {"safety": TaskRunAxis(None, 2.0, 1, 2, Bounds(0.5, 1.0))}
    run = TaskRun(
        "trn_1",
        7,
        "front-desk",
        1,
        "t1",
        1,
        RunStatus.COMPLETED,
        True,
        Reveal.AXES,
        NOW,
        "me",
        verdict=Verdict.INCONCLUSIVE,
        exact="1/3",
        exact_high="2/3",
        bounds=Bounds(1 / 3, 2 / 3),
        axes=axes,
    )
    assert TaskRun.from_json(run.to_json()) == run
