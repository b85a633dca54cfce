"""`meruit benchmark`: agents run, judged by what they left, judged again, given up."""

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from tests.at_hand import program
from tests.cli.clinic import BOOK, CANARY, CLINIC, GOOD, RETIRE, agent, clinic, measured, playgrounds, put
from tests.cli.refusals import error_of

from meruit.app import build_json_schema
from meruit.benchmarks import agent_process as running
from meruit.benchmarks import rollouts
from meruit.benchmarks.rollouts import RolloutState
from meruit.cli import main
from meruit.cli.shared.benchmark_session import open_session
from meruit.cli.terminal import StoreAddress
from meruit.cli.views.benchmark import Progress
from meruit.errors import Unreachable
from meruit.model.task import Reveal
from meruit.model.task_run import RunStatus, TaskRun
from meruit.playground.environment import PlaygroundProvider
from meruit.playground.state import PlaygroundState
from meruit.registry import checks
from meruit.sources.retry import BackoffSchedule

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)


@pytest.fixture(scope="module")
def clinic_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one run, whose agent books, forgets to retire, and crashes; both tasks tried twice."""
    folder = tmp_path_factory.mktemp("day")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL", "MERUIT_CONFIG"):
            patch.delenv(name, raising=False)
        benchmark, command = clinic(), agent("print('hello from', task)\nif task == 'book': book(); sys.exit(7)\n")
        arguments = ["benchmark", "run", benchmark, "--agent", command, "--repeats", "2", "--parallel", "2"]
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([*arguments, "--agent-id", "ada"])
    (folder / "out").write_text(out.getvalue())
    (folder / "err").write_text(err.getvalue())
    (folder / "code").write_text(str(int(ended.value.code or 0)))
    return folder


class Day:
    """That run, in a copy of its own."""

    def __init__(self, run: Run, folder: Path) -> None:
        shutil.copytree(folder / "meruit-data", "meruit-data")
        self.out, self.err, self.code = ((folder / name).read_text() for name in ("out", "err", "code"))
        self.id: str = json.loads(run("benchmark", "list", "--json").stdout)["benchmark_runs"][0]["id"]
        self.run = run

    def show(self, run_id: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("benchmark", "show", run_id or self.id, "--json").stdout)
        return found


@pytest.fixture
def day(run: Run, clinic_day: Path) -> Day:
    return Day(run, clinic_day)


# What a run comes to.


def test_the_world_decides_and_not_how_the_agent_ends(day: Day) -> None:
    assert day.code == "1"
    assert day.out.splitlines() == [
        "task    attempts  verdict  score  axes",
        "book    2         pass ×2  1      correctness 1, safety 1",
        "retire  2         fail ×2  0      –",
        "",
        "verdict partial, score 0.5",
        "pass rate 0.5 (95 % interval 0.09 to 0.91) over 4 task runs",
        "score interval 0.00 to 1.00 (95 %)",
        "worst task retire, score 0",
        "coverage 1",
        "pass@k 1: 0.50, 2: 0.50",
        "pass^k 1: 0.50, 2: 0.50",
    ]


def test_each_task_run_that_ends_is_told_at_once(day: Day) -> None:
    first, *lines = day.err.splitlines()
    assert first == f"note: {day.id}: clinic@1, 4 task runs, recorded in meruit-data"
    assert [line[:6] for line in lines[:4]] == ["[1/4] ", "[2/4] ", "[3/4] ", "[4/4] "]
    assert {line[6:].partition(" (")[0] for line in lines[:4]} <= {"book: pass 1", "retire: fail 0", "book", "retire"}
    assert "\r" not in day.err


def test_what_an_agent_said_and_how_it_ended_is_kept(day: Day) -> None:
    runs = {(one["task"], one["attempt"]): one for one in day.show()["task_runs"]}
    assert {place: one["agent"]["exit_code"] for place, one in runs.items()} == {
        ("book", 1): 7,
        ("book", 2): 7,
        ("retire", 1): 0,
        ("retire", 2): 0,
    }
    booked = runs["book", 1]
    assert Path(booked["agent"]["log"]).read_text() == "hello from book\n"
    assert f"exit code 7; log: {booked['agent']['log']}" in day.err
    assert (booked["agent_id"], booked["scored"]) == ("ada", True)


def test_worlds_that_nobody_needs_any_more_are_gone(day: Day) -> None:
    assert day.show()["benchmark_run"]["ended"] is True
    assert playgrounds() == []
    assert not list(Path("meruit-data/playgrounds").glob("brn_*"))


def test_a_run_is_shown_with_its_tasks_and_a_task_run_with_its_criteria(day: Day) -> None:
    told = day.run("benchmark", "show", day.id).stdout
    for line in (f"run         {day.id}", "benchmark   clinic@1", "agent       ada", "counts      yes"):
        assert line in told
    assert "verdict partial, score 0.5" in told
    one = next(one for one in day.show()["task_runs"] if one["task"] == "retire")
    assert f"{one['id']}  retire  {one['attempt']}        completed  fail" in told
    told = day.run("benchmark", "show", one["id"]).stdout
    assert "task        clinic@1/retire, attempt 1" in told
    assert "inactive   fhir-resource-state  1       failed  0      0 found; " in told
    assert "playground" not in told
    assert "fieldResults" not in told
    assert '"fieldResults": []' in day.run("benchmark", "show", one["id"], "--evidence").stdout
    whole = day.show(one["id"])
    assert (whole["task_run"]["verdict"], whole["criteria"][0]["evidence"]["considered"]) == ("fail", 1)


def test_a_run_that_did_not_pass_suggests_what_to_show(day: Day) -> None:
    first = next(one for one in day.show()["task_runs"] if one["task"] == "retire")
    look = f"`meruit benchmark show {first['id']}`"
    assert look in day.err
    assert look in day.run("benchmark", "show", day.id).stderr
    told = day.run("benchmark", "show", day.id, "retire").stdout
    assert told.startswith(day.run("benchmark", "show", first["id"]).stdout)
    assert told.count("clinic@1/retire, attempt") == 2
    found = json.loads(day.run("benchmark", "show", day.id, "retire", "--json").stdout)
    assert [one["task_run"]["attempt"] for one in found["task_runs"]] == [1, 2]
    error = error_of(day.run, "benchmark", "show", day.id, "retyre")
    assert (error["code"], "'retire'" in error["message"]) == ("usage", True)


def test_what_does_not_fit_is_shown_field_by_field(run: Run) -> None:
    booked, *others = BOOK["criteria"]
    fields = {"status": {"in": ["booked", "arrived"]}, "minutesDuration": {"equals": 30, "must": True}}
    asked = {**booked, "label": "booked", "fields": fields, "required": True}
    spoken = {"label": "called", "assert": "voice-transcript", "contains": ["thank you"], "weight": 0.1}
    task = {**BOOK, "criteria": [asked, spoken, *others]}
    found = measured(run, clinic(task), code="book(45)\n", expect=1)
    told = run("benchmark", "show", found["benchmark_run"]["id"], "book").stdout
    assert "\nbooked (required):\npath                        expected  found\n" in told
    assert "\nminutesDuration (required)  30        45\n" in told
    assert "\nstatus " not in told.partition("booked (required):")[2]
    assert "\ncalled:\nphrase     found\nthank you  false" in told
    assert "  other  " in told


def test_one_task_that_passes_is_told_without_what_says_nothing(run: Run) -> None:
    ended = run("benchmark", "run", clinic(BOOK), "--agent", agent(GOOD))
    assert "over 1 task run\n" in ended.stdout
    assert "clinic@1, 1 task run, recorded" in ended.stderr
    assert "next:" not in ended.stderr
    for word in ("worst task", "score interval", "__default__"):
        assert word not in ended.stdout


def test_runs_and_benchmarks_are_listed(day: Day) -> None:
    heading, row = day.run("benchmark", "list").stdout.splitlines()
    assert heading.split()[0] == "run"
    assert row.split() == [day.id, *row.split()[1:3], "clinic@1", "ada", "4", "partial", "0.5"]
    assert json.loads(day.run("benchmark", "list", "--benchmark", "other", "--json").stdout)["benchmark_runs"] == []
    heading, row = day.run("benchmark", "list", "--published").stdout.splitlines()
    assert (row.split()[0], row.split()[-2:]) == ("clinic@1", ["2", "–"])
    assert "--before" in day.run("benchmark", "list", "--limit", "1").stderr
    assert day.run("benchmark", "list", "--published", "--benchmark", "x").returncode == 2


def test_an_outcome_can_be_exported_and_checked(day: Day) -> None:
    outcome = day.show()["task_runs"][0]["outcome_id"]
    assert day.run("audit", "export", outcome, "-o", "bundle.zip").returncode == 0
    ended = day.run("audit", "verify", "bundle.zip")
    assert (ended.returncode, "2 of 2" in ended.stdout) == (0, True)


def test_a_good_agent_passes(run: Run) -> None:
    found = measured(run, clinic(), "--parallel", "2", "--practice")
    result = found["benchmark_run"]["result"]
    assert (result["verdict"], result["score"], result["coverage"]) == ("pass", 1.0, 1.0)
    assert [one["scored"] for one in found["task_runs"]] == [False, False]
    # Practice publishes nothing, so the version stays free.
    assert json.loads(run("benchmark", "list", "--published", "--json").stdout)["benchmarks"] == []
    assert found["benchmark_run"]["benchmark"].startswith("clinic.practice-")
    assert found["task_runs"][0]["axes"]["correctness"]["score"] == 1.0


def test_only_some_tasks_may_be_meant_and_luck_shows_over_repeats(run: Run) -> None:
    lucky = "if not os.path.exists('done'): open('done', 'w').close(); book()\n"
    found = measured(run, clinic(), "--task", "book", "--repeats", "2", code=lucky, expect=1)
    result = found["benchmark_run"]["result"]
    assert [one["task"] for one in found["task_runs"]] == ["book", "book"]
    assert [one["verdict"] for one in found["task_runs"]] == ["pass", "fail"]
    assert (result["pass_at_k"], result["pass_hat_k"]) == ({"1": 0.5, "2": 1.0}, {"1": 0.5, "2": 0.0})


def test_a_published_benchmark_is_run_by_its_name(run: Run) -> None:
    assert run("benchmark", "publish", clinic(BOOK)).stdout == "clinic@1\n"
    assert run("benchmark", "publish", clinic(BOOK)).stdout == "clinic@1\n"
    view = json.loads(run("benchmark", "publish", clinic(BOOK, version=3), "--json").stdout)
    assert (view["benchmark"], view["version"], view["tasks"]) == ("clinic", 3, 1)
    assert measured(run, "clinic")["benchmark_run"]["version"] == 3
    ended = run("benchmark", "run", "clinic@2", "--agent", agent(GOOD))
    assert (ended.returncode, ended.stderr) == (2, "error: no benchmark clinic@2\n")


def test_the_same_version_with_other_content_is_refused(day: Day) -> None:
    changed = clinic({**BOOK, "instruction": "Book an hour."})
    for command in (("run", changed, "--agent", agent(GOOD)), ("publish", changed)):
        message = error_of(day.run, "benchmark", *command)["message"]
        assert all(part in message for part in ("clinic@1", "`version: 2`"))
    assert len(json.loads(day.run("benchmark", "list", "--json").stdout)["benchmark_runs"]) == 1


# What an agent is told, and what not.


def test_an_agent_knows_its_task_and_nothing_of_how_it_is_judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("vault").mkdir()
    monkeypatch.setenv("MERUIT_DATA", str(Path("vault").resolve()))
    monkeypatch.setenv("MERUIT_CONFIG", "")
    monkeypatch.setenv("API_KEY", "needed")
    tell = (
        "told = json.load(open(os.environ['MERUIT_TASK']))\n"
        "print(json.dumps({'env': dict(os.environ), 'argv': sys.argv, 'task': told, 'in': sys.stdin.read()}))\n"
    )
    (one,) = measured(run, clinic(BOOK), code=tell, expect=1)["task_runs"]
    told = Path(one["agent"]["log"]).read_text()
    assert Path(one["agent"]["log"]).is_relative_to(Path("vault").resolve())
    for secret in (CANARY, "vault", "minutesDuration", "state-unchanged", "correctness"):
        assert secret not in told
    heard = json.loads(told)
    ours = {name: value for name, value in heard["env"].items() if name.startswith("MERUIT_")}
    assert sorted(ours) == [
        *("MERUIT_CALL_URL", "MERUIT_CDS_URL", "MERUIT_DEADLINE", "MERUIT_FAX_URL", "MERUIT_FHIR_URL"),
        *("MERUIT_INBOX_URL", "MERUIT_INSTRUCTION", "MERUIT_MLLP"),
        *("MERUIT_PLAYGROUND", "MERUIT_PORTAL_URL", "MERUIT_SECRET", "MERUIT_SFTP", "MERUIT_TASK"),
        *("MERUIT_TASK_ID", "MERUIT_TASK_RUN_ID", "MERUIT_X12_URL"),
    ]
    assert heard["task"] | {"endpoints": None} == {
        "task": "book",
        "task_run_id": one["id"],
        "instruction": BOOK["instruction"],
        "deadline": one["deadline"],
        "playground": one["playground_id"],
        "secret": ours["MERUIT_SECRET"],
        "endpoints": None,
    }
    assert heard["task"]["endpoints"]["fhir"] == ours["MERUIT_FHIR_URL"]
    assert (heard["env"]["API_KEY"], heard["argv"][1:], heard["in"]) == ("needed", ["book"], "")
    assert not Path(ours["MERUIT_TASK"]).exists()


# Time, and ends that nobody planned.


def test_a_task_that_is_not_done_in_time_counts_nothing(run: Run) -> None:
    hasty = {**BOOK, "time_limit_s": 1}
    found = measured(run, clinic(hasty), code="book(); time.sleep(60)\n", expect=1)
    (one,) = found["task_runs"]
    assert (one["status"], one["verdict"], one["agent"]["exit_code"]) == ("timed_out", None, None)
    assert (found["benchmark_run"]["result"]["timed_out"], found["benchmark_run"]["result"]["verdict"]) == (1, "fail")
    assert playgrounds() == []


def test_an_agent_that_is_stopped_earlier_is_judged_by_what_it_did(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = running._wait_for_exit

    async def once_it_has_booked(process: asyncio.subprocess.Process, within_s: float) -> int | None:
        assert within_s == 1.5
        while not os.path.exists("booked"):  # noqa: ASYNC110, ASYNC240, PTH110 - the agent is another process
            await asyncio.sleep(0.02)
        return await ended(process, 0.0)

    monkeypatch.setattr(running, "_wait_for_exit", once_it_has_booked)
    slow = "book(); Path('booked').touch(); time.sleep(60)\n"
    found = measured(run, clinic(BOOK), "--timeout", "1.5", code=slow)
    (one,) = found["task_runs"]
    assert (one["status"], one["verdict"], one["agent"]["exit_code"]) == ("completed", "pass", None)


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [program(), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def waited_for(path: str) -> str:
    for _ in range(600):
        with contextlib.suppress(FileNotFoundError):
            if text := Path(path).read_text():
                return text
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def three_tasks() -> str:
    return clinic(BOOK, *({**RETIRE, "id": name} for name in ("slow", "never")))


def one_ended_and_the_last_can_go_on(run: Run, pid: int, err: str) -> None:
    assert re.search(r"^note: interrupted: 1 of 3 task runs .*, 0 cancelled, 2 ", err, re.MULTILINE)
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    listed = json.loads(run("benchmark", "list", "--json").stdout)["benchmark_runs"]
    assert listed[0]["counts"] == {"completed": 1, "pending": 2}
    assert playgrounds() == []
    go_on = f"`meruit benchmark resume {listed[0]['id']} --agent …`"
    assert go_on in err
    assert go_on in run("benchmark", "show", listed[0]["id"]).stderr
    ended = run("benchmark", "resume", listed[0]["id"], "--agent", agent("retire()\n"), "--json")
    found = json.loads(ended.stdout)
    assert {one["task"]: one["status"] for one in found["task_runs"]} == {
        "book": "completed",
        "slow": "completed",
        "never": "completed",
    }
    assert found["benchmark_run"]["result"]["runs"] == 3
    assert found["benchmark_run"]["ended"] is True
    assert playgrounds() == []


def test_an_interruption_keeps_what_has_ended_and_leaves_what_has_not_begun(run: Run) -> None:
    slow = "book() if task == 'book' else (Path('pid').write_text(str(os.getpid())), time.sleep(60))\n"
    with started("benchmark", "run", three_tasks(), "--agent", agent(slow)) as process:
        pid = int(waited_for("pid"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    one_ended_and_the_last_can_go_on(run, pid, err)


def test_sigterm_is_an_interruption(run: Run) -> None:
    wish = (
        "if task == 'book': book(); sys.exit()\n"
        "Path('pid').write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), 15)\n"
        "time.sleep(60)\n"
    )
    ended = run("benchmark", "run", three_tasks(), "--agent", agent(wish))
    assert (ended.returncode, ended.stdout) == (130, "")
    one_ended_and_the_last_can_go_on(run, int(Path("pid").read_text()), ended.stderr)


def test_a_run_that_is_cancelled_meanwhile_ends(run: Run) -> None:
    give_up = (
        "import subprocess\n"
        "run_id = next(Path('meruit-data/logs').iterdir()).name\n"
        "subprocess.run([sys.executable, '-m', 'meruit', 'benchmark', 'cancel', run_id], check=True)\n"
    )
    found = measured(run, clinic(), code=give_up, expect=3)
    assert [one["status"] for one in found["task_runs"]] == ["cancelled", "cancelled"]
    assert found["benchmark_run"]["result"]["runs"] == 0
    told = run("benchmark", "show", found["benchmark_run"]["id"])
    assert "verdict inconclusive, score –\n" in told.stdout
    assert "pass rate" not in told.stdout
    assert " benchmark run clinic@1 --task book --task retire --agent …`" in told.stderr
    assert run("benchmark", "list").stdout.split()[-1] == "–"
    assert playgrounds() == []


async def _left_behind() -> str:
    """A run as a process leaves it that is killed: one task under way, one not begun."""
    from meruit.playground.load import load_benchmark

    with open_session(StoreAddress(None, None, "default"), None, make=True) as at:
        await at.benchmarks.publish("default", "me", load_benchmark(clinic()))
        created, runs = await at.benchmarks.create("default", "me", "clinic")
        async with at.open_playgrounds(at.home_of_run(created.id)) as benchmarks:
            await benchmarks.start(at.scope, runs[0].id)
    return created.id


def test_a_run_whose_process_was_killed_continues(run: Run) -> None:
    left = asyncio.run(_left_behind())
    assert len(playgrounds()) == 1
    shown = run("benchmark", "show", left).stdout
    assert ": 1 pending, 1 running" in shown
    ended = run("benchmark", "resume", left, "--agent", agent(GOOD))
    assert (ended.returncode, "1 task run " in ended.stderr) == (0, True)
    assert "verdict pass" in ended.stdout
    assert "book" in ended.stdout
    assert playgrounds() == []
    assert left in error_of(run, "benchmark", "resume", left, "--agent", agent(GOOD))["message"]


def test_a_run_is_cancelled_with_its_environments(run: Run) -> None:
    left = asyncio.run(_left_behind())
    assert run("benchmark", "cancel", left).stdout.startswith("2 cancelled, 0 ")
    assert playgrounds() == []
    assert json.loads(run("benchmark", "cancel", left, "--json").stdout) == {"cancelled": []}
    one = json.loads(run("benchmark", "show", left, "--json").stdout)["task_runs"][0]
    assert run("benchmark", "cancel", one["id"]).stdout.startswith("0 cancelled, 1 ")
    assert "status      cancelled" in run("benchmark", "show", one["id"]).stdout


# Nobody could tell.


def test_an_environment_that_could_not_be_read_is_read_again(run: Run) -> None:
    Path("drop").mkdir()
    task = {
        "id": "file",
        "instruction": "Write report.txt.",
        "sources": {"drop": {"kind": "files", "at": str(Path("drop").resolve())}, "ehr": "fhir"},
        "criteria": [{"label": "written", "assert": "sftp-file-present", "path": "report.txt", "count": 1}],
    }
    hide = "Path('drop/report.txt').write_text('x'); os.rename('drop', 'hidden')\n"
    found = measured(run, clinic(task), "--allow-sources", code=hide, expect=3)
    (one,) = found["task_runs"]
    assert (found["benchmark_run"]["result"]["verdict"], one["verdict"]) == ("inconclusive", "inconclusive")
    assert len([path for path in playgrounds() if path.name == one["playground_id"]]) == 1
    told = run("benchmark", "show", found["benchmark_run"]["id"]).stderr
    assert re.search(r"^note: file: written .*: drop ", told, re.MULTILINE)
    assert re.search(rf"^note: .* benchmark recheck {one['id']} --reread`", told, re.MULTILINE)
    assert f"playground  {one['playground_id']}\n" in run("benchmark", "show", one["id"]).stdout
    again = ("benchmark", "recheck", one["id"], "--allow-sources")
    assert run(*again, "--reread").returncode == 3
    Path("hidden").rename("drop")
    # Uses the recorded evidence; nothing is read again.
    assert run(*again).returncode == 3
    ended = run(*again, "--reread")
    assert (ended.returncode, "verdict pass, score 1" in ended.stdout) == (0, True)
    assert "playground " not in ended.stdout
    assert error_of(run, *again, "--reread")["code"] == "wrong_state"


def test_an_environment_that_does_not_answer_defers_its_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "RETRY", BackoffSchedule(tries=3, first_wait_s=0.0))
    prepare = PlaygroundProvider.prepare

    async def refuse(self: PlaygroundProvider, benchmark: Any, task: Any) -> Any:
        if task.id == "book":
            raise Unreachable("no room left")
        return await prepare(self, benchmark, task)

    monkeypatch.setattr(PlaygroundProvider, "prepare", refuse)
    ended = run("benchmark", "run", clinic(), "--agent", agent(GOOD))
    assert ended.returncode == 3
    assert re.search(r"^\[1/2\] book: pending; .*: no room left$", ended.stderr, re.MULTILINE)
    assert "note: 1 task run " in ended.stderr
    assert ": 1 completed, 1 pending" in ended.stdout
    (found,) = json.loads(run("benchmark", "list", "--json").stdout)["benchmark_runs"]
    assert re.search(rf"^note: .* benchmark resume {found['id']} --agent …`", ended.stderr, re.MULTILINE)
    monkeypatch.setattr(PlaygroundProvider, "prepare", prepare)
    assert run("benchmark", "resume", found["id"], "--agent", agent(GOOD)).returncode == 0


def test_an_environment_that_fails_cancels_its_own_run_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = PlaygroundProvider.prepare

    async def break_down(self: PlaygroundProvider, benchmark: Any, task: Any) -> Any:
        if task.id == "book":
            raise OSError(28, "No space left on device")
        return await prepare(self, benchmark, task)

    monkeypatch.setattr(PlaygroundProvider, "prepare", break_down)
    ended = run("benchmark", "run", clinic(), "--agent", agent(GOOD))
    assert ended.returncode == 3
    assert re.search(r"^\[1/2\] book: cancelled; .*: OSError: \[Errno 28\]", ended.stderr, re.MULTILINE)
    assert "note: 1 task run " in ended.stderr
    assert "verdict inconclusive, score 1" in ended.stdout


def test_what_a_killed_process_left_is_taken_down_by_the_next(run: Run) -> None:
    found = measured(run, clinic(), code=GOOD)["benchmark_run"]
    left = Path("meruit-data/playgrounds") / found["id"] / f"pg_{'0' * 24}" / "state.db"
    left.parent.mkdir(parents=True)
    PlaygroundState.create(left, settings={"secret": "s"}).close()
    assert f"pg_{'0' * 24}" in run("playground", "list").stdout
    with open_session(StoreAddress(None, None, "default"), None) as at:

        async def opened() -> None:
            async with at.open_playgrounds(at.home_of_run(found["id"])):
                assert playgrounds() == []

        asyncio.run(opened())
    assert not left.parent.parent.exists()


def test_an_agent_is_not_told_how_its_judge_gets_in(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHART_TOKEN", "the judge's")
    Path("drop").mkdir()
    drop = {"kind": "files", "at": str(Path("drop").resolve()), "token_env": "CHART_TOKEN"}
    task = {
        "id": "file",
        "instruction": "Write.",
        "sources": {"drop": drop},
        "criteria": [{"assert": "sftp-file-present", "path": "*.txt", "count": 1, "settle": {"stable": 1}}],
    }
    code = "Path('drop/a.txt').write_text(os.environ.get('CHART_TOKEN', 'nothing'))\n"
    measured(run, clinic(task), "--allow-sources", code=code, expect=0)
    assert Path("drop/a.txt").read_text() == "nothing"


def test_a_program_that_the_system_will_not_run_ends_the_run(run: Run) -> None:
    Path(put("broken", b"\x00\x01\x02")).chmod(0o755)
    ended = run("benchmark", "run", clinic(), "--agent", "./broken")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(r"^error: .*: \./broken: ", ended.stderr, re.MULTILINE)
    listed = json.loads(run("benchmark", "list", "--json").stdout)["benchmark_runs"]
    assert listed[0]["counts"] == {"pending": 2}
    assert re.search(rf"^note: .* benchmark resume {listed[0]['id']} --agent …`", ended.stderr, re.MULTILINE)
    assert playgrounds() == []


# Judged again.


def test_a_run_is_judged_again_without_its_playgrounds(day: Day) -> None:
    shutil.rmtree("meruit-data/playgrounds")
    ended = day.run("benchmark", "score", day.id, "--reason", "to be sure")
    assert (ended.returncode, "verdict partial, score 0.5" in ended.stdout) == (1, True)
    assert re.search(r"^note: 4 of 4 task runs .*; 0 ", ended.stderr, re.MULTILINE)
    assert {one["outcome_version"] for one in day.show()["task_runs"]} == {2}


def test_a_newer_version_skips_tasks_that_it_does_not_have(day: Day) -> None:
    booked, *others = BOOK["criteria"]
    longer = {**booked, "fields": {"status": "booked", "minutesDuration": 45}}
    newer = clinic({**BOOK, "criteria": [longer, *others]}, version=2)
    ended = day.run("benchmark", "score", day.id, "--benchmark", newer, "--reason", "it was 45 minutes")
    assert ended.returncode == 1
    assert re.search(r"^note: 2 of 4 task runs .*clinic@2; 2 ", ended.stderr, re.MULTILINE)
    assert re.search(r"^note: 2 skipped: .*'retire'.* clinic@2$", ended.stderr, re.MULTILINE)
    versions = {(one["task"], one["outcome_version"]) for one in day.show()["task_runs"]}
    assert versions == {("book", 2), ("retire", 1)}
    assert "\njudged by   clinic@2\n" in day.run("benchmark", "show", day.id, "book").stdout
    assert "judged by" not in day.run("benchmark", "show", day.id, "retire").stdout
    assert "\n2 task runs judged by clinic@2\n" in day.run("benchmark", "show", day.id).stdout
    again = day.run("benchmark", "score", day.id, "--benchmark", "clinic@1", "--reason", "back")
    assert (again.returncode, "verdict partial, score 0.5" in again.stdout) == (1, True)


def test_an_erased_run_is_skipped(day: Day) -> None:
    outcome = day.show()["task_runs"][0]["outcome_id"]
    assert day.run("outcome", "erase", outcome, "--reason", "asked to", "--yes").returncode == 0
    ended = day.run("benchmark", "score", day.id, "--reason", "again")
    assert "note: 3 of 4 task runs " in ended.stderr
    assert "note: 1 skipped: " in ended.stderr
    assert day.run("benchmark", "show", day.show()["task_runs"][0]["id"]).returncode == 0


def test_another_benchmark_judges_nothing(day: Day) -> None:
    other = put("other.json", {**CLINIC, "benchmark": "other"})
    score = ("benchmark", "score", day.id, "--reason", "r", "--benchmark")
    assert all(name in error_of(day.run, *score, other)["message"] for name in ("clinic", "other@1"))
    assert len(json.loads(day.run("benchmark", "list", "--published", "--json").stdout)["benchmarks"]) == 1
    day.run("benchmark", "publish", other)
    assert "other@1" in error_of(day.run, *score, "other@1")["message"]


# Bad input.


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "b.yaml"),
        (b"", "b.yaml"),
        (b"\xff\xfe\x00", "b.yaml"),
        (b"benchmark: caf\xe9\n", "b.yaml"),
        (b"- a\n", "b.yaml"),
        (b"benchmark: x\ntasks: []\n", "tasks"),
        (b"benchmark: x\nbenchmark: y\n", "b.yaml:2"),
        ({**CLINIC, "tasks": [{**BOOK, "criteria": [{"assert": "nonsense"}]}]}, "'nonsense'"),
        ({**CLINIC, "tasks": [{**BOOK, "seed": "no-seed.yaml"}]}, "no-seed.yaml"),
        ({**CLINIC, "tasks": [{**BOOK, "seed": {"fihr": []}}]}, "fihr"),
    ],
)
@pytest.mark.parametrize("command", [("run", "--agent", "true"), ("publish",)])
def test_a_bad_benchmark_file_creates_nothing(run: Run, content: Any, name: str, command: tuple[str, ...]) -> None:
    if content is not None:
        put("b.yaml", content)
    assert name in json.dumps(error_of(run, "benchmark", command[0], "b.yaml", *command[1:]))
    assert not Path("meruit-data").exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--agent", "no-such-program x"), "'no-such-program'"),
        (("--agent", "./clinic.json"), "'./clinic.json'"),
        (("--agent", "./{task}"), "'./book'"),
        (("--agent", ""), "empty"),
        (("--agent", "sh -c 'x"), "quotation"),
        (("--agent", "true\0"), "zero byte"),
        ((), "'--agent'"),
        (("--agent", "true", "--task", "bok"), "'book'"),
        (("--agent", "true", "--task", "zzzzzz"), "book, retire"),
        (("--agent", "true", "--repeats", "0"), "'--repeats'"),
        (("--agent", "true", "--parallel", "0"), "'--parallel'"),
        (("--agent", "true", "--timeout", "0"), "'--timeout'"),
        (("--agent", "true", "--timeout", "nan"), "--timeout"),
        (("--agent", "true", "--agent-id", "a\nb"), "--agent-id"),
        (("--agent", "true", "--tenant", "A B"), "'A B'"),
        (("--agent", "true", "--config", "no.yaml"), "no.yaml"),
    ],
)
def test_a_run_that_cannot_start_creates_nothing(run: Run, options: tuple[str, ...], name: str) -> None:
    assert name in error_of(run, "benchmark", "run", clinic(), *options)["message"]
    assert not Path("meruit-data").exists()


def test_a_seed_in_a_file_cannot_come_with_standard_input(run: Run) -> None:
    text = json.dumps({**CLINIC, "tasks": [{**BOOK, "seed": "seed.yaml"}]}).encode()
    ended = run("benchmark", "run", "-", "--agent", "true", stdin=text)
    assert (ended.returncode, "seed.yaml" in ended.stderr) == (2, True)
    assert not Path("meruit-data").exists()
    assert run("benchmark", "publish", "-", stdin=json.dumps(CLINIC).encode()).stdout == "clinic@1\n"


@pytest.mark.parametrize(
    ("command", "code", "name"),
    [
        (("show", "brn_x"), "not_found", "'brn_x'"),
        (("show", "trn_x"), "not_found", "'trn_x'"),
        (("show", "out_x"), "usage", " outcome show out_x`"),
        (("show", "trn_x", "book"), "usage", "'book'"),
        (("show", "brn_x", "book"), "not_found", "'brn_x'"),
        (("show", ""), "not_found", "''"),
        (("score", "brn_x", "--reason", "r"), "not_found", "'brn_x'"),
        (("resume", "brn_x", "--agent", "true"), "not_found", "'brn_x'"),
        (("recheck", "trn_x"), "not_found", "'trn_x'"),
        (("cancel", "brn_x"), "not_found", "'brn_x'"),
        (("cancel", "trn_x"), "not_found", "'trn_x'"),
        (("run", "nothing", "--agent", "true"), "not_found", "nothing"),
        (("score", "brn_x", "--reason", " "), "usage", "--reason"),
        (("score", "brn_x", "--reason", "r", "--benchmark", "no.yaml"), "unreadable_file", "no.yaml"),
    ],
)
def test_an_unknown_run_is_not_found(day: Day, command: tuple[str, ...], code: str, name: str) -> None:
    error = error_of(day.run, "benchmark", *command)
    assert (error["code"], name in error["message"]) == (code, True)


def test_without_records_nothing_is_created(run: Run) -> None:
    for command in (("list",), ("show", "brn_x"), ("run", "clinic", "--agent", "true")):
        assert error_of(run, "benchmark", *command)["code"] == "store_error"
    assert not Path("meruit-data").exists()


def test_on_a_terminal_a_line_tells_what_is_under_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tasks = [{**RETIRE, "id": f"t{number}"} for number in range(5)]
    ended = run("benchmark", "run", clinic(*tasks), "--agent", agent(GOOD), "--parallel", "5")
    assert ended.returncode == 0
    assert "\r\x1b[K0 of 5 done; t0 starting 0 s, t1 starting 0 s, t2 starting 0 s and 2 more" in ended.stderr
    assert ended.stderr.rstrip("\n").endswith("\r\x1b[K")


# The schema.


def with_criterion(criterion: dict[str, Any]) -> dict[str, Any]:
    return {**CLINIC, "tasks": [{**BOOK, "criteria": [criterion]}]}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    """What editors are told of benchmarks."""
    return jsonschema.Draft202012Validator(build_json_schema("benchmark"))


def test_the_schema_takes_every_example_of_every_check(run: Run, schema: jsonschema.Draft202012Validator) -> None:
    text = run("benchmark", "schema").stdout
    assert json.loads(run("schema", "benchmark", "--json").stdout) == json.loads(text) == schema.schema
    schema.check_schema(schema.schema)
    assert not list(schema.iter_errors(CLINIC))
    for check in checks:
        for example in check.examples:
            said = {"assert": check.name, **example.assertion}
            for criterion in ({**said, "label": "x", "weight": 2}, {"assertion": said, "axis": "safety"}):
                assert not list(schema.iter_errors(with_criterion(criterion))), (check.name, said)


@pytest.mark.parametrize(
    "criterion",
    [
        {"assert": "nonsense"},
        {"label": "no assertion"},
        {"assert": "fhir-resource-state"},
        {"assert": "fhir-resource-state", "resource": "Patient", "feilds": {}},
        {"assertion": {"assert": "fhir-resource-state", "resource": "Patient", "feilds": {}}},
        {"assertion": {"assert": "state-unchanged"}, "except": []},
        {"assert": "state-unchanged", "credit": "some"},
        {"assert": "state-unchanged", "metric": "accuracy"},
    ],
)
def test_the_schema_refuses_what_no_check_understands(
    schema: jsonschema.Draft202012Validator, criterion: dict[str, Any]
) -> None:
    assert list(schema.iter_errors(with_criterion(criterion)))


def test_the_command_takes_as_many_repeats_as_the_engine() -> None:
    from meruit.benchmarks import service as benchmarks
    from meruit.cli.benchmarks.benchmark import MAX_REPEATS

    assert MAX_REPEATS == benchmarks.MAX_REPEATS


def test_running_tasks_show_state_seconds_and_last_event(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress(2, clock=lambda: now[0])
    pending = TaskRun(
        "trn_1",
        1,
        "clinic",
        1,
        "book",
        1,
        RunStatus.PENDING,
        True,
        Reveal.AXES,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        created_by="me",
    )
    observer = progress.observer()
    observer.entered(pending, RolloutState.STARTING)
    now[0] = 5.0
    observer.entered(msgspec.structs.replace(pending, playground_id="pg_1"), RolloutState.RUNNING)
    now[0] = 17.0

    async def last_event(place: str) -> str | None:
        return f"fhir_update Appointment/a1 in {place}"

    asyncio.run(progress.update(last_event))
    assert capsys.readouterr().err == "book running 12 s, last event: fhir_update Appointment/a1 in pg_1\n"


# Edit and delete


TASK = """\
benchmark: desk
id: second
instruction: Say hello.
seed: {rows: {claim: {"1": {open: "yes"}}}}
criteria:
  - {assert: portal-state-match, correlate_by: {resource: claim}, fields: {open: "no"}}
"""
DESK = f"benchmark: desk\ntasks:\n  - {TASK.replace('second', 'first').replace(chr(10), chr(10) + '    ').strip()}\n"


def test_a_benchmark_is_edited_by_name_and_deleted(run: Run) -> None:
    put("desk.yaml", DESK)
    put("task.yaml", TASK)
    assert run("benchmark", "publish", "desk.yaml").stdout == "desk@1\n"
    assert run("benchmark", "edit", "desk", "--task", "task.yaml", "--base", "1").stdout == "desk@2\n"
    same = run("benchmark", "edit", "desk", "--task", "task.yaml")
    assert same.stdout == "desk@2\n"
    assert "nothing has changed" in same.stderr
    made = json.loads(run("benchmark", "edit", "desk", "--remove", "first", "--title", "Desk", "--json").stdout)
    assert (made["version"], made["tasks"], made["title"]) == (3, 1, "Desk")
    assert run("benchmark", "edit", "desk", "--file", "desk.yaml").stdout == "desk@4\n"
    assert run("benchmark", "delete", "desk@3").stdout == "desk@3\n"
    left = json.loads(run("benchmark", "list", "--published", "--json").stdout)["benchmarks"]
    assert [one["version"] for one in left] == [4, 2, 1]
    gone = json.loads(run("benchmark", "delete", "desk", "--json").stdout)
    assert gone == {"benchmark": "desk", "versions": [1, 2, 4], "benchmark_runs": 0}
    assert "desk@5" in run("benchmark", "edit", "desk", "--file", "desk.yaml").stdout
    refused = run("benchmark", "publish", "desk.yaml")
    assert (refused.returncode, "version: 6" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["edit", "desk", "--task", "other.yaml"], "belongs to 'elsewhere'"),
        (["edit", "desk", "--task", "others.yaml"], "belong to 'elsewhere'"),
        (["edit", "desk", "--task", "bad.yaml"], "bad.yaml: line 2"),
        (["edit", "desk", "--file", "desk.yaml", "--title", "x"], "--file replaces"),
        (["edit", "counter", "--file", "desk.yaml"], "is the benchmark desk"),
        (["edit", "counter", "--title", "x"], "no benchmark counter"),
        (["edit", "desk", "--remove", "fist"], "'first'"),
        (["edit", "desk", "--title", "x", "--base", "7"], "not 7"),
        (["edit", "desk"], "changes nothing"),
        (["delete", "counter"], "no benchmark counter"),
        (["delete", "desk@9"], "desk@9"),
    ],
)
def test_a_bad_edit_is_refused_in_words(run: Run, arguments: list[str], said: str) -> None:
    put("desk.yaml", DESK)
    put("other.yaml", TASK.replace("desk", "elsewhere"))
    put("others.yaml", DESK.replace("desk", "elsewhere"))
    put("bad.yaml", TASK.replace("id: second", "id: [second]"))
    run("benchmark", "publish", "desk.yaml")
    refused = run("benchmark", *arguments)
    assert refused.returncode == 2, refused.stdout
    assert said in refused.stderr
    assert [
        one["version"] for one in json.loads(run("benchmark", "list", "--published", "--json").stdout)["benchmarks"]
    ] == [1]


def test_a_file_of_seeds_that_other_tasks_use_is_named(run: Run) -> None:
    seeded = 'seed: {rows: {claim: {"1": {open: "yes"}}}}'
    put("desk.yaml", DESK.replace(seeded, "seed: start.yaml"))
    put("task.yaml", TASK.replace(seeded, "seed: start.yaml"))
    put("start.yaml", 'rows: {claim: {"1": {open: "yes"}}}')
    run("benchmark", "publish", "desk.yaml")
    put("start.yaml", 'rows: {claim: {"1": {open: "maybe"}}}')
    edited = run("benchmark", "edit", "desk", "--task", "task.yaml")
    assert (edited.stdout, "start.yaml" in edited.stderr) == ("desk@2\n", True)


def test_a_deleted_benchmark_with_runs_says_that_they_stay(run: Run, clinic_day: Path) -> None:
    day = Day(run, clinic_day)
    (listed,) = json.loads(run("benchmark", "list", "--published", "--json").stdout)["benchmarks"]
    gone = run("benchmark", "delete", listed["benchmark"])
    assert (gone.returncode, "1 benchmark run" in gone.stderr) == (0, True)
    assert run("benchmark", "show", day.id).returncode == 0
    assert run("benchmark", "score", day.id, "--reason", "again").returncode in (0, 1)


def test_a_leaderboard_ranks_the_agents_of_a_benchmark(day: Day) -> None:
    slug = json.loads(day.run("benchmark", "list", "--json").stdout)["benchmark_runs"][0]["benchmark"]
    found = json.loads(day.run("benchmark", "leaderboard", slug, "--json").stdout)
    ranked = [one["agent_id"] for one in found["standings"]]
    shown = day.run("benchmark", "leaderboard", slug)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ranked)
    compared = json.loads(day.run("benchmark", "compare", day.id, day.id, "--json").stdout)
    assert (compared["won"], compared["lost"]) == (0, 0)
    assert day.run("benchmark", "compare", day.id, day.id).returncode == 0
