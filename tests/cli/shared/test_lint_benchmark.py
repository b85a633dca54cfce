"""`meruit lint` on a benchmark: each task is tried untouched, with its gold run and spoilt copies of that."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.benchmarks.benching import create_one

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
    assert [line.split()[:2] for line in lines[1:3]] == [["t1", "partial"], ["t2", "fail"]]
    assert "untouched (1)" in lines[1]
    assert "t1:\n  warning: an agent that does nothing earns a score of 0.5; give" in ended.stdout
    assert lines[-1].startswith("only an agent that does nothing was tried, and it does not pass; `--gold FOLDER`")


def test_what_is_met_by_nothing_is_shown_whole(lint: Run) -> None:
    label = "nothing that anybody else owns was touched by anyone, whoever that was, at any time at all"
    assert f"{label} (1)\n" in lint(task("t1", ASKED, UNTOUCHED | {"label": label})).stdout


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("benchmark: desk\ntasks: []\ntasks: []\n", "line 3"), ("tasks: [\n", "line "), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_parsed_is_not_said_to_hold_no_tasks(
    run: Run, write: Write, text: str | None, complaint: str
) -> None:
    if text is not None:
        write("desk.yaml", text)
    ended = run("lint", "desk.yaml", "--task", "t1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "desk.yaml" in ended.stderr
    assert complaint in ended.stderr
    assert "has no `tasks`" not in ended.stderr


def test_what_passes_on_nothing_is_named_and_guards_are_not(lint: Run) -> None:
    ended = lint(task("t1", ASKED | {"weight": 0.1}, FREE | {"weight": 2}, UNTOUCHED))
    assert "warning: free: passes on the untouched world: a point for doing nothing [passes_on_nothing]" in ended.stdout
    assert "untouched: passes" not in ended.stdout


def test_a_task_that_nobody_need_do_ends_in_one(lint: Run) -> None:
    ended = lint(task("t1", FREE), task("t2", ASKED))
    assert ended.returncode == 1
    assert "t1:\n  error: an agent that does nothing passes [null_agent_passes]" in ended.stdout
    assert ended.stdout.endswith("the tasks do not hold\n")


def test_only_the_tasks_that_are_named_are_tried(lint: Run) -> None:
    tasks = (task("t1", FREE), task("t2", ASKED), task("t3", ASKED))
    report = json.loads(lint(*tasks, arguments=("--task", "t3", "--task", "t2", "--json")).stdout)
    assert (report["ok"], [one["task"] for one in report["tasks"]]) == (True, ["t2", "t3"])
    ended = lint(*tasks, arguments=("--task", "t4"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "desk@1 has no task 't4'" in ended.stderr


def test_the_gold_run_is_tried_and_mutants_of_it(lint: Run) -> None:
    tasks = (task("t1", ASKED, UNTOUCHED), task("t2", ASKED))
    lint(*tasks)
    record(b'{"member":"M1","cpt":"0"}')
    record()
    record(b'{"member":"M1","cpt":"1"}')
    ended = lint(*tasks, arguments=("--gold", "data"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("\nthe tasks hold\n")
    assert "t2:\n  warning: no gold run of it is recorded, so no mutants were tried [no_gold_run]" in ended.stdout
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
    # Nothing looks after the rest of the world.
    assert "portal:member/M1 deleted; add a criterion that notices [mutant_passes]" in ended.stdout


def test_whose_runs_are_gold_can_be_said(lint: Run) -> None:
    lint(task("t1", ASKED))
    record(agent_id="careful")
    ended = lint(task("t1", ASKED), arguments=("--gold", "data"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "data holds no run of these tasks of desk that passed by 'gold'; --gold-agent-id names whose" in ended.stderr
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
    assert "error: the gold run does not pass (fail, score 0): asked [gold_fails]" in ended.stdout


def test_a_gold_run_that_was_erased_is_told(lint: Run) -> None:
    lint(task("t1", ASKED))
    outcome = record()
    store = open_store(Location(Path("data")))
    erase(store, "default", outcome, "asked to")
    store.close()
    ended = lint(task("t1", ASKED), arguments=("--gold", "data"))
    assert (ended.returncode, "was erased; record another" in ended.stderr) == (2, True)


def test_records_that_are_none_are_told(lint: Run) -> None:
    ended = lint(task("t1", ASKED), arguments=("--gold", "nowhere"))
    assert (ended.returncode, ended.stdout) == (2, "")
    record = "`meruit benchmark run desk.yaml --agent … --agent-id gold` makes them"
    assert ended.stderr == f"error: nowhere holds no records yet; {record}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--input", "in.json"), "--input does not fit a benchmark, whose tasks bring their own world"),
        (("--gold", "data", "--metadata", "m.json"), "--metadata does not fit a benchmark"),
        (("--allow-python-full",), "--allow-python-full does not fit a benchmark"),
        (("--gold-agent-id", "x"), "--gold-agent-id belongs to --gold FOLDER"),
        (("--tenant", "x"), "--tenant belongs to --gold FOLDER"),
    ],
)
def test_options_that_mean_nothing_to_a_benchmark_are_refused(
    lint: Run, arguments: tuple[str, ...], words: str
) -> None:
    ended = lint(task("t1", ASKED), arguments=arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr


@pytest.mark.parametrize(
    "arguments", [("--task", "x"), ("--gold-agent-id", "x"), ("--tenant", "x"), ("--allow-sources",)]
)
def test_options_of_benchmarks_mean_nothing_to_criteria(run: Run, write: Write, arguments: tuple[str, ...]) -> None:
    one = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
    ended = run("lint", write("c.json", {"criteria": [one]}), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{arguments[0]} is for benchmarks; this file has no `tasks`" in ended.stderr


def test_a_benchmark_that_cannot_be_read_is_told_with_its_lines(lint: Run, write: Write, run: Run) -> None:
    write("desk.yaml", "benchmark: desk\ntasks:\n- id: t1\n  instruction: x\n  criteria: [{assert: nothing-like-it}]\n")
    ended = run("lint", "desk.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "desk.yaml: line 5, tasks[0].criteria[0].assert: no check is named" in ended.stderr


def test_a_seed_that_cannot_be_sown_is_told(lint: Run, write: Write) -> None:
    write("seed.json", {"rows": 5})
    ended = lint(task("t1", ASKED))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "seed.json" in ended.stderr
    assert "expected a mapping" in ended.stderr


def test_a_source_of_ones_own_that_cannot_be_read_is_an_error(lint: Run) -> None:
    own = {"drop": {"kind": "files", "at": "/nowhere/at/all"}}
    asked = {"assert": "sftp-file-present", "path": "*.txt", "settle": {"stable": 1, "within": "1s"}}
    ended = lint(task("t1", asked, sources=own))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "/nowhere/at/all may not be read, only sources that are configured" in ended.stderr
    ended = lint(task("t1", asked, sources=own), arguments=("--allow-sources",))
    assert ended.returncode == 1
    assert "error: sftp-file-present: drop could not be read" in ended.stdout
    assert "[check_error]" in ended.stdout


def test_names_cannot_write_on_the_terminal(lint: Run) -> None:
    ended = lint(task("t1", FREE | {"label": "x\x1b[2J\nthe tasks hold"}))
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    assert "the tasks hold" not in ended.stdout.splitlines()
