"""A portal benchmark in its origin's shape, converted: judged as the origin judges, and collateral is noticed."""

import copy
import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jmespath
import pytest

from meruit import VerificationEngine
from meruit.documents.authoring import parse_benchmark
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.task import Benchmark
from meruit.model.verdict import Verdict

FOLDER = Path(__file__).parents[2] / "examples" / "portal-conversion"
ENGINE = VerificationEngine()
Json = dict[str, Any]
START: Json = {
    "appealActions": {"submittedAttachmentCount": 0, "submitted": []},
    "notes": {"MEM88771": {}},
    "tasks": [{"id": "t1", "status": "open"}],
}
APPEAL = {"member": "MEM88771", "reason": "Six weeks of therapy did not help."}
DONE: Json = {
    "appealActions": {"submittedAttachmentCount": 1, "submitted": [APPEAL]},
    "notes": {"MEM88771": {"reference": "4471"}},
    "tasks": [{"id": "t1", "status": "done"}],
}


@cache
def origin() -> Json:
    found: Json = json.loads((FOLDER / "origin.json").read_text())
    return found


@cache
def converted() -> tuple[Benchmark, list[str]]:
    sys.path.insert(0, str(FOLDER))
    try:
        written, left_out = import_module("convert").convert(origin())
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("convert", None)
    return parse_benchmark(written), left_out


def state(full: Json, profile: str = "clerk") -> EnvironmentState:
    items = {"full_state": full, "profile": {"name": profile}}
    return {
        "portal": Snapshot(SourceKind.ROWS, [make_item(key, json.dumps(one).encode()) for key, one in items.items()])
    }


def changed(path: list[Any], value: object) -> Json:
    full = copy.deepcopy(DONE)
    holder: Any = full
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return full


STATES = {
    "untouched": START,
    "done": DONE,
    "no document": changed(["appealActions", "submittedAttachmentCount"], 0),
    "number as text": changed(["appealActions", "submittedAttachmentCount"], "1"),
    "another member": changed(["appealActions", "submitted", 0], {**APPEAL, "member": "MEM1"}),
    "two appeals": changed(["appealActions", "submitted"], [APPEAL, {**APPEAL, "member": "MEM1"}]),
    "no reason": changed(["appealActions", "submitted", 0], {"member": "MEM88771"}),
    "reference as number": changed(["notes", "MEM88771", "reference"], 4471),
    "still open": changed(["tasks", 0, "status"], "open"),
}


def passes_at_origin(task: Json, full: Json) -> bool:
    """The judge of the origin: every query gives exactly what is expected."""
    return all(
        jmespath.search(one["query"], {"full_state": full}) == one["expected_value"]
        for one in task["evals"]
        if one["type"] == "jmespath"
    )


def verdict(task_id: str, after: EnvironmentState) -> Verdict:
    task = converted()[0].task(task_id)
    assert task is not None
    ready = ENGINE.compile(task.success_criteria)
    return ENGINE.verify_sync("r", as_work_part(state(START)), as_work_part(after), ready, {}).verdict


@pytest.mark.parametrize("name", STATES)
def test_the_verdict_is_that_of_the_origin(name: str) -> None:
    for task in origin()["tasks"]:
        expected = passes_at_origin(task, STATES[name])
        assert (verdict(task["id"], state(STATES[name])) is Verdict.PASS) is expected, task["id"]


def test_a_change_beside_the_task_passes_at_the_origin_only() -> None:
    for task in origin()["tasks"]:
        assert passes_at_origin(task, DONE)
        assert verdict(task["id"], state(DONE, profile="renamed")) is Verdict.FAIL


def test_what_no_state_decides_is_left_out_and_named() -> None:
    assert [one.partition(":")[0] for one in converted()[1]] == ["appeal-denied-mri"]


def test_a_result_that_must_contain_a_value_is_asked_for_it() -> None:
    converted()
    one = {"type": "jmespath", "description": "d", "query": "full_state.note", "contains_value": '44`7"1'}
    sys.path.insert(0, str(FOLDER))
    try:
        written, _ = import_module("convert").convert(
            {"name": "n", "tasks": [{"id": "t", "goal": "g", "evals": [one]}]}
        )
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("convert", None)
    (criterion, _) = written["tasks"][0]["criteria"]
    expected = {'a 44`7"1': True, "a 4471": False, None: False}
    for note, contains in expected.items():
        assert jmespath.search(criterion["query"], {"full_state": {"note": note}}) is contains
    assert jmespath.search(criterion["query"], {"full_state": {"note": ['44`7"1']}}) is True
