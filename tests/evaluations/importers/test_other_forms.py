"""Forms of a format that its example does not show: traces, spans, hosted items, trajectories, scores."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from meruit.evaluations.evaluation import Case
from meruit.evaluations.importers.openai_evals import ITEM
from meruit.evaluations.importers.support.pieces import ImportedCase, ImportNote, number_names
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, survey, with_claim
from meruit.registry import importers

FILES = Path(__file__).parent / "files"
MESSAGES = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "cached_input_tokens": 3, "cost": 0.5}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(path: Path, name: str) -> list[Case]:
    source = ImportSource(path)
    importer = recognise(source)
    assert importer.name == name
    return [with_claim(one, name) for one in importer.read(source) if isinstance(one, ImportedCase)]


# Any: an output is any JSON.
def answer(case: Case) -> Any:
    return (case.output or {}).get("text")


def test_traces_of_verifiers_are_weighted_and_errors_stay_errors(tmp_path: Path) -> None:
    def trace(case_id: str, **more: Any) -> dict[str, Any]:
        task = {"data": {"id": case_id, "prompt": "2 + 2?", "answer": "4"}}
        nodes = [{"message": one} for one in MESSAGES]
        calls = [{"model": "m-1", "usage": USAGE}, {"model": "m-1", "usage": USAGE}]
        return {"version": 1, "id": f"t-{case_id}", "task": task, "agent": {"name": "a"}, "nodes": nodes} | {
            "calls": calls,
            **more,
        }

    right = trace("a", ok=True, rewards={"match": {"score": 1, "weight": 0.5}, "style": {"score": 0.5}})
    died = trace("b", ok=False, rewards={}, errors=[{"type": "Timeout", "message": "too slow"}])
    open_ = trace("c", ok=True, rewards={"match": None}, metrics={"length": 3})
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "traces.jsonl").write_text(
        lines(*({"id": "e", "env": {"id": "x"}, "traces": [one]} for one in (right, died, open_))), encoding="utf-8"
    )
    (folder / "config.toml").write_text("", encoding="utf-8")
    cases = {case.id: case for case in read(folder, "verifiers")}
    assert {name: case.error is not None for name, case in cases.items()} == {"a": False, "b": True, "c": False}
    assert cases["a"].metadata["origin"]["score"] == 1.0
    assert cases["a"].input["reference"] == "4"
    assert cases["a"].metadata["usage"]["input_tokens"] == 20
    assert cases["c"].claimed is None


@pytest.mark.parametrize(
    ("episode", "expected"),
    [
        # It died before any agent ran.
        ({"ok": False, "errors": [{"type": "EnvError"}], "traces": []}, [("q", None, True)]),
        # A judge helps; its trace is not another try.
        (
            {"ok": True, "traces": [{"ok": True, "rewards": {"r": {"score": 1}}}, {"ok": True, "rewards": {}}]},
            [("q", "pass", False)],
        ),
        # The rewards of an episode that failed are not whole.
        (
            {"ok": False, "errors": [{"type": "Late"}], "traces": [{"ok": True, "rewards": {"r": {"score": 1}}}]},
            [("q", None, True)],
        ),
        (
            {"ok": True, "traces": [{"rewards": {}}, {"ok": False, "rewards": {}, "errors": [{"type": "X"}]}]},
            [("q", None, True)],
        ),
    ],
)
def test_an_episode_of_verifiers_is_one_try(
    tmp_path: Path, episode: dict[str, Any], expected: list[tuple[str, str | None, bool]]
) -> None:
    task = {"data": {"id": "q", "prompt": "2 + 2?"}}
    traces = [{"task": task, "nodes": [], "calls": [], **one} for one in episode["traces"]]
    written = {"id": "e", "env": {"id": "x"}, "task": task, **episode, "traces": traces}
    (tmp_path / "traces.jsonl").write_text(lines(written), encoding="utf-8")
    cases = read(tmp_path / "traces.jsonl", "verifiers")
    assert [
        (case.id, case.claimed if case.error is None else None, case.error is not None) for case in cases
    ] == expected


def test_the_reply_of_the_first_agent_is_the_output(tmp_path: Path) -> None:
    nodes = [{"message": one} for one in (*MESSAGES, {"role": "assistant", "content": "of a helper"})]
    trace = {"task": {"data": {"id": "q"}}, "nodes": nodes, "rewards": {"r": {"score": 1}}, "root_reply": "4"}
    (tmp_path / "traces.jsonl").write_text(lines({"env": {}, "traces": [trace]}), encoding="utf-8")
    assert [answer(case) for case in read(tmp_path / "traces.jsonl", "verifiers")] == ["4"]


@pytest.mark.parametrize("name", ["phoenix_spans.csv", "phoenix_spans.json"])
def test_spans_of_phoenix_are_cases_in_each_form(name: str) -> None:
    cases = {case.input["prompt"]: case for case in read(FILES / name, "phoenix")}
    assert {prompt: case.error is not None for prompt, case in cases.items()} == {
        "2 + 2?": False,
        "Capital of Norway?": False,
        "DIE": True,
    }
    case = cases["2 + 2?"]
    assert answer(case) == "4"
    assert case.metadata["usage"]["cache_read_tokens"] == 4
    assert case.tags["model"] == "m-1"


def test_texts_of_a_traced_client_are_those_of_its_messages(tmp_path: Path) -> None:
    attributes = {"input.value": '{"model": "m"}', "output.value": '{"id": "r"}'}
    for side, one in (("input", MESSAGES[0]), ("output", MESSAGES[1])):
        attributes |= {f"llm.{side}_messages.0.message.{field}": value for field, value in one.items()}
    span = {"context": {"span_id": "s", "trace_id": "t"}, "status_code": "OK", "attributes": attributes}
    (tmp_path / "spans.json").write_text(json.dumps([span]), encoding="utf-8")
    (case,) = read(tmp_path / "spans.json", "phoenix")
    assert (case.input["prompt"], answer(case), case.group) == ("2 + 2?", "4", "t")
    assert len(case.metadata["messages"]) == 2


def test_a_table_of_spans_has_the_evaluations_as_claims(tmp_path: Path) -> None:
    table = (
        "context.span_id,context.trace_id,name,status_code,attributes.input.value,attributes.output.value,"
        "attributes.llm.token_count.prompt,attributes.llm.token_count.completion,eval.correct.score,eval.correct.label\n"
        "s1,t1,chat,OK,2 + 2?,4,12,1,1,correct\n"
        "s2,t1,chat,ERROR,2 + 2?,,many,,,\n"
    )
    (tmp_path / "spans.csv").write_text(table, encoding="utf-8")
    cases = {case.id: case for case in read(tmp_path / "spans.csv", "phoenix")}
    assert cases["s1"].claimed == "pass"
    assert (cases["s1"].error is None, cases["s2"].error is None) == (True, False)


def hosted_items() -> list[dict[str, Any]]:
    def item(number: int, status: str, **sample: Any) -> dict[str, Any]:
        graders = [{"name": "match", "passed": status == "pass", "score": 1.0}, {"name": "match", "score": 0.5}]
        usage = {"total_tokens": 12, "completion_tokens": 2, "prompt_tokens": 10, "cached_tokens": 3}
        return {
            "id": f"outputitem_{number}",
            "object": ITEM,
            "datasource_item_id": number,
            "datasource_item": {"question": "2 + 2?"},
            "status": status,
            "results": graders,
            "sample": {"model": "m", "input": MESSAGES[:1], "output": MESSAGES[1:], "usage": usage, **sample},
        }

    died = {"code": "rate_limit", "message": "no answer"}
    return [item(1, "pass", error={"code": "", "message": ""}), item(2, "fail"), item(3, "error", error=died)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("items.jsonl", lines(*hosted_items())),
        ("items.json", json.dumps(hosted_items(), indent=2)),
        ("page.json", json.dumps({"object": "list", "data": hosted_items(), "has_more": False}, indent=2)),
        ("page.json", json.dumps({"data": hosted_items(), "has_more": True}, separators=(",", ":"))),
    ],
    ids=["lines", "list", "page", "first page"],
)
def test_items_of_a_hosted_run_keep_their_graders(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    cases = {case.id: case for case in read(tmp_path / name, "openai-evals")}
    assert {name: case.claimed for name, case in cases.items()} == {"1": "pass", "2": "fail", "3": None}
    assert {name: case.error is not None for name, case in cases.items()} == {"1": False, "2": False, "3": True}
    assert answer(cases["1"]) == "4"
    assert cases["1"].metadata["usage"]["cache_read_tokens"] == 3
    found = survey(ImportSource(tmp_path / name), importers.get("openai-evals"))
    assert found.is_partial == ('"has_more":true' in content)


def long_items() -> list[dict[str, Any]]:
    """Items with a part that has a key of pages, so long that only a part of the first is looked at."""
    sound = {"type": "input_audio", "input_audio": {"data": ["x" * 300_000], "format": "wav"}}
    items = hosted_items()
    for one in items:
        one["sample"]["input"] = [{"role": "user", "content": [sound, {"type": "text", "text": "2 + 2?"}]}]
    return items


@pytest.mark.parametrize(
    ("items", "separator"),
    [
        (hosted_items()[:1], "\n"),
        (long_items()[:1], ""),
        (long_items()[:1], "\n"),
        (long_items(), "\n"),
    ],
    ids=["one", "one long", "one long line", "long lines"],
)
def test_items_with_data_in_a_part_are_not_pages(tmp_path: Path, items: list[dict[str, Any]], separator: str) -> None:
    content = [{"type": "input_audio", "input_audio": {"data": ["aGk="], "format": "wav"}}]
    items[0]["datasource_item"] = {"question": content}
    for name, indent in (("lines.jsonl", None), ("document.json", 2)):
        if indent is not None and len(items) > 1:
            continue
        written = "".join(json.dumps(one, indent=indent) + separator for one in items)
        (tmp_path / name).write_text(written, encoding="utf-8")
        cases = read(tmp_path / name, "openai-evals")
        assert [(case.id, answer(case)) for case in cases] == [(str(n + 1), "4") for n in range(len(items))]


def test_a_list_may_end_with_the_end_of_a_line(tmp_path: Path) -> None:
    for number, ending in enumerate(("\n", "\r\n", " \n\n")):
        path = tmp_path / f"{number}.json"
        path.write_bytes((json.dumps(langfuse_traces()) + ending).encode())
        assert [case.id for case in read(path, "langfuse")] == ["a", "b", "c"]


def test_the_work_is_what_was_graded_not_what_the_grader_said() -> None:
    cases = {case.id: case for case in read(FILES / "openai_evals_graded.jsonl", "openai-evals")}
    case = cases["toy-mg.dev.1"]
    assert (case.input["prompt"], answer(case)) == ("Capital of Norway?", "I think Oslo")
    assert case.metadata["origin"]["scores"] == {"score": 0.0, "choice": "No"}
    assert case.metadata["origin"]["reasons"] == {"choice": "Reasoning: wrong.\nNo"}
    assert case.metadata["usage"]["input_tokens"] == 20
    # Its grader's answer was none of the choices, which the origin counts as the lowest score.
    assert cases["toy-mg.dev.2"].metadata["origin"]["scores"] == {"score": 0.0, "choice": "__invalid__"}


TRAJECTORY = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s-1",
    "agent": {"name": "a", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Fix it."},
        {
            "step_id": 2,
            "source": "agent",
            "message": [{"type": "text", "text": "Looking."}],
            "tool_calls": [{"tool_call_id": "c1", "function_name": "ls", "arguments": {"path": "."}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.py"}]},
            "metrics": {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4},
        },
        {"step_id": 3, "source": "agent", "message": "Done."},
    ],
    "final_metrics": {"total_prompt_tokens": 10, "total_completion_tokens": 2, "total_cached_tokens": 4},
}


def test_a_trajectory_is_read_alone_and_with_its_trial(tmp_path: Path) -> None:
    (tmp_path / "trajectory.json").write_text(json.dumps(TRAJECTORY), encoding="utf-8")
    (alone,) = read(tmp_path / "trajectory.json", "harbor")
    assert (alone.id, answer(alone), alone.claimed) == ("s-1", "Done.", None)
    assert alone.metadata["usage"]["input_tokens"] == 6
    job = tmp_path / "job"
    for name, written in (("t1", json.dumps(TRAJECTORY)), ("t2", "{cut")):
        (job / name / "agent").mkdir(parents=True)
        (job / name / "agent" / "trajectory.json").write_text(written, encoding="utf-8")
        result = {"task_name": name, "trial_name": f"{name}__1", "verifier_result": {"rewards": {"a": 1, "b": 0}}}
        (job / name / "result.json").write_text(json.dumps(result), encoding="utf-8")
    source = ImportSource(job)
    pieces = [*recognise(source).read(source)]
    assert sum(isinstance(one, ImportNote) for one in pieces) == 1
    found = {one.case.id: with_claim(one, "harbor") for one in pieces if isinstance(one, ImportedCase)}
    assert answer(found["t1"]) == "Done."
    # Of several rewards none stands for the whole.
    assert found["t1"].claimed is None


def test_trials_in_steps_have_the_messages_and_tokens_of_all_steps() -> None:
    cases = {case.id: case for case in read(FILES / "harbor", "harbor")}
    assert {name.removeprefix("org/"): (case.claimed, case.error is not None) for name, case in cases.items()} == {
        "one": ("pass", False),
        "broken": (None, True),
        "steps": ("fail", False),
        # Its mean of rewards leaves out the step that crashed.
        "stepdied": (None, True),
    }
    steps = cases["org/steps"]
    assert (steps.input["prompt"], answer(steps)) == ("Step one", "did two")
    assert steps.metadata["usage"] == {
        "input_tokens": 28,
        "cache_read_tokens": 2,
        "cache_write_tokens": 0,
        "output_tokens": 4,
    }
    assert steps.cost_micros == 1_000_000


def test_a_trajectory_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(TRAJECTORY), encoding="utf-8")
    trial = tmp_path / "job" / "t1"
    (trial / "agent").mkdir(parents=True)
    (trial / "agent" / "trajectory.json").symlink_to(outside)
    step = {"step_name": "../../..", "verifier_result": {"rewards": {"reward": 1}}}
    result = {"task_name": "t", "trial_name": "t__1", "verifier_result": {"rewards": {"reward": 1}}}
    (trial / "result.json").write_text(json.dumps(result | {"step_results": [step]}), encoding="utf-8")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY), encoding="utf-8")
    (case,) = read(tmp_path / "job", "harbor")
    assert (case.claimed, answer(case)) == ("pass", None)


def test_scores_of_langfuse_are_words_numbers_and_truth_values(tmp_path: Path) -> None:
    def trace(case_id: str, *scores: dict[str, Any]) -> dict[str, Any]:
        return {"id": case_id, "projectId": "p", "sessionId": "s", "input": "2 + 2?", "output": "4"} | {
            "scores": [*scores],
            "latency": 1.0,
        }

    rows = [
        trace("a", {"name": "ok", "value": 1, "dataType": "BOOLEAN", "comment": "right"}),
        trace("b", {"name": "word", "value": 0, "stringValue": "incorrect", "dataType": "CATEGORICAL"}),
        trace("c", {"name": "x", "value": 0.5}, {"name": "y", "value": 1}),
    ]
    path = tmp_path / "traces.jsonl"
    path.write_text(lines(*rows), encoding="utf-8")
    cases = {case.id: case for case in read(path, "langfuse")}
    assert {name: case.claimed for name, case in cases.items()} == {"a": "pass", "b": "fail", "c": None}


def test_tokens_of_langfuse_do_not_overlap() -> None:
    once = {"input_tokens": 12, "cache_read_tokens": 8, "cache_write_tokens": 0, "output_tokens": 3}
    (whole, failed) = read(FILES / "langfuse_observations.json", "langfuse")
    assert (whole.metadata["usage"], whole.cost_micros, whole.metadata["duration_ms"]) == (once, 10_000, 500)
    assert (whole.input["prompt"], answer(whole), failed.error_message) == ("2 + 2?", "4", "made to fail")
    traces = {case.id: case for case in read(FILES / "langfuse_traces.json", "langfuse")}
    # A trace has the tokens of its observations.
    assert traces["t1"].metadata["usage"] == {name: 2 * value for name, value in once.items()}
    # Two observations have a score of this name.
    assert traces["t2"].metadata["origin"]["checks"] == {"correct": True, "correct #2": False}


def test_items_of_an_experiment_have_references_and_times() -> None:
    source = ImportSource(FILES / "langfuse_items.json")
    cases = {case.id: case for case in read(source.path, "langfuse")}
    case = cases["i1"]
    assert case.input == {"question": "Capital of France?", "reference": "Paris"}
    assert (case.tags["experiment"], case.metadata["duration_ms"]) == ("capitals - 2026", 1_500)
    assert cases["i4"].metadata["origin"]["scores"] == {"note": "fine", "output": "Lima!"}
    # Its cursor leads to another page.
    assert survey(source, importers.get("langfuse")).is_partial


@pytest.mark.parametrize(
    ("given", "made", "prompt", "said"),
    [
        (["one", "two"], ["a", "b"], ["one", "two"], ["a", "b"]),
        (MESSAGES[:1], MESSAGES, "2 + 2?", "4"),
        ({"messages": MESSAGES[:1]}, MESSAGES[1], "2 + 2?", "4"),
        ("2 + 2?", {"role": "assistant", "content": [{"type": "text", "text": "4"}]}, "2 + 2?", "4"),
    ],
)
def test_values_of_langfuse_are_texts_lists_or_messages(
    tmp_path: Path, given: Any, made: Any, prompt: Any, said: Any
) -> None:
    trace = {"id": "a", "projectId": "p", "sessionId": "s", "input": given, "output": made, "scores": {"ok": [1, 0]}}
    (tmp_path / "traces.jsonl").write_text(lines(trace), encoding="utf-8")
    (case,) = read(tmp_path / "traces.jsonl", "langfuse")
    assert (case.input["prompt"], answer(case)) == (prompt, said)
    # Every value of a name is kept.
    assert case.metadata["origin"]["scores"] == {"ok": 1.0, "ok #2": 0.0}


def langfuse_traces() -> list[dict[str, Any]]:
    common = {"projectId": "p", "sessionId": "s", "htmlPath": "/project/p", "timestamp": "2026-11-16T02:00:00Z"}
    return [
        {"id": "a", **common, "input": {"question": "2 + 2?"}, "output": "4", "scores": {"correct": [True]}},
        {"id": "b", **common, "input": {"question": "2 + 3?"}, "output": "6", "scores": {"correct": [False]}},
        {"id": "c", **common, "input": {"question": "2 + 4?"}, "output": "x" * 300_000, "scores": {}},
    ]


def langfuse_csv() -> str:
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(langfuse_traces()[0])
    for row in langfuse_traces():
        table.writerow([value if isinstance(value, str) else json.dumps(value) for value in row.values()])
    return written.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("api.json", json.dumps({"data": langfuse_traces(), "meta": {"page": 1}}, separators=(",", ":"))),
        ("api.json", json.dumps({"data": langfuse_traces()[::-1]}) + "\n"),
        ("api.json", json.dumps({"meta": {"page": 1}, "data": langfuse_traces()}, indent=2)),
        ("list.json", json.dumps(langfuse_traces())),
        ("list.json", json.dumps(langfuse_traces()[::-1])),
        ("rows.jsonl", lines(*langfuse_traces())),
        ("rows.jsonl", lines(*langfuse_traces()[::-1])),
        ("rows.csv", langfuse_csv()),
    ],
    ids=["one line", "large first", "indented", "list", "large first of a list", "lines", "large first line", "csv"],
)
def test_every_export_of_langfuse_says_the_same(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    cases = {case.id: case for case in read(tmp_path / name, "langfuse")}
    assert {name: case.claimed for name, case in sorted(cases.items())} == {"a": "pass", "b": "fail", "c": None}
    assert (cases["a"].input, answer(cases["a"]), cases["a"].group) == ({"question": "2 + 2?"}, "4", "s")


def test_broken_assertions_of_promptfoo_claim_nothing(tmp_path: Path) -> None:
    def result(test: int, reason: str, **more: Any) -> dict[str, Any]:
        parts = [
            {"pass": False, "score": 0, "reason": reason, **more},
            {"pass": True, "score": 1, "reason": "Assertion passed", "assertion": {"type": "contains"}},
        ]
        return {
            "testIdx": test,
            "promptIdx": test % 2,
            "success": False,
            "score": 0.5,
            "failureReason": 1,
            "vars": {"q": f"{test // 2}", "a": "1"},
            "prompt": {"raw": "?", "label": "{{q}}"},
            "gradingResult": {"pass": False, "score": 0.5, "reason": reason, "componentResults": parts},
        }

    set_of = {"metadata": {"assertionSet": {"type": "assert-set", "assertionCount": 2}}}
    path = tmp_path / "results.jsonl"
    path.write_text(
        lines(
            result(0, "Webhook error: Request failed", assertion={"type": "webhook"}),
            result(1, "Custom function threw error: x", assertion={"type": "javascript"}),
            result(2, "Aggregate score 0.00 < 0.5 threshold", **set_of),
        ),
        encoding="utf-8",
    )
    cases = read(path, "promptfoo")
    assert [case.claimed for case in cases] == [None, None, "fail"]
    assert [case.metadata["origin"]["checks"] for case in cases] == [
        {"contains": True},
        {"contains": True},
        {"assert-set": False, "contains": True},
    ]
    # A test that is repeated has an index of its own, and equal variables.
    assert [case.group for case in cases] == ["test 0", "test 0", "test 2"]
    assert {case.tags["prompt"] for case in cases} == {"{{q}}"}


def test_results_of_promptfoo_2_are_named_by_their_variables(tmp_path: Path) -> None:
    def result(question: str, text: str, model: str = "m", **more: Any) -> dict[str, Any]:
        written = {"raw": f"{text}{question}", "display": text}
        return {"success": True, "vars": {"q": question}, "prompt": written, "provider": {"id": model}} | more

    results = [result("a", "x"), result("a", "y"), result("b", "y"), result("b", "x"), result("b", "x")]
    results += [result("b", "x", "n"), result("b", "x", description="c")]
    results += [{"success": True, "prompt": {"raw": text}} for text in ("v", "w")]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"evalId": "e", "results": {"version": 2, "results": results, "prompts": []}}))
    cases = read(path, "promptfoo")
    # The label and the place of the prompt; a digest is between them.
    names = [re.sub(r" ?[0-9a-f]{12}", "", case.id) for case in cases]
    assert names == ["a", "a/1", "b/1", "b", "b", "b/2", "c", "", "/1"]
    # The group is the first test with these variables.
    assert len({case.group for case in cases[2:7]}) == 1


def test_half_a_character_and_long_integers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    half = '"\\ud83d"'
    row = f'{{"testIdx": 0, "promptIdx": 0, "success": true, "response": {{"output": [{half}, {10**30}]}}}}'
    path.write_text(row + "\n", encoding="utf-8")
    (case,) = read(path, "promptfoo")
    assert answer(case) == ["?", str(10**30)]


def test_foreign_types_and_depths_never_end_an_import(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    for number, content in enumerate((deep, [{"type": ["text"]}, {"type": {}, "text": "4"}])):
        asked = {"prompt": "?", "completion": [{"role": "assistant", "content": content}], "reward": 1.0}
        path = tmp_path / f"{number}.jsonl"
        path.write_text(lines(asked), encoding="utf-8")
        (case,) = read(path, "verifiers")
        assert answer(case) == ("4" if number else None)
    scored = {
        "id": "a",
        "projectId": "p",
        "sessionId": "s",
        "input": "?",
        "scores": [{"name": "\ud83d", "value": True}],
    }
    (tmp_path / "scores.jsonl").write_text(lines(scored), encoding="utf-8")
    (case,) = read(tmp_path / "scores.jsonl", "langfuse")
    assert case.metadata["origin"]["checks"] == {"?": True}


@pytest.mark.parametrize(
    ("names", "numbered"),
    [
        (["a", "a", "a"], ["a", "a #2", "a #3"]),
        (["a", "a", "a #2"], ["a", "a #3", "a #2"]),
        (["a #2", "a", "a", "a #2"], ["a #2", "a", "a #3", "a #2 #2"]),
    ],
)
def test_checks_of_one_name_get_names_of_their_own(names: list[str], numbered: list[str]) -> None:
    assert number_names(names) == numbered


def test_a_failure_of_phoenix_stays_beside_a_pass_of_its_name(tmp_path: Path) -> None:
    notes = [{"name": "c", "label": label, "score": 1} for label in ("incorrect", "correct")]
    run = {"example_id": "a", "repetition_number": 1, "input": "?", "output": "4", "annotations": notes}
    (tmp_path / "runs.json").write_text(json.dumps([run]), encoding="utf-8")
    (case,) = read(tmp_path / "runs.json", "phoenix")
    assert (case.claimed, case.metadata["origin"]["checks"]) == ("fail", {"c": False, "c #2": True})


def test_a_failure_of_pydantic_evals_stays_beside_an_evaluator_that_raised(tmp_path: Path) -> None:
    found = {"name": "a", "inputs": "?", "output": "4", "task_duration": 1}
    found |= {"assertions": {"Right": {"value": False}}, "evaluator_failures": [{"name": "Right"}, {"name": "Right"}]}
    (tmp_path / "report.json").write_text(json.dumps({"cases": [found]}), encoding="utf-8")
    (case,) = read(tmp_path / "report.json", "pydantic-evals")
    assert case.claimed == "fail"
    assert case.metadata["origin"]["checks"] == {"Right": False, "Right #2": None, "Right #3": None}


def test_an_answer_of_tool_calls_alone_is_not_the_reply_of_the_provider(tmp_path: Path) -> None:
    call = {"message.tool_calls.0.tool_call.function.name": "add", "message.role": "assistant"}
    attributes = {f"llm.output_messages.0.{name}": value for name, value in call.items()}
    context = {"span_id": "s", "trace_id": "t"}
    span = {"context": context, "attributes": {**attributes, "output.value": '{"id": "r"}'}}
    (tmp_path / "spans.json").write_text(json.dumps([span]), encoding="utf-8")
    (case,) = read(tmp_path / "spans.json", "phoenix")
    assert case.output == {}
    assert case.metadata["messages"][0]["tool_calls"][0]["function"]["name"] == "add"


def test_observations_around_others_repeat_their_tokens(tmp_path: Path) -> None:
    def observation(name: str, given: int, made: int, parent: str | None = None, **more: Any) -> dict[str, Any]:
        return {"id": name, "parentObservationId": parent, "usageDetails": {"input": given, "output": made}} | more

    traces = {
        "a": [observation("1", 100, 50, type="AGENT"), observation("2", 100, 50, "1", type="GENERATION")],
        "b": [
            observation("1", 0, 0, type="SPAN"),
            observation("2", 100, 50, "1", type="GENERATION"),
            observation("3", 8, 0, "2", type="GENERATION"),
            observation("4", 4, 0, "2", type="EMBEDDING"),
        ],
        # Of an export without ids.
        "c": [{"usageDetails": {"input": 10}}, {"usageDetails": {"input": 20}}],
    }
    common = {"projectId": "p", "sessionId": "s", "input": "?", "output": "4"}
    path = tmp_path / "traces.jsonl"
    path.write_text(lines(*({"id": name, **common, "observations": one} for name, one in traces.items())))
    used = {case.id: case.metadata["usage"] for case in read(path, "langfuse")}
    assert {name: (one["input_tokens"], one["output_tokens"]) for name, one in used.items()} == {
        "a": (100, 50),
        "b": (112, 50),
        "c": (30, 0),
    }


def test_costs_and_other_units_of_langfuse_are_not_tokens(tmp_path: Path) -> None:
    costs = {"inputCost": 5, "outputCost": 7, "totalCost": 12}
    rows = [
        {"id": unit, "traceId": "t", "projectId": "p", "input": "?", "output": "4", "experimentItemId": None}
        | {"usage": {"input": 10, "output": 2, "total": 12, "unit": unit, **costs}}
        for unit in ("TOKENS", "CHARACTERS")
    ]
    (tmp_path / "observations.jsonl").write_text(lines(*rows), encoding="utf-8")
    used = {case.id: case.metadata.get("usage", {}) for case in read(tmp_path / "observations.jsonl", "langfuse")}
    assert (used["TOKENS"]["input_tokens"], used["TOKENS"]["output_tokens"]) == (10, 2)
    assert used["CHARACTERS"] == {}


@pytest.mark.parametrize(
    ("name", "row", "case_id"),
    [
        ("openai-evals", {"object": ITEM, "id": "i", "datasource_item_id": None, "status": "pass"}, "i"),
        ("verifiers", {"prompt": "?", "completion": "4", "reward": 1, "example_id": None, "id": "i"}, "i"),
        ("verifiers", {"nodes": [], "rewards": {}, "task": {"data": {"id": None, "idx": 3}}}, "3"),
        ("harbor", {**TRAJECTORY, "session_id": None, "trajectory_id": "i"}, "i"),
    ],
)
def test_an_id_that_is_null_gives_way_to_the_next(tmp_path: Path, name: str, row: dict[str, Any], case_id: str) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(row), encoding="utf-8")
    assert [case.id for case in read(tmp_path / "rows.jsonl", name)] == [case_id]


def trial(folder: Path, **result: Any) -> Case:
    """The case of a trial with this result."""
    (folder / "result.json").write_text(json.dumps({"task_name": "t", "trial_name": "t__1", **result}))
    (case,) = read(folder, "harbor")
    return case


REWARDED: dict[str, Any] = {"verifier_result": {"rewards": {"reward": 1.0}}}


def test_a_trial_that_repeats_its_steps_counts_once(tmp_path: Path) -> None:
    used = {
        "agent_result": {"n_input_tokens": 10, "n_output_tokens": 2, "cost_usd": 0.5},
        "agent_execution": {"started_at": "2026-11-16T02:00:00Z", "finished_at": "2026-11-16T02:00:01Z"},
    }
    for own, steps, times in ((used, [used, used], 2), (used, [], 1), (used, [{}], 1), ({}, [used], 1)):
        case = trial(tmp_path, **own, **REWARDED, step_results=[{**REWARDED, **one} for one in steps])
        assert case.metadata["usage"]["input_tokens"] == 10 * times
        assert (case.cost_micros, case.metadata["duration_ms"]) == (500_000 * times, 1_000 * times)


def test_a_trial_that_died_in_a_step_stays_open(tmp_path: Path) -> None:
    died = {"exception_info": {"exception_type": "Died", "exception_message": "x"}}
    for steps, claim in (([{}], None), ([REWARDED, {}], None), ([REWARDED], "pass"), ([], "pass")):
        case = trial(tmp_path, **died, **REWARDED, step_results=steps)
        assert (case.claimed, case.error is not None) == (claim, claim is None)
    assert trial(tmp_path, **REWARDED, step_results=[{}]).claimed == "pass"


def test_a_step_with_a_long_name_has_no_trajectory(tmp_path: Path) -> None:
    for name in ("x" * 300, "a\0b"):
        assert trial(tmp_path, **REWARDED, step_results=[{**REWARDED, "step_name": name}]).claimed == "pass"


@pytest.mark.parametrize("scorer", [["match"], {"name": "match"}, 5, "another", "match"])
def test_a_headline_that_names_no_scorer_leaves_the_first(tmp_path: Path, scorer: Any) -> None:
    scores = {"match": {"value": "C"}, "style": {"value": "I"}}
    log = {"version": 2, "status": "success", "eval": {"task": "t", "run_id": "r", "dataset": {}}}
    log |= {"results": {"headline": {"scorer": scorer}}, "samples": [{"id": "a", "epoch": 1, "scores": scores}]}
    (tmp_path / "log.json").write_text(json.dumps(log), encoding="utf-8")
    assert [case.claimed for case in read(tmp_path / "log.json", "inspect")] == ["pass"]
