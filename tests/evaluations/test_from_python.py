"""Evaluations in one call from Python."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.evaluations.conftest import CRITERIA

from meruit.errors import CriteriaError, InvalidCase, MeruitError, NoCases
from meruit.evaluations import Case, EvaluationResult, FunctionTarget, evaluate, evaluate_async
from meruit.evaluations.reader import Evaluations
from meruit.store.location import Location
from meruit.store.store import Store

ROWS: list[Case | Mapping[str, Any]] = [
    {"id": "a", "prompt": "?", "reference": "yes", "output": "yes", "tags": {"lang": "en"}},
    {"id": "b", "prompt": "?", "reference": "yes", "output": "no"},
]


def test_rows_are_judged_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = evaluate(CRITERIA, ROWS)
    assert found.summary.overall.rate == 0.5
    assert [case.summary.case_id for case in found.failing()] == ["b"]
    about = {"case_id": "a", "repeat": 0, "verdict": "pass", "success": True, "score": 1.0, "error": None}
    assert found.rows()[0] == about | {"latency_ms": None, "tag.lang": "en", "exact_match": True, "word_count": 1}
    assert [*tmp_path.iterdir()] == []


def test_no_cases_leave_the_name_free(tmp_path: Path) -> None:
    for target in (None, lambda _given: "yes"):
        with pytest.raises(NoCases):
            evaluate(CRITERIA, [], target, name="n", data=tmp_path, tags={"a": "b"})
    assert evaluate(CRITERIA, ROWS, name="n", data=tmp_path).summary.overall.cases == 2


def test_a_result_prints_well() -> None:
    found = evaluate(CRITERIA, ROWS, name="<b>")
    assert "50.0%" in str(found)
    assert "<b>" not in found._repr_html_().replace("&lt;b&gt;", "")


def test_a_function_makes_the_outputs() -> None:
    questions: list[Case | Mapping[str, Any]] = [
        Case("a", {"n": 1, "reference": "yes"}),
        {"id": "b", "n": 2, "reference": "yes"},
    ]

    def answer(given: dict[str, Any]) -> str:
        return "yes" if given["n"] == 1 else "no"

    assert evaluate(CRITERIA, questions, answer).summary.overall.rate == 0.5
    assert evaluate(CRITERIA, questions, FunctionTarget(answer)).summary.overall.rate == 0.5


def test_it_works_inside_a_running_loop() -> None:
    async def notebook() -> EvaluationResult:
        with pytest.raises(MeruitError):
            evaluate(CRITERIA, ROWS, data="somewhere")
        assert evaluate(CRITERIA, ROWS).summary.overall.cases == 2
        return await evaluate_async(CRITERIA, ROWS)

    assert asyncio.run(notebook()).summary.overall.cases == 2


def test_a_named_evaluation_is_kept(tmp_path: Path) -> None:
    evaluate(CRITERIA, ROWS, name="first", data=tmp_path, tags={"model": "m"})
    store = Store.open(Location(tmp_path))
    try:
        assert Evaluations(store, "default").find("first").tags == {"model": "m"}
    finally:
        store.close()


def test_criteria_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "criteria.yaml"
    file.write_text("criteria:\n  - {metric: word_count, metric_type: count, comparison: gte, threshold: 1}\n")
    assert evaluate(file, ROWS).summary.overall.rate == 1.0
    file.write_text("criteria:\n  - {metric: word_cuont, metric_type: count, comparison: gte, threshold: 1}\n")
    with pytest.raises(CriteriaError):
        evaluate(str(file), ROWS)


def test_without_pandas_the_error_names_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MeruitError, match="rows"):
        evaluate(CRITERIA, ROWS).to_dataframe()


def test_rows_turn_into_a_dataframe() -> None:
    pytest.importorskip("pandas")
    assert [*evaluate(CRITERIA, ROWS).to_dataframe()["case_id"]] == ["a", "b"]


def test_a_case_that_is_not_an_object_is_named() -> None:
    with pytest.raises(InvalidCase, match="case 2"):
        # Any: what the types forbid.
        evaluate(CRITERIA, cast("Any", [{"id": "a", "output": "x"}, "x"]))
