"""Names in formulas that no fact, `let` or `capture` defines are refused when a benchmark is read."""

from pathlib import Path
from typing import Any

import pytest

from meruit.benchmarks.formula_names import find_unknown_names
from meruit.benchmarks.published import validate_benchmark
from meruit.errors import DocumentError, UnsupportedCriteria
from meruit.model.task import Benchmark
from meruit.playground.load import load_benchmark

FACTS = {"patient": {"id": "ann", "ids": ["a", "b"]}}


def benchmark(*criteria: dict[str, Any], **task: Any) -> Benchmark:
    known = {"assert": "fhir-resource-state", "resource": "Patient"}
    written = {"id": "t", "instruction": "do", "facts": FACTS, "criteria": [known | one for one in criteria], **task}
    return Benchmark.model_validate({"benchmark": "b", "tasks": [written]})


def faults(*criteria: dict[str, Any], **task: Any) -> list[tuple[Any, ...]]:
    return [path[3:] for path, _ in find_unknown_names(benchmark(*criteria, **task))]


def asked(text: str) -> dict[str, Any]:
    return {"fields": {"id": text}}


@pytest.mark.parametrize(
    "text",
    [
        "${patient.id}",
        "${patient['id']}",
        "${patient.ids[1]}",
        "plain",
        "${min(1, 2)}",
        "${true}",
    ],
)
def test_a_known_reference_is_accepted(text: str) -> None:
    assert faults(asked(text)) == []


@pytest.mark.parametrize(
    "text",
    ["${nobody.id}", "${patient.idd}", "${patient.ids[2]}", "${patient.id.x}", "a ${patint.id}", "${1 + nobody.age}"],
)
def test_an_unknown_reference_is_refused_at_its_path(text: str) -> None:
    assert faults(asked(text)) == [(0, "fields", "id")]


def test_a_condition_on_an_unknown_name_is_refused() -> None:
    assert faults({"when": "q < 3"}) == [(0, "when")]
    let = {"q": {"resource": "Observation", "search": {"code": "${code}"}, "path": "value.value"}}
    assert faults({"let": let, "when": "q < 3"}) == [(0, "let", "q", "search", "code")]
    assert faults({"let": let, "when": "q < 3"}, facts={"code": "K"}) == []


def test_a_captured_item_is_known_only_afterwards() -> None:
    made = {"capture": "made"}
    assert faults(made, asked("${made.id}")) == []
    assert faults(asked("${made.id}"), made) == [(0, "fields", "id")]
    unchanged = {"assert": "state-unchanged", "resource": None, "except": ["Patient/${made.id}"]}
    assert faults(unchanged, made) == []


def test_facts_of_seeds_are_known() -> None:
    seeds = [{"facts": {"a": 1}}, "world.yaml"]
    written = benchmark(asked("${a}"), asked("${b.c}"), asked("${d}"), seed=seeds, facts={})
    whole = written.model_copy(update={"attachments": {"world.yaml": "facts: {b: {c: 1}}"}})
    assert [path[3] for path, _ in find_unknown_names(whole)] == [2]


def test_a_published_benchmark_is_examined_too() -> None:
    with pytest.raises(UnsupportedCriteria) as refused:
        validate_benchmark(benchmark(asked("${nobody.id}")))
    assert [problem.where for problem in refused.value.problems] == ["tasks[0].criteria[0].fields.id"]


def test_a_file_is_refused_with_line_and_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "b.yaml"
    file.write_text(
        """benchmark: b
tasks:
  - id: t
    instruction: do
    facts: {patient: {id: ann}}
    criteria:
      - label: one
        assertion:
          assert: fhir-resource-state
          resource: Patient
          fields:
            active: true
            id: "${patiant.id}"
      - assert: fhir-resource-state
        resource: Patient
        when: "q < 3"
"""
    )
    with pytest.raises(DocumentError) as refused:
        load_benchmark(file)
    first, second = refused.value.problems
    assert (first.line, first.where) == (13, "tasks[0].criteria[0].assertion.fields.id")
    assert "'patient'" in first.message
    assert (second.line, second.where) == (16, "tasks[0].criteria[1].when")
