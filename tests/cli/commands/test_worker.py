"""`meruit worker`: which agents it takes, what it refuses, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.at_hand import program
from tests.cli import scripted_agents
from tests.cli.refusals import error_of
from tests.e2e.serving import serving

from meruit.cli.shared import load_agents as loading
from meruit.cli.shared.load_agents import load_agents, load_roster
from meruit.errors import AgentError
from meruit.gate.runner.local import hold_worker_lock
from meruit.store.location import Location
from meruit.store.store import Store

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]
HERE = "tests.cli.scripted_agents"
FILE = str(Path(scripted_agents.__file__))
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nor from the test before: modules of its folder are forgotten."""
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# What can be named


@pytest.mark.parametrize(
    ("named", "names"),
    [
        (f"{HERE}:writer", ["writer"]),
        (f"{HERE}:pair", ["pair", "plain", "writer"]),
        (f"{HERE}:by_name", ["writer"]),
        (
            f"{HERE}:agents",
            ["asker", "curious", "endless", "hasty", "lost", "pair", "plain", "the doubter", "unlucky", "writer"],
        ),
        (
            HERE,
            [
                *("asker", "clumsy", "curious", "endless", "hasty", "hopeless", "interrupted", "lost"),
                *("pair", "patient", "plain", "the doubter", "troubled", "unlucky", "writer"),
            ],
        ),
        (f"{FILE}:writer", ["writer"]),
    ],
)
def test_agents_are_named_one_by_one_together_or_by_their_module(named: str, names: list[str]) -> None:
    assert [*load_roster([named]).names] == names


def test_a_file_is_loaded_with_its_neighbours_and_once(write: Write) -> None:
    write("neighbour_of_mine.py", "NAME = 'mine'\n")
    write(
        "my_agents.py",
        "from meruit.gate.agent import Agent\nimport neighbour_of_mine\nmine = Agent(neighbour_of_mine.NAME)\n",
    )
    (mine,) = load_agents("my_agents:mine")
    assert mine.name == "mine"
    Path("below").mkdir()
    write("below/json.py", Path("my_agents.py").read_text())
    (below,) = load_agents("below/json.py:mine")
    assert below.name == "mine"
    assert sys.modules["json"] is json
    assert load_agents("./my_agents.py:mine")[0] is mine


@pytest.mark.parametrize(
    ("named", "names"),
    [
        (f"{HERE}:wirter", ["'wirter'", "'writer'"]),
        (f"{HERE}:EVIDENCE", ["EVIDENCE", "str"]),
        (f"{HERE}:nothing", ["nothing", "str"]),
        (f"{HERE}:Number", ["Number", "ModelMetaclass"]),
        (":writer", ["':writer'"]),
        ("nowhere.module:x", ["'nowhere.module'"]),
        ("my_agent:x", ["'my_agent'", "'my_agents'"]),
        ("nowhere.py:x", ["nowhere.py"]),
        ("needy:x", ["needy", "ModuleNotFoundError: No module named 'not_installed_here'"]),
        ("crashing:x", ["crashing", "ZeroDivisionError: ", "by zero ("]),
        ("crooked:x", ["crooked", "SyntaxError"]),
        ("misdefined:x", ["misdefined: ", "'a'", "output_type"]),
        ("leaving:x", ["leaving", "sys.exit(9) ("]),
        ("my_agents", ["my_agents", "my_agents:NAME"]),
        ("crashing.py:x", ["crashing.py, line 2)"]),
    ],
)
def test_a_name_that_is_not_an_agent_is_refused(run: Run, write: Write, named: str, names: list[str]) -> None:
    write("my_agents.py", "")
    write("needy.py", "import not_installed_here\n")
    write("crashing.py", "\n1 / 0\n")
    write("leaving.py", "import sys\n\nsys.exit(9)\n")
    write("crooked.py", "def\n")
    write("misdefined.py", "from meruit.gate.agent import Agent\nAgent('a', verify=print)\n")
    error = error_of(run, "worker", named)
    assert error["code"] == "bad_agent"
    assert all(name in error["message"] for name in names), error["message"]
    assert not Path("meruit-data").exists()


def test_two_agents_of_one_name_are_refused(write: Write) -> None:
    write("twice.py", "from meruit.gate.agent import Agent\nboth = [Agent('a'), Agent('a')]\n")
    with pytest.raises(AgentError, match="'a'"):
        load_roster(["twice:both"])


# How it works


def test_a_worker_names_its_agents_and_ends_when_idle(run: Run) -> None:
    ended = run("worker", f"{HERE}:writer", f"{HERE}:hasty", "--until-idle")
    assert (ended.returncode, ended.stdout.split()[-2:]) == (0, ["hasty,", "writer"])
    assert ended.stderr.startswith("note: ")
    ended = run("worker", f"{HERE}:writer", "--until-idle", "--json")
    assert json.loads(ended.stdout) == {"agents": ["writer"]}


def test_it_says_how_each_run_ended(run: Run) -> None:
    ask = ("agent", "run", "--query", "count", "--no-wait", "--json")
    names = ("writer", "hasty")
    done, lost = (json.loads(run(*ask, f"{HERE}:{name}").stdout)["id"] for name in names)
    lines = run("worker", *(f"{HERE}:{name}" for name in names), "--until-idle").stderr.splitlines()
    assert [line for line in lines if line.startswith(f"{done}: ")][-1] == f"{done}: completed"
    assert [line for line in lines if line.startswith(f"{lost}: ")][-1].startswith(f"{lost}: failed (attempts)")


def test_for_programs_all_that_is_said_of_runs_is_a_line_of_json(run: Run) -> None:
    run_id = json.loads(run("agent", "run", f"{HERE}:writer", "--query", "c", "--no-wait", "--json").stdout)["id"]
    ended = run("worker", f"{HERE}:writer", "--until-idle", "--json")
    first, *lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert first == {"agents": ["writer"]}
    assert {line["subject"] for line in lines} == {run_id}
    assert lines[-1] == {"subject": run_id, "said": "completed"}
    assert all(line.startswith("note: ") for line in ended.stderr.splitlines())


def test_a_second_worker_of_a_file_is_refused(run: Run) -> None:
    run("db", "upgrade")
    with hold_worker_lock(Path("meruit-data")):
        ended = run("worker", f"{HERE}:writer", "--until-idle")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(rf"\b{os.getpid()}\b.* meruit-data\b", ended.stderr)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, that works already; it does not outlive the test."""
    command = [program(), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(run: Run, run_id: str, status: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while json.loads(run("agent", "show", run_id, "--json").stdout)["status"] != status:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_worker_hears_of_what_others_ask_and_lets_go_when_it_is_stopped(run: Run) -> None:
    asked = ("agent", "run", f"{HERE}:endless", "--query", "count", "--no-wait", "--json")
    run_id = json.loads(run(*asked).stdout)["id"]
    with started("worker", f"{FILE}:agents") as process:
        until(run, run_id, "running")
        # Another terminal's run is this worker's to drive.
        elsewhere = run("agent", "run", f"{HERE}:writer", "--query", "count")
        assert (elsewhere.returncode, json.loads(elsewhere.stdout)["number"]) == (0, 3)
        assert "another process" in elsewhere.stderr
        doomed = json.loads(run(*asked).stdout)["id"]
        until(run, doomed, "running")
        assert "worker" in run("agent", "cancel", doomed).stderr
        until(run, doomed, "cancelled")
        process.send_signal(signal.SIGTERM)
        _out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        assert " 1 run;" in err
    assert json.loads(run("agent", "show", run_id, "--json").stdout)["status"] == "queued"


# Beside the service


def test_a_service_with_agents_drives_their_runs_and_lets_go_in_the_end(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path / "home", Location(data), "--agents", f"{FILE}:agents") as life, life.client() as client:

        def until_it_is(run_id: str, status: str) -> None:
            end = time.monotonic() + PATIENCE_S
            while client.get(f"/v1/agent-runs/{run_id}").json()["status"] != status:
                assert time.monotonic() < end
                time.sleep(0.05)

        asked = [{"agent": name, "query": "count"} for name in ("endless", "writer")]
        endless, writer = [client.post("/v1/agent-runs", json=one).json()["id"] for one in asked]
        until_it_is(writer, "completed")
        until_it_is(endless, "running")
        refused = run("worker", f"{HERE}:writer", "--data", str(data))
        assert refused.returncode == 2
        assert f" {life.process.pid} " in refused.stderr
        assert life.stop() == 0
        assert "asker, curious, endless" in life.log.read_text()
    left = json.loads(run("agent", "show", endless, "--data", str(data), "--json").stdout)
    assert left["status"] == "queued"


def test_a_worker_that_fails_ends_what_it_works_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def broken(*_given: Any, **_options: Any) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(loading, "run_worker", broken)
    calls: list[str] = []
    store = Store.open(Location(tmp_path / "data"))
    roster = loading.load_roster([f"{HERE}:writer"])
    worker = loading.WorkerThread(store, roster, failed=lambda: calls.append("failed"))
    worker.start()
    with pytest.raises(OSError, match="disk gone"):
        worker.stop()
    assert calls == ["failed"]
    store.close()


def test_a_service_whose_agents_cannot_work_does_not_begin(run: Run) -> None:
    nothing = run("serve", "--port", "0", "--agents", f"{HERE}:wirter")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "'writer'" in nothing.stderr
    assert not Path("meruit-data").exists()
    run("db", "upgrade")
    with hold_worker_lock(Path("meruit-data")):
        taken = run("serve", "--port", "0", "--agents", f"{HERE}:writer")
    assert (taken.returncode, taken.stdout) == (2, "")
    assert "meruit-data" in taken.stderr
