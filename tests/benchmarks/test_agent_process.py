"""Agents' commands: what they are told, what is kept of what they say, and that nothing of them outlives them."""

import asyncio
import os
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmarks.benching import Bench, bench

from meruit.benchmarks import agent_process as running
from meruit.benchmarks import rollouts
from meruit.benchmarks.agent_process import (
    AgentExit,
    agent_environment,
    parse_agent_command,
    run_agent,
    strip_judge_secrets,
)
from meruit.benchmarks.rollouts import AgentLogs, Observer, Rollout, Rollouts, read_answer
from meruit.benchmarks.service import TaskRunStart
from meruit.errors import AuthorError, Unreachable
from meruit.model.environment import MAX_ANSWER_BYTES, SourceKind
from meruit.model.task import Reveal, TaskSource
from meruit.model.task_run import RunStatus, TaskRun
from meruit.sources.retry import BackoffSchedule
from meruit.store.store import Store

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def begun(instruction: str = "Do it.", access: dict[str, Any] | None = None) -> TaskRunStart:
    run = TaskRun(
        id="trn_1",
        seq=1,
        benchmark="b",
        version=1,
        task="t",
        attempt=1,
        status=RunStatus.RUNNING,
        scored=True,
        reveal=Reveal.AXES,
        created_at=NOW,
        created_by="me",
        deadline=NOW,
    )
    return TaskRunStart(run, instruction, access or {})


def ran(code: str, log: Path, within_s: float = 30.0) -> AgentExit:
    command = parse_agent_command(f"{sys.executable} -c '{code}'", ["t"])
    return asyncio.run(run_agent(command, begun(), environment=os.environ, log=log, within_s=within_s))


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An agent's time is over once it has said something, however slow the machine is."""
    ended = running._wait_for_exit

    async def once_it_has_spoken(process: asyncio.subprocess.Process, within_s: float) -> int | None:
        while not os.path.getsize(tmp_path / "log"):  # noqa: ASYNC110, ASYNC240, PTH202 - another process
            await asyncio.sleep(0.02)
        return await ended(process, within_s)

    monkeypatch.setattr(running, "_wait_for_exit", once_it_has_spoken)


def is_running(pid: str) -> bool:
    try:
        # One that has ended and that nobody has asked about is no process any more.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(pid: str) -> bool:
    """Whether a process ends within a while: the kernel takes its time on a busy machine."""
    for _ in range(200):
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_an_argument_is_handed_over_as_it_is_written(text: str) -> None:
    import shlex

    command = parse_agent_command(f"true {shlex.quote(text)}", ["t"])
    assert command.for_task("t") == ["true", text.replace("{task}", "t")]


def test_both_streams_and_the_exit_code_are_kept(tmp_path: Path) -> None:
    found = ran(
        'import os; os.write(1, b"out\\n"); os.write(2, b"err\\n"); raise SystemExit(5)', tmp_path / "a" / "log"
    )
    assert (found.exit_code, Path(found.log).read_text()) == (5, "out\nerr\n")


def test_an_answer_is_the_standard_output_alone(tmp_path: Path) -> None:
    command = parse_agent_command(
        f'{sys.executable} -c \'import os; os.write(1, b"42 mg\\n"); os.write(2, b"thinking\\n")\'', ["t"]
    )
    log, answer = tmp_path / "log", tmp_path / "answer"
    asyncio.run(run_agent(command, begun(), environment=os.environ, log=log, within_s=30.0, answer=answer))
    assert (log.read_text(), answer.read_text(), read_answer(answer)) == ("thinking\n", "42 mg\n", "42 mg\n")
    answer.write_bytes(b" \n")
    assert read_answer(answer) is None
    answer.write_bytes(b"x" * (MAX_ANSWER_BYTES + 1))
    assert read_answer(answer) is None


def test_of_a_flood_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    found = ran('import os, sys; sys.stdout.write("first" + "x" * 5_000_000 + "last")', tmp_path / "log")
    said = Path(found.log).read_bytes()
    assert (said[:5], said[-4:], b" bytes are left out " in said) == (b"first", b"last", True)
    assert len(said) < 2 * running.LOG_HALF_BYTES + 2 * running.CHUNK_BYTES


def test_processes_that_an_agent_leaves_end_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; "
        'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]); print(child.pid)'
    )
    found = ran(code, tmp_path / "log")
    assert (found.exit_code, found.seconds < 30) == (0, True)
    assert is_gone(Path(found.log).read_text().strip())


@pytest.mark.usefixtures("_patient")
def test_an_agent_that_will_not_stop_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_S", 0.1)
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    found = ran(code, tmp_path / "log", 0.0)
    assert found.exit_code is None
    assert is_gone(Path(found.log).read_text().strip())


@pytest.mark.usefixtures("_patient")
def test_an_agent_that_stops_when_asked_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_S", 30.0)
    code = (
        'import os, signal, sys, time; signal.signal(15, lambda *_: (os.write(1, b"1\\n"), sys.exit(0))); '
        'os.write(1, b"0\\n"); time.sleep(60)'
    )
    found = ran(code, tmp_path / "log", 0.0)
    assert (found.exit_code, Path(found.log).read_text()) == (None, "0\n1\n")


def test_a_process_outside_the_group_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "DRAIN_S", 0.1)
    code = (
        "import subprocess, sys; "
        'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True); '
        "print(child.pid)"
    )
    found = ran(code, tmp_path / "log")
    os.kill(int(Path(found.log).read_text()), 9)
    assert (found.exit_code, found.seconds < 60) == (0, True)


def test_values_too_large_for_the_environment_are_in_the_file(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "MERUIT_DATA": "/secret"}
    for instruction in ("a\0b", "ü" * 80_000):
        told = agent_environment(begun(instruction), tmp_path / "task.json", inherited)
        assert "MERUIT_INSTRUCTION" not in told
        assert told["PATH"] == "/bin"
        assert "MERUIT_DATA" not in told
    assert agent_environment(begun("short"), tmp_path, inherited)["MERUIT_INSTRUCTION"] == "short"
    ends = {"endpoints": {"fhir": "http://x", "portal": None}}
    told = agent_environment(begun("short", ends), tmp_path, inherited)
    assert (told["MERUIT_FHIR_URL"], "MERUIT_PORTAL_URL" in told) == ("http://x", False)


@pytest.mark.parametrize("written", ["", "  ", "a 'b", "no-such-program"])
def test_a_command_that_cannot_be_run_is_refused_before_it_is(written: str) -> None:
    with pytest.raises(AuthorError, match="command"):
        parse_agent_command(written, ["t"])


# Sources are opened with what the judge knows, and the agent does not.


def test_an_agent_inherits_no_secret_of_the_verifier() -> None:
    sources = [
        TaskSource(kind=SourceKind.FHIR, at="https://ehr.example", token_env="EHR_TOKEN"),
        TaskSource(kind=SourceKind.FILES, at="sftp://drop.example/out", key_env="DROP_KEY"),
        TaskSource(kind=SourceKind.ROWS),
    ]
    ours = {"PATH": "/bin", "EHR_TOKEN": "t", "DROP_KEY": "k", "OPENAI_API_KEY": "the agent's own"}
    assert strip_judge_secrets(ours, sources) == {"PATH": "/bin", "OPENAI_API_KEY": "the agent's own"}


# Many of them: what goes wrong with one is told of that one.


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "RETRY", BackoffSchedule(tries=3, first_wait_s=0.0))


def rolled_out(here: Bench, folder: Path, repeats: int = 3) -> list[Rollout]:
    """Run an agent that does nothing at each run of the usual task."""

    async def all_of_them() -> list[Rollout]:
        await here.publish()
        _, several = await here.benchmarks.create(here.tenant, "me", "demo", repeats=repeats)
        command = parse_agent_command("true", ["t1"])
        observer = Observer(lambda _run, _state: None, lambda _rollout: None)
        every = Rollouts(here.benchmarks, here.tenant, command, os.environ, AgentLogs(folder), observer)
        return await every.run_all(several)

    return asyncio.run(all_of_them())


def test_an_error_in_one_run_costs_only_that_run(
    shared: Store, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, remember, times = bench(shared, tenant), AgentLogs.save_exit, count()

    def full(self: AgentLogs, run: TaskRun, ran: AgentExit) -> None:
        if next(times) == 1:
            raise OSError(28, "No space left on device")
        remember(self, run, ran)

    monkeypatch.setattr(AgentLogs, "save_exit", full)
    first, broken, last = rolled_out(here, tmp_path)
    assert [one.run.status for one in (first, broken, last)] == ["completed", "cancelled", "completed"]
    assert (first.trouble, last.trouble) == (None, None)
    assert broken.trouble == "OSError: [Errno 28] No space left on device"
    # It was begun, so that nobody can say how it would have ended.
    found = here.benchmarks.reader.benchmark_run(here.scope, broken.run.benchmark_run_id or "")
    assert found.result is not None
    assert (found.ended, found.result.cancelled) == (True, [broken.run.id])
    assert here.ground.rows == {}


def test_an_environment_that_is_down_leaves_its_run_pending(shared: Store, tenant: str, tmp_path: Path) -> None:
    here, times = bench(shared, tenant), count()

    class Moody(type(here.ground)):  # type: ignore[misc]  # a ground that answers when it likes
        async def prepare(self, *arguments: Any) -> Any:
            # The first run at its second try, the second never, the last at once.
            if next(times) in (0, 2, 3, 4):
                raise Unreachable("no room just now")
            return await super().prepare(*arguments)

    here.ground.__class__ = Moody
    first, waiting, last = rolled_out(here, tmp_path)
    assert [one.run.status for one in (first, waiting, last)] == ["completed", "pending", "completed"]
    assert (first.trouble, waiting.trouble, last.trouble) == (None, "no room just now", None)


def test_a_task_that_cannot_run_is_cancelled_alone(shared: Store, tenant: str, tmp_path: Path) -> None:
    here, times = bench(shared, tenant), count()

    class Broken(type(here.ground)):  # type: ignore[misc]  # a ground that has a bug
        async def prepare(self, *arguments: Any) -> Any:
            if next(times) == 0:
                raise ZeroDivisionError("a bug")
            return await super().prepare(*arguments)

    here.ground.__class__ = Broken
    broken, other = rolled_out(here, tmp_path, repeats=2)
    assert (broken.run.status, broken.trouble) == ("cancelled", "ZeroDivisionError: a bug")
    assert (other.run.status, other.trouble) == ("completed", None)


class Counted(bytes):
    """A part that counts how often somebody asks for its length."""

    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return super().__len__()


def test_keeping_the_end_of_a_log_takes_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "LOG_HALF_BYTES", 2_000)
    for number in (1_000, 4_000):
        Counted.asked, kept = 0, running._OutputTail()
        lost = sum(kept.add(Counted(b"x")) for _ in range(number))
        assert lost + len(b"".join(kept.parts)) == number
        assert Counted.asked <= 4 * number
