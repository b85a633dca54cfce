"""Running somebody's agent: a command of theirs, told what to do and where, stopped when its time is over."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import msgspec

from meruit.benchmarks.service import TaskRunStart
from meruit.errors import AuthorError
from meruit.model.record import Record
from meruit.model.task import TaskSource

TASK_PLACEHOLDER = "{task}"
"""What stands for the task's id in a command."""
ENV_PREFIX = "MERUIT_"
"""What our environment variables begin with; an agent inherits none of them."""
LOG_HALF_BYTES = 512 * 1024
"""Of what an agent says that much is kept of the beginning, and that much of the end."""
CHUNK_BYTES = 64 * 1024
MAX_VARIABLE_BYTES = 100 * 1024
"""Of one environment variable; a system takes little more. What is longer stands in the file alone."""
GRACE_S = 2.0
"""Between asking an agent to stop and stopping it."""
DRAIN_S = 1.0
"""How long the last words of an agent may take to arrive once it has ended."""


class AgentExit(Record, frozen=True):
    """How an agent's command ended. It decides nothing: what the agent left in the world does."""

    exit_code: int | None
    """Negative where a signal ended it; None where it was stopped because its time was over."""
    seconds: float
    log: str
    """The file with what it said."""


class AgentCommand(NamedTuple):
    """A command by which an agent is run, without a shell."""

    arguments: tuple[str, ...]

    def for_task(self, task_id: str) -> list[str]:
        """The arguments for one task."""
        return [argument.replace(TASK_PLACEHOLDER, task_id) for argument in self.arguments]


def parse_agent_command(written: str, tasks: Sequence[str]) -> AgentCommand:
    """A command as somebody types it; AuthorError where it cannot be run for one of the tasks."""
    try:
        command = AgentCommand(tuple(shlex.split(written)))
    except ValueError as problem:
        raise AuthorError(f"the agent's command cannot be read: {str(problem).lower()}") from None
    if not command.arguments:
        raise AuthorError('the agent\'s command is empty; write one such as "python agent.py"')
    if any("\0" in argument for argument in command.arguments):
        raise AuthorError("the agent's command holds a zero byte")
    for program in dict.fromkeys(command.for_task(task)[0] for task in tasks):
        if shutil.which(program) is None:
            raise AuthorError(f"the agent's command cannot be run: {program!r} is no program that could be found")
    return command


async def run_agent(
    command: AgentCommand, started: TaskRunStart, *, environment: Mapping[str, str], log: Path, within_s: float
) -> AgentExit:
    """Run an agent at a task that was started, and end all of it when it ends, when its time is over, or on cancelling.

    AuthorError where the program cannot be begun.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not beside the records: the path would tell an agent where those are.
    with (
        tempfile.TemporaryDirectory(prefix="meruit-task-", ignore_cleanup_errors=True) as folder,
        log.open("wb") as kept,
    ):
        told = Path(folder) / "task.json"
        told.write_bytes(msgspec.json.format(msgspec.json.encode(briefing(started))))
        arguments = command.for_task(started.run.task)
        began = time.monotonic()
        process, ear = await _start_process(arguments, agent_environment(started, told, environment))
        hearing = asyncio.create_task(_copy_output(ear, kept))
        try:
            exit_code = await _wait_for_exit(process, within_s)
        finally:
            # Also what an agent that has ended left running, which would go on changing its world.
            _signal_all(process, signal.SIGKILL)
            await _drain_output(process, hearing)
        return AgentExit(exit_code, round(time.monotonic() - began, 3), str(log))


async def _start_process(arguments: list[str], environment: dict[str, str]) -> tuple[asyncio.subprocess.Process, int]:
    """The agent's process, and where to hear what it says."""
    # A pipe of our own: with one of asyncio's, an agent seems to run as long as anything that it started does.
    ear, mouth = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=mouth,
            stderr=mouth,
            env=environment,
            # A group of its own, so that whatever it starts can be ended with it.
            start_new_session=True,
        )
    except OSError as problem:
        os.close(ear)
        raise AuthorError(f"the agent's command cannot be run: {arguments[0]}: {problem.strerror}") from None
    except BaseException:
        os.close(ear)
        raise
    finally:
        os.close(mouth)
    return process, ear


# Any: it becomes JSON.
def briefing(started: TaskRunStart) -> dict[str, Any]:
    """What an agent is told of its task, and nothing of how it is judged."""
    run = started.run
    return {
        "task": run.task,
        "task_run_id": run.id,
        "instruction": started.instruction,
        "deadline": run.deadline,
        "playground": started.access.get("id"),
        "secret": started.access.get("secret"),
        "endpoints": started.access.get("endpoints") or {},
    }


def strip_judge_secrets(environment: Mapping[str, str], sources: Iterable[TaskSource]) -> dict[str, str]:
    """An environment without what opens the systems that only its judge reads."""
    closed = {name for source in sources for name in (source.token_env, source.key_env)}
    return {name: value for name, value in environment.items() if name not in closed}


def agent_environment(started: TaskRunStart, told: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent: what ours is, without what concerns us, and with what concerns it."""
    brief = briefing(started)
    ends: Mapping[str, str | None] = brief["endpoints"]
    said = {
        "TASK": str(told),
        "TASK_ID": started.run.task,
        "TASK_RUN_ID": started.run.id,
        "INSTRUCTION": started.instruction,
        "DEADLINE": None if started.run.deadline is None else started.run.deadline.isoformat(),
        "PLAYGROUND": brief["playground"],
        "SECRET": brief["secret"],
        "FHIR_URL": ends.get("fhir"),
        "PORTAL_URL": ends.get("portal"),
        "X12_URL": ends.get("x12"),
        "CALL_URL": ends.get("call"),
        "MLLP": ends.get("mllp"),
        "SFTP": ends.get("sftp"),
    }
    inherited = {name: value for name, value in environment.items() if not name.startswith(ENV_PREFIX)}
    return inherited | {f"{ENV_PREFIX}{name}": value for name, value in said.items() if _fits(value)}


def _fits(value: str | None) -> TypeGuard[str]:
    """Whether an environment can hold it; what it cannot stands in the file."""
    return value is not None and "\0" not in value and len(value.encode()) <= MAX_VARIABLE_BYTES


async def _wait_for_exit(process: asyncio.subprocess.Process, within_s: float) -> int | None:
    """The exit code, or None once the time was over."""
    try:
        return await asyncio.wait_for(process.wait(), max(0.0, within_s))
    except TimeoutError:
        _signal_all(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
        return None


def _signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the agent and all that it started; its group is there as long as anyone is in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _drain_output(process: asyncio.subprocess.Process, hearing: asyncio.Task[None]) -> None:
    """Wait until an agent that was stopped is gone and its last words are kept, whoever has given up meanwhile."""
    await asyncio.shield(asyncio.gather(process.wait(), asyncio.wait([hearing], timeout=DRAIN_S)))
    if not hearing.done():
        # Somebody who left the group still holds the other end.
        hearing.cancel()
        await asyncio.wait([hearing])


class _OutputTail:
    """The end of what was said, of which only so much is kept."""

    def __init__(self) -> None:
        self.parts: deque[bytes] = deque()
        self._bytes = 0

    def add(self, part: bytes) -> int:
        """Keep a part, and answer how many bytes went lost for it."""
        self.parts.append(part)
        self._bytes += len(part)
        lost = 0
        # Counted as they come and go: an agent that says little at a time would keep a sum busy.
        while self._bytes - len(self.parts[0]) >= LOG_HALF_BYTES:
            gone = len(self.parts.popleft())
            self._bytes -= gone
            lost += gone
        return lost


# Any: a binary file.
async def _copy_output(ear: int, log: Any) -> None:
    """Keep what an agent says: its beginning and its end, whatever comes between them."""
    stream = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ear, "rb", 0)
    )
    said, lost, end = 0, 0, _OutputTail()
    try:
        while part := await stream.read(CHUNK_BYTES):
            head = part[: max(0, LOG_HALF_BYTES - said)]
            said += len(part)
            log.write(head)
            log.flush()
            lost += end.add(part[len(head) :]) if len(head) < len(part) else 0
    finally:
        pipe.close()
        if lost:
            log.write(f"\n… {lost:,} bytes are left out …\n".encode())
        log.write(b"".join(end.parts))
        log.flush()
