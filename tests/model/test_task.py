"""Benchmarks as authors write them: what is taken, what is refused and with which words, and that nothing is lost."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meruit.model.canonical import canonical, from_canonical
from meruit.model.criterion import SuccessCriteria
from meruit.model.environment import SourceKind
from meruit.model.kinds import Aggregation
from meruit.model.task import STANDARD_SOURCES, Benchmark, Reveal, Task, TaskSource, split_name

CHECK = {"assert": "portal-state-match", "correlate_by": {"resource": "prior_auth"}}


def task(**changes: Any) -> dict[str, Any]:
    return {"id": "t1", "instruction": "ask for it", "criteria": [CHECK], **changes}


def benchmark(*tasks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"benchmark": "front-desk", "tasks": list(tasks or (task(),)), **changes}


def refused(model: type[Task | Benchmark | TaskSource], written: Any) -> str:
    with pytest.raises(ValidationError) as problem:
        model.model_validate(written)
    return str(problem.value)


# What a task is when little is said


def test_a_task_reads_the_playgrounds_systems_by_their_usual_names() -> None:
    made = Task.model_validate(task())
    assert {name: source.kind for name, source in made.sources.items()} == STANDARD_SOURCES
    assert (made.reveal, made.time_limit_s, made.facts, made.seeds) == (Reveal.AXES, 900, {}, [])


def test_a_task_is_passed_from_nine_tenths_on() -> None:
    asked = Task.model_validate(task()).success_criteria
    assert (asked.aggregation, asked.minimum_weighted_score) == (Aggregation.WEIGHTED, 0.9)


def test_a_task_without_criteria_never_passes() -> None:
    assert Task.model_validate(task(criteria=[])).success_criteria == SuccessCriteria(
        criteria=(), aggregation=Aggregation.WEIGHTED
    )


def test_a_source_may_be_written_as_its_kind_alone() -> None:
    made = Task.model_validate(task(sources={"chart": "fhir", "files": {"kind": "files", "at": "/var/drop"}}))
    assert made.sources == {
        "chart": TaskSource(kind=SourceKind.FHIR),
        "files": TaskSource(kind=SourceKind.FILES, at="/var/drop"),
    }


@pytest.mark.parametrize(("seed", "seeds"), [(None, []), ("a.yaml", ["a.yaml"]), (["a", {}], ["a", {}]), ({}, [{}])])
def test_a_seed_is_one_or_several_in_their_order(seed: Any, seeds: list[Any]) -> None:
    assert Task.model_validate(task(seed=seed)).seeds == seeds


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "Not A Slug"}, "String should match pattern"),
        ({"instruction": ""}, "at least 1 character"),
        ({"time_limit_s": 0}, "equal to 1"),
        ({"time_limit_s": 8 * 24 * 3600}, "less than"),
        ({"facts": {"a": object()}}, "plain JSON"),
        ({"seed": {"a": float("nan")}}, "plain JSON"),
        ({"sources": {}}, "no sources"),
        ({"seed": 5}, "a seed"),
        ({"seed": True}, "a seed"),
        ({"seed": [[]]}, "a seed"),
        ({"seed": ["a", None]}, "a seed"),
        ({"sources": {"a b": "fhir"}}, "String should match pattern"),
        ({"sources": {"ehr": "ftp"}}, "'fhir', 'hl7'"),
        ({"sources": {"a": "fhir", "b": "fhir"}}, "one fhir"),
        ({"criteria": [CHECK | {"from": "chart"}]}, "'chart'"),
        ({"criteria": [CHECK | {"weight": 0}]}, "weight"),
        ({"criteria": [CHECK | {"id": "a"}, CHECK | {"id": "a"}]}, "'a'"),
        (
            {"criteria": [{"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 1}]},
            "`assert`",
        ),
        ({"reveal": "everything"}, "'none', 'verdict', 'axes' or 'criteria'"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_an_invalid_task_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    assert words in refused(Task, task(**changes))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"kind": "fhir", "token_env": "T"}, "playground"),
        ({"kind": "fhir", "types": ["Patient"]}, "playground"),
        ({"kind": "fhir", "at": "https://x", "token_env": "T", "token_command": ["t"]}, "not both"),
        ({"kind": "fhir", "at": ""}, "at least 1 character"),
        ({"at": "https://x"}, "Field required"),
    ],
)
def test_an_invalid_source_is_refused(source: dict[str, Any], words: str) -> None:
    assert words in refused(TaskSource, source)


def test_two_sources_of_ones_own_may_be_of_one_kind() -> None:
    own = {name: {"kind": "fhir", "at": f"https://{name}.example"} for name in ("east", "west")}
    assert set(Task.model_validate(task(sources={**own, "ehr": "fhir"})).sources) == {"east", "west", "ehr"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": []}, "no tasks"),
        ({"tasks": [task(), task()]}, "'t1'"),
        ({"benchmark": "-x"}, "String should match pattern"),
        ({"version": 0}, "equal to 1"),
        ({"version": True}, "valid integer"),
        ({"attachments": {"a": {"base64": "?"}}}, "base64"),
        ({"attachments": {"a": {"base64": "é"}}}, "base64"),
        ({"attachments": {"a": 5}}, "attachments.a"),
    ],
)
def test_an_invalid_benchmark_is_refused(changes: dict[str, Any], words: str) -> None:
    assert words in refused(Benchmark, benchmark(**changes))


# What is kept


def test_a_benchmark_is_found_by_its_parts() -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    made = Benchmark.model_validate(
        benchmark(task(), task(id="t2"), version=3, attachments={"a.txt": "é", "b.bin": {"base64": encoded}})
    )
    assert made.name == "front-desk@3"
    assert [one and one.id for one in (made.task("t2"), made.task("t3"))] == ["t2", None]
    assert (made.attachment("a.txt"), made.attachment("b.bin")) == ("é".encode(), b"\xff\x00")
    with pytest.raises(KeyError):
        made.attachment("c")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    facts=st.dictionaries(st.text(min_size=1, max_size=5), JSON, max_size=3),
    seed=st.none() | st.text(max_size=5) | st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    weight=st.sampled_from([1, 0.1, 2.5, "0.3"]),
    axis=st.none() | st.just("safety"),
    fields=st.dictionaries(st.text(min_size=1, max_size=5), JSON, max_size=3),
    nested=st.booleans(),
)
def test_what_is_kept_of_a_benchmark_reads_as_what_was_written(
    facts: Any, seed: Any, weight: Any, axis: str | None, fields: Any, nested: bool
) -> None:
    said = {**CHECK, "from": "portal", "fields": fields}
    criterion = {"weight": weight, "axis": axis, **({"assertion": said, "label": "x"} if nested else said)}
    made = Benchmark.model_validate(benchmark(task(facts=facts, seed=seed, criteria=[criterion])))
    kept = canonical(made.model_dump(exclude_defaults=True, mode="json", by_alias=True))
    again = Benchmark.model_validate(from_canonical(kept))
    assert again == made
    assert again.tasks[0].success_criteria == made.tasks[0].success_criteria


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("front-desk@12", ("front-desk", 12)),
        ("front-desk", ("front-desk", None)),
        ("a.b_c-d@1000000", ("a.b_c-d", 1_000_000)),
        *((wrong, None) for wrong in ("", "@1", "a@", "a@0", "a@01", "a@-1", "A@1", "a@1@2", "a b", "a@12345678")),
    ],
)
def test_a_name_is_a_slug_and_perhaps_a_version(name: str, parts: tuple[str, int | None] | None) -> None:
    assert split_name(name) == parts
