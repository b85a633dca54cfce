"""An answer is judged by its value, its number and unit, or the set that it names."""

import asyncio
from typing import Any

import pytest
from tests.benchmarks.benching import UNTOUCHED, bench, task
from tests.checks.questions import held

from meruit.errors import MeruitError
from meruit.model.criterion import Assertion
from meruit.model.environment import ANSWER_SOURCE, MAX_ANSWER_BYTES, answer_snapshot, as_work_part
from meruit.model.evidence import Checked
from meruit.model.task import Task
from meruit.model.verdict import Verdict
from meruit.model.work import Work
from meruit.registry import faults_of
from meruit.store.store import Store


# Any: assertions and answers are JSON.
def found(answer: Any, **asked: Any) -> tuple[str, dict[str, Any]]:
    finding = held("answer-match", Work(output=as_work_part({ANSWER_SOURCE: answer_snapshot(answer)})), asked)
    assert isinstance(finding, Checked)
    return finding.score, dict(finding.details or {})


@pytest.mark.parametrize(
    ("answer", "asked", "score"),
    [
        ("MEM88771", {"expected": "MEM88771"}, "1"),
        ("mem88771", {"expected": "MEM88771"}, "0"),
        ("  yes\n", {"expected": {"in": ["yes", "Yes"]}}, "1"),
        ("3.1 mEq/L", {"number": {"value": 3.1, "unit": "mEq/L"}}, "1"),
        ("It is 3.1 mEq/L.", {"number": {"value": 3.1, "unit": "mEq/L"}}, "1"),
        ("3.1", {"number": {"value": 3.1, "unit": "mEq/L"}}, "0"),
        ("3.1 mmol/L", {"number": {"value": 3.1, "unit": "mEq/L"}}, "0"),
        ("3.1 or 4.1 mEq/L", {"number": {"value": 3.1, "unit": "mEq/L"}}, "0"),
        ("3.14", {"number": {"value": 3.1, "by": 0.05}}, "1"),
        ("3.16", {"number": {"value": 3.1, "by": 0.05}}, "0"),
        ("1,250", {"number": {"value": 1250}}, "1"),
        ("none", {"number": {"value": 0}}, "0"),
        (7, {"number": {"value": 7}}, "1"),
        ({"value": 40, "unit": "mEq"}, {"number": {"value": 40, "unit": "mEq"}}, "1"),
        ({"value": 40, "unit": "mg"}, {"number": {"value": 40, "unit": "mEq"}}, "0"),
        (["B", "A"], {"expected": {"set": ["A", "B"]}}, "1"),
        (["B", "A", "C"], {"expected": {"set": ["A", "B"]}}, "0"),
        ({"members": [{"id": "A"}]}, {"path": "members[].id", "expected": "A"}, "1"),
        ('{"members": [{"id": "A"}]}', {"path": "members[].id", "expected": "A"}, "1"),
        ("not JSON", {"path": "members", "expected": "A"}, "0"),
        (None, {"expected": "A"}, "0"),
    ],
)
def test_an_answer_is_judged_as_its_author_means_it(answer: Any, asked: dict[str, Any], score: str) -> None:
    assert found(answer, **asked)[0] == score


def test_hidden_evidence_shows_no_answer() -> None:
    _, details = found("secret-7", expected="other", evidence="hash")
    assert "secret" not in str(details)


@pytest.mark.parametrize(
    "asked",
    [{}, {"expected": "a", "number": {"value": 1}}, {"number": {"value": "x"}}, {"number": {"value": 1, "by": -1}}],
)
def test_an_answer_needs_one_valid_expectation(asked: dict[str, Any]) -> None:
    assert faults_of(Assertion.model_validate({"assert": "answer-match", **asked}))


def test_no_source_of_a_task_is_named_answer() -> None:
    with pytest.raises(ValueError, match="answer"):
        Task.model_validate(task() | {"sources": {"answer": "rows"}})


def test_an_answer_is_judged_with_the_state_and_is_not_collateral(store: Store) -> None:
    question = {"label": "told", "assert": "answer-match", "expected": "M1"}

    async def use() -> None:
        at = bench(store)
        await at.publish(task("t1", question, UNTOUCHED))
        for answer, verdict in (("M1", Verdict.PASS), ("M2", Verdict.FAIL), (None, Verdict.FAIL)):
            run = await at.started()
            ended = await at.benchmarks.complete(at.scope, run.id, answer=answer)
            assert ended.verdict is verdict
            again = await at.benchmarks.rejudge(at.tenant, run.id, "again")
            assert again.verdict is verdict
        run = await at.started()
        with pytest.raises(MeruitError):
            await at.benchmarks.complete(at.scope, run.id, answer="x" * (MAX_ANSWER_BYTES + 1))

    asyncio.run(use())
