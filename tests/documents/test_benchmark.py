"""Benchmark files: every problem is reported at once, with its line; no other file is read."""

import contextlib
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.documents.authoring import parse_benchmark
from meruit.documents.document import MAX_PROBLEMS
from meruit.errors import DocumentError
from meruit.model.task import Benchmark, Binary
from meruit.playground.load import is_benchmark_file, load_benchmark

GOOD = """\
benchmark: front-desk
version: 2
tasks:
- id: t1
  instruction: ask for it
  seed: [base.yaml, {rows: {member: {M1: {name: Ann}}}}]
  criteria:
  - {label: asked, assert: portal-state-match, correlate_by: {resource: prior_auth}, weight: 2}
  - {assert: state-unchanged}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A benchmark in a folder of its own."""

    def put(text: str, name: str = "b.yaml", **files: str | bytes) -> Path:
        (tmp_path / "base.yaml").write_text("files: {a.txt: {file: a.bin}}\nfhir: [people.ndjson]\n")
        (tmp_path / "a.bin").write_bytes(b"\xff\x00")
        (tmp_path / "people.ndjson").write_text('{"resourceType":"Patient","id":"1"}\n')
        for called, content in files.items():
            path = tmp_path / called.replace("_", ".")
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path / name

    return put


Write = Callable[..., Path]


def problems(path: Path) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        load_benchmark(path)
    return [str(problem) for problem in refused.value.problems]


def test_a_benchmark_brings_the_files_that_its_seeds_name(write: Write) -> None:
    found = load_benchmark(write(GOOD))
    assert (found.name, [task.id for task in found.tasks]) == ("front-desk@2", ["t1"])
    assert set(found.attachments) == {"base.yaml", "a.bin", "people.ndjson"}
    assert found.attachments["a.bin"] == Binary(base64="/wA=")
    assert found.attachment("a.bin") == b"\xff\x00"
    assert found.tasks[0].seeds[0] == "base.yaml"


def test_a_benchmark_may_be_json(write: Write, tmp_path: Path) -> None:
    yaml = load_benchmark(write(GOOD))
    (tmp_path / "b.json").write_text(yaml.model_dump_json(exclude_defaults=True, by_alias=True))
    assert load_benchmark(tmp_path / "b.json") == yaml


WRONG = [
    ("id: t1", "id: T 1", ["line 4, tasks[0].id: "]),
    ("  instruction: ask for it\n", "", ["line 4, tasks[0]: ", "instruction"]),
    ("instruction: ask for it", "instruction: [ask]", ["line 5, tasks[0].instruction: ", "got a list"]),
    ("version: 2", "version: two", ["line 2, version: "]),
    ("version: 2", "version: '2'", ["line 2, version: "]),
    ("version: 2", "version: 0", ["line 2, version: "]),
    ("version: 2", "versoin: 2", ["line 2: ", "'versoin'", "'version'"]),
    (
        "assert: portal-state-match",
        "assert: portal-state-mach",
        ["line 8, tasks[0].criteria[0].assert: ", "portal-state-match"],
    ),
    ("resource: prior_auth", "resourc: prior_auth", ["line 8, tasks[0].criteria[0]", "resource"]),
    ("label: asked,", "label: asked, fieldz: {},", ["line 8, tasks[0].criteria[0].fieldz: ", "fields"]),
    ("label: asked,", "label: asked, from: chart,", ["tasks[0]: criteria[0] ", "'chart'"]),
    ("weight: 2", "weight: -1", ["line 8, tasks[0].criteria[0].weight: "]),
    ("weight: 2", "axis: __default__", ["line 8, tasks[0].criteria[0].axis: __default__"]),
    ("base.yaml", "missing.yaml", ["line 6, tasks[0].seed[0]: 'missing.yaml'"]),
    ("base.yaml", "../" * 40 + "etc/passwd", ["line 6, tasks[0].seed[0]: ", "outside"]),
    ("base.yaml", "/etc/passwd", ["line 6, tasks[0].seed[0]: '/etc/passwd'", "outside"]),
    ("base.yaml", ".", ["line 6, tasks[0].seed[0]: '.' "]),
    ("rows: {member", "rowz: {member", ["line 6, tasks[0].seed[1]: rowz: ", "'rows'"]),
    ("{M1: {name: Ann}}", "5", ["line 6, tasks[0].seed[1]: rows.member: "]),
    ("benchmark: front-desk", "benchmark: Front Desk", ["line 1, benchmark: "]),
    ("tasks:", "task:", ["line 3: ", "'task'", "tasks"]),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG, ids=[new[:30] for _, new, _ in WRONG])
def test_each_problem_is_reported_where_it_is(write: Write, old: str, new: str, words: list[str]) -> None:
    assert old in GOOD
    reported = "\n".join(problems(write(GOOD.replace(old, new, 1))))
    for word in words:
        assert word in reported, reported


def test_every_problem_is_reported_at_once(write: Write) -> None:
    wrong = GOOD.replace("id: t1", "id: T 1").replace("state-unchanged", "state-unchanjed").replace("base", "bose")
    reported = problems(write(wrong))
    assert [
        word for word in ("tasks[0].id", "state-unchanged", "bose.yaml") if any(word in one for one in reported)
    ] == [
        *("tasks[0].id", "state-unchanged", "bose.yaml"),
    ]
    assert len(reported) == 3


def test_weights_that_are_all_nothing_are_refused(write: Write) -> None:
    reported = problems(
        write(GOOD.replace("weight: 2", "weight: 0").replace("state-unchanged}", "state-unchanged, weight: 0}"))
    )
    assert len(reported) == 1
    assert "tasks[0]" in reported[0]
    assert "weight" in reported[0]


def test_tasks_and_criteria_that_share_an_id_are_refused(write: Write) -> None:
    second = "- {id: t1, instruction: x, criteria: [{assert: state-unchanged}]}\n"
    assert any("'t1'" in one for one in problems(write(GOOD + second)))
    doubled = GOOD.replace("label: asked", "id: same").replace(
        "{assert: state-unchanged}", "{id: same, assert: state-unchanged}"
    )
    assert any("'same'" in one for one in problems(write(doubled)))
    again = GOOD.replace("version: 2", "version: 2\nversion: 3")
    [problem] = problems(write(again))
    assert (problem.startswith("line 3, version: "), problem.endswith("line 2")) == (True, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("[]", "a mapping"),
        ("5", "a mapping"),
        ("benchmark: x", "tasks"),
        ("benchmark: x\ntasks: []", "no tasks"),
        ("benchmark: x\ntasks: {}", "a list"),
        ("benchmark: x\ntasks: [5, null]", "tasks[0]: "),
        ("benchmark: x\ntasks: [{id: a, instruction: b, criteria: 5}]", "tasks[0].criteria: "),
        ("benchmark: x\ntasks: [{id: a, instruction: b, criteria: [5]}]", "tasks[0].criteria[0]: "),
        ("benchmark: x\ntasks: [{id: a, instruction: b, criteria: [{assert: 5}]}]", "tasks[0].criteria[0].assert: "),
        ("benchmark: x\nattachments: 5\ntasks: [{id: a, instruction: b, seed: a.bin, criteria: []}]", "attachments"),
        ("benchmark: x\ntasks: [{id: a, instruction: b, seed: 5, criteria: []}]", "tasks[0].seed"),
        ("benchmark: x\ntasks: [{id: a, instruction: b, seed: [[]], criteria: []}]", "tasks[0].seed"),
        ("benchmark: x\ntasks: [{id: a, instruction: b, seed: true, criteria: []}]", "tasks[0].seed"),
        ("{", "line"),
    ],
)
def test_a_document_that_is_not_a_benchmark_is_refused(write: Write, text: str, words: str) -> None:
    reported = "\n".join(problems(write(text)))
    assert words in reported, reported


def test_a_problem_in_a_seed_file_is_reported_by_its_name_and_line(write: Write) -> None:
    reported = problems(write(GOOD, base_yaml="facts: {}\nrows:\n  member: 5\n"))
    assert len(reported) == 1
    assert "base.yaml" in reported[0]
    assert "line 3" in reported[0]
    assert "rows.member: " in reported[0]


def test_a_file_that_a_seed_file_names_is_reported_too(write: Write) -> None:
    reported = "\n".join(problems(write(GOOD, base_yaml="files: {x: {file: ../../etc/passwd}}\nfhir: [absent.json]\n")))
    assert "base.yaml" in reported
    assert "'../../etc/passwd'" in reported
    assert "'absent.json'" in reported


def test_links_that_lead_outside_are_not_followed(write: Write, tmp_path: Path) -> None:
    path = write(GOOD.replace("base.yaml", "link.yaml"))
    (tmp_path / "link.yaml").symlink_to("/etc/passwd")
    assert "outside" in problems(path)[0]
    (tmp_path / "link.yaml").unlink()
    (tmp_path / "link.yaml").symlink_to("link.yaml")
    assert "'link.yaml'" in problems(path)[0]


def test_a_pipe_is_not_waited_for(write: Write, tmp_path: Path) -> None:
    path = write(GOOD.replace("base.yaml", "pipe.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "'pipe.yaml'" in problems(path)[0]
    assert not is_benchmark_file(tmp_path / "pipe.yaml")


def test_a_seed_that_several_tasks_name_is_read_and_complained_of_once(write: Write) -> None:
    again = GOOD.replace("base.yaml", "missing.yaml") + "- {id: t2, instruction: x, seed: missing.yaml, criteria: []}\n"
    assert len([one for one in problems(write(again)) if "missing.yaml" in one]) == 1


def test_a_huge_benchmark_is_refused_quickly_and_briefly(write: Write) -> None:
    tasks = "".join(f"- {{id: t{n}, instruction: x, criteria: [{{assert: none-such}}]}}\n" for n in range(1_100))
    reported = problems(write(f"benchmark: x\ntasks:\n{tasks}"))
    assert len(reported) == MAX_PROBLEMS + 1
    assert any("more" in one for one in reported)
    criteria = ", ".join("{assert: state-unchanged}" for _ in range(600))
    reported = problems(write(f"benchmark: x\ntasks:\n- {{id: a, instruction: x, criteria: [{criteria}]}}\n"))
    assert any("500" in one for one in reported)


def test_what_a_benchmark_brings_along_is_not_looked_for(write: Write, tmp_path: Path) -> None:
    whole = load_benchmark(write(GOOD))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.json").write_text(whole.model_dump_json(exclude_defaults=True, by_alias=True))
    assert load_benchmark(elsewhere / "b.json") == whole
    (elsewhere / "c.yaml").write_text(f"{GOOD}attachments: {{base.yaml: {{base64: '?'}}}}")
    assert any("base64" in one for one in problems(elsewhere / "c.yaml"))


def test_from_standard_input_no_file_is_read() -> None:
    found = parse_benchmark(GOOD)
    assert (found.attachments, found.tasks[0].seeds[0]) == ({}, "base.yaml")


def test_a_program_may_give_what_it_parsed_already() -> None:
    made = parse_benchmark({"benchmark": "x", "tasks": [{"id": "a", "instruction": "b", "criteria": []}]})
    assert isinstance(made, Benchmark)
    with pytest.raises(DocumentError, match="'a'"):
        parse_benchmark({"benchmark": "x", "tasks": [{"id": "a", "instruction": "b", "criteria": []}] * 2})


def test_benchmark_files_are_distinguished_from_criteria(write: Write, tmp_path: Path) -> None:
    assert is_benchmark_file(write(GOOD))
    for text in ("criteria: []", "[]", "{", "", "a: tasks"):
        assert not is_benchmark_file(write(text))
    assert not is_benchmark_file(tmp_path)
    assert not is_benchmark_file(tmp_path / "nowhere")
    assert not is_benchmark_file("-")


NUMBERS = """\
benchmark: b
tasks:
- id: t1
  instruction: send it
  criteria:
  - assert: x12-response
    correlate_by: {TRN.2: 7.0}
    fields: {CLM.2: 450.00, AMT.2: {in: [1.50, 2]}, SV1.2: {near: {value: 9.50, by: 0.10}}}
  - assert: sftp-file-present
    path: claims/*.837
    parse: x12
    fields: [{path: CLM.2, expected: 450.00, weight: 2.50}]
  - {assert: portal-state-match, correlate_by: {resource: claim}, fields: {amount: 450.00}}
"""


def test_a_number_that_is_compared_with_text_is_its_text(write: Write) -> None:
    criteria = load_benchmark(write(NUMBERS)).tasks[0].criteria
    first, second, third = (one.assertion.settings for one in criteria if one.assertion is not None)
    assert first["correlate_by"] == {"TRN.2": "7.0"}
    assert first["fields"]["CLM.2"] == "450.00"
    assert first["fields"]["AMT.2"] == {"in": ["1.50", 2]}
    assert first["fields"]["SV1.2"] == {"near": {"value": 9.5, "by": 0.1}}
    assert second["fields"] == [{"path": "CLM.2", "expected": "450.00", "weight": 2.5}]
    assert third["fields"] == {"amount": 450.0}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "seed", "criteria", "assert", "assertion", "instruction", "sources", "at", "kind", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=3), JSON, JSON)
def test_any_input_is_a_benchmark_or_a_document_error(tasks: object, version: object, more: object) -> None:
    written = {"benchmark": "x", "tasks": tasks, "version": version, "attachments": more}
    with contextlib.suppress(DocumentError):
        parse_benchmark(written, gather=lambda _seed, _given: {"a": "b"})
