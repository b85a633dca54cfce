"""`meruit lint` on a benchmark: each task is tried untouched, with its gold run and spoilt copies of that."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.benchmarks.benching import create_one
from tests.cli.refusals import error_of

from meruit.app import build_benchmarks, build_environments, open_store
from meruit.config import Settings
from meruit.model.access import Scope
from meruit.model.environment import SourceKind
from meruit.outcomes.store.erase import erase
from meruit.playground.host import Host
from meruit.playground.load import load_benchmark
from meruit.store.location import Location

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

ASKED = {
    "label": "asked",
    "assert": "portal-state-match",
    "correlate_by": {"resource": "prior_auth", "member": "M1"},
    "changed": "created",
    "count": 1,
    "fields": {"cpt": "72148"},
}
UNTOUCHED = {"label": "untouched", "assert": "state-unchanged"}
FREE = {"label": "free", "assert": "portal-state-match", "correlate_by": {"resource": "member", "name": "Ann"}}
SEED = {"rows": {"member": {"M1": {"name": "Ann"}, "M2": {"name": "Bob"}}}}


def task(name: str, *criteria: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "instruction": "ask", "seed": "seed.json", "criteria": [*criteria], **more}


def benchmark(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"benchmark": "desk", "tasks": list(tasks), **more}


@pytest.fixture
def lint(run: Run, write: Write) -> Run:
    write("seed.json", SEED)

    def call(*tasks: dict[str, Any], arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        write("desk.yaml", benchmark(*tasks))
        return run("lint", "desk.yaml", *arguments)

    return call


def record(row: bytes = b'{"member":"M1","cpt":"72148"}', *, agent_id: str = "gold", name: str = "t1") -> str:
    """A run that an agent did, in the folder `data`; its outcome."""

    async def done() -> str:
        store = open_store(Location(Path("data")), make=True)
        try:
            async with httpx.AsyncClient() as client, Host(Path("playgrounds")) as host:
                worlds = build_environments(host, Settings(), client, {}, for_others=False)
                benchmarks = build_benchmarks(Settings(), store, worlds)
                await benchmarks.publish("default", "me", load_benchmark("desk.yaml"))
                run = await create_one(benchmarks, "default", "me", "desk", name, scored=True, agent_id=agent_id)
                begun = (await benchmarks.start(Scope("default"), run.id)).run
                state = host.state_of(begun.playground_id or "")
                assert state is not None
                state.put(SourceKind.ROWS, "prior_auth/1", row, event="x")
                ended = await benchmarks.complete(Scope("default"), run.id)
                return ended.outcome_id or ""
        finally:
            store.close()

    return asyncio.run(done())


def test_tasks_that_ask_for_something_hold(lint: Run) -> None:
    ended = lint(task("t1", ASKED, UNTOUCHED), task("t2", ASKED))
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].split("  ")[0] == "task"
    assert [line.split()[:2] for line in lines[1:3]] == [["t1", "fail"], ["t2", "fail"]]
    assert "untouched (0)" in lines[1]
    assert "`--gold FOLDER`" in lines[-1]


def test_what_is_met_by_nothing_is_shown_whole(lint: Run) -> None:
    label = "nothing that anybody else owns was touched by anyone, whoever that was, at any time at all"
    assert f"{label} (0)\n" in lint(task("t1", ASKED, UNTOUCHED | {"label": label})).stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("benchmark: desk\ntasks: []\ntasks: []\n", "bad_document"),
        ("tasks: [\n", "bad_document"),
        (None, "unreadable_file"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_not_a_usage_error(run: Run, write: Write, text: str | None, code: str) -> None:
    if text is not None:
        write("desk.yaml", text)
    error = error_of(run, "lint", "desk.yaml", "--task", "t1")
    assert (error["code"], error["where"].partition(":")[0]) == (code, "desk.yaml")


def test_what_passes_on_nothing_is_named_and_guards_are_not(lint: Run) -> None:
    ended = lint(task("t1", ASKED | {"weight": 0.1}, FREE | {"weight": 2}, UNTOUCHED))
    assert re.search(r"warning: free: .*\[passes_on_nothing\]", ended.stdout)
    assert ended.stdout.count("[passes_on_nothing]") == 1


def test_a_task_that_passes_without_work_ends_in_one(lint: Run) -> None:
    ended = lint(task("t1", FREE), task("t2", ASKED))
    assert ended.returncode == 1
    assert re.search(r"^t1:\n  error: .*\[null_agent_passes\]", ended.stdout, re.MULTILINE)


def test_only_the_named_tasks_are_tested(lint: Run) -> None:
    tasks = (task("t1", FREE), task("t2", ASKED), task("t3", ASKED))
    report = json.loads(lint(*tasks, arguments=("--task", "t3", "--task", "t2", "--json")).stdout)
    assert (report["ok"], [one["task"] for one in report["tasks"]]) == (True, ["t2", "t3"])
    ended = lint(*tasks, arguments=("--task", "t4"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert all(part in ended.stderr for part in ("desk@1", "'t4'"))


def test_the_gold_run_is_tried_and_mutants_of_it(lint: Run) -> None:
    tasks = (task("t1", ASKED, UNTOUCHED), task("t2", ASKED))
    lint(*tasks)
    record(b'{"member":"M1","cpt":"0"}')
    record()
    record(b'{"member":"M1","cpt":"1"}')
    ended = lint(*tasks, arguments=("--gold", "data"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"^t2:\n  warning: .*\[no_gold_run\]", ended.stdout, re.MULTILINE)
    report = json.loads(lint(*tasks, arguments=("--gold", "data", "--json")).stdout)
    first, second = report["tasks"]
    assert (first["gold"], second["gold"]) == ("pass", None)
    assert first["mutants_tried"] > 5
    assert set(first["failed_by"]) == {"asked", "untouched"}
    assert first["survivors"] == []


def test_a_mistake_that_no_criterion_notices_is_named(lint: Run) -> None:
    lint(task("t1", ASKED))
    record()
    ended = lint(task("t1", ASKED), arguments=("--gold", "data"))
    # No criterion checks the rest of the environment.
    assert re.search(r"portal:member/M1 deleted.*\[mutant_passes\]", ended.stdout)


def test_the_gold_agent_can_be_named(lint: Run) -> None:
    lint(task("t1", ASKED))
    record(agent_id="careful")
    ended = lint(task("t1", ASKED), arguments=("--gold", "data"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert all(part in ended.stderr for part in ("desk", "'gold'", "--gold-agent-id"))
    report = json.loads(
        lint(task("t1", ASKED), arguments=("--gold", "data", "--gold-agent-id", "careful", "--json")).stdout
    )
    assert report["tasks"][0]["gold"] == "pass"
    ended = lint(task("t1", ASKED), arguments=("--gold", "data", "--gold-agent-id", "careful", "--tenant", "other"))
    assert ended.returncode == 2


def test_a_gold_run_that_new_criteria_fail_is_an_error(lint: Run) -> None:
    lint(task("t1", ASKED))
    record()
    ended = lint(task("t1", ASKED | {"fields": {"cpt": "99999"}}), arguments=("--gold", "data"))
    assert ended.returncode == 1
    assert re.search(r"error: .*\(fail, score 0\): asked \[gold_fails\]", ended.stdout)


def test_a_gold_run_that_was_erased_is_an_error(lint: Run) -> None:
    lint(task("t1", ASKED))
    outcome = record()
    store = open_store(Location(Path("data")))
    erase(store, "default", outcome, "asked to")
    store.close()
    ended = lint(task("t1", ASKED), arguments=("--gold", "data"))
    assert (ended.returncode, "erased" in ended.stderr) == (2, True)


def test_a_gold_folder_without_records_is_an_error(lint: Run) -> None:
    ended = lint(task("t1", ASKED), arguments=("--gold", "nowhere"))
    assert (ended.returncode, ended.stdout) == (2, "")
    record = "`meruit benchmark run desk.yaml --agent … --agent-id gold`"
    assert all(part in ended.stderr for part in ("nowhere", record))


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--input", "in.json"), "--input"),
        (("--gold", "data", "--metadata", "m.json"), "--metadata"),
        (("--allow-python-full",), "--allow-python-full"),
        (("--gold-agent-id", "x"), "--gold-agent-id"),
        (("--tenant", "x"), "--tenant"),
    ],
)
def test_options_without_effect_on_a_benchmark_are_refused(lint: Run, arguments: tuple[str, ...], option: str) -> None:
    ended = lint(task("t1", ASKED), arguments=(*arguments, "--json"))
    assert (ended.returncode, ended.stdout) == (2, "")
    error = json.loads(ended.stderr)["error"]
    assert (error["code"], error["message"].startswith(f"{option} ")) == ("usage", True)


@pytest.mark.parametrize(
    "arguments", [("--task", "x"), ("--gold-agent-id", "x"), ("--tenant", "x"), ("--allow-sources",)]
)
def test_options_of_benchmarks_are_refused_for_criteria(run: Run, write: Write, arguments: tuple[str, ...]) -> None:
    one = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
    error = error_of(run, "lint", write("c.json", {"criteria": [one]}), *arguments)
    assert (error["code"], error["message"].startswith(f"{arguments[0]} ")) == ("usage", True)


def test_a_bad_benchmark_is_refused_with_its_lines(write: Write, run: Run) -> None:
    write("desk.yaml", "benchmark: desk\ntasks:\n- id: t1\n  instruction: x\n  criteria: [{assert: nothing-like-it}]\n")
    error = error_of(run, "lint", "desk.yaml")
    assert (error["where"], error["problems"][0]["path"]) == ("desk.yaml:5", "tasks[0].criteria[0].assert")


def test_a_bad_seed_is_named(lint: Run, write: Write) -> None:
    write("seed.json", {"rows": 5})
    ended = lint(task("t1", ASKED))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert all(part in ended.stderr for part in ("seed.json", "rows"))


def test_a_task_source_that_cannot_be_read_is_an_error(lint: Run) -> None:
    own = {"drop": {"kind": "files", "at": "/nowhere/at/all"}}
    asked = {"assert": "sftp-file-present", "path": "*.txt", "settle": {"stable": 1, "within": "1s"}}
    ended = lint(task("t1", asked, sources=own))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "/nowhere/at/all" in ended.stderr
    ended = lint(task("t1", asked, sources=own), arguments=("--allow-sources",))
    assert ended.returncode == 1
    assert re.search(r"error: sftp-file-present: drop .*\[check_error\]", ended.stdout)


def test_names_cannot_write_on_the_terminal(lint: Run) -> None:
    ended = lint(task("t1", FREE | {"label": "x\x1b[2J\nall is well"}))
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    assert "all is well" not in ended.stdout.splitlines()
