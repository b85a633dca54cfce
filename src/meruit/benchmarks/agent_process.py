"""Run an agent's command for one task: pass it the task, keep its output, and stop it at its deadline."""

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
from typing import Any, TypeGuard

import msgspec

from meruit.benchmarks.service import TaskRunStart
from meruit.errors import AuthorError
from meruit.model.record import Record
from meruit.model.task import TaskSource

TASK_PLACEHOLDER = "{task}"
"""The placeholder of the task id in a command."""
ENV_PREFIX = "MERUIT_"
"""The prefix of our environment variables; an agent inherits none of them."""
LOG_HALF_BYTES = 512 * 1024
"""How much of an agent's output is kept at its start, and again at its end."""
CHUNK_BYTES = 64 * 1024
MAX_VARIABLE_BYTES = 100 * 1024
"""The limit of one environment variable; systems allow little more. Longer values are only in the file."""
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
DRAIN_S = 1.0
"""How long the last output of an agent may take to arrive after it has ended."""


class AgentExit(Record, frozen=True):
    """How an agent's command ended. It decides nothing; only the state of the environment is judged."""

    exit_code: int | None
    """Negative if a signal ended it; None if it was stopped at its deadline."""
    seconds: float
    log: str
    """The file with its output."""


class AgentCommand(msgspec.Struct, frozen=True):
    """The command of an agent, run without a shell."""

    arguments: tuple[str, ...]

    def for_task(self, task_id: str) -> list[str]:
        """Return the arguments for one task."""
        return [argument.replace(TASK_PLACEHOLDER, task_id) for argument in self.arguments]


def parse_agent_command(written: str, tasks: Sequence[str]) -> AgentCommand:
    """Parse a command; raises AuthorError if it cannot run for one of the tasks."""
    try:
        command = AgentCommand(tuple(shlex.split(written)))
    except ValueError as problem:
        raise AuthorError(f"the agent's command cannot be read: {str(problem).lower()}") from None
    if not command.arguments:
        raise AuthorError('the agent\'s command is empty; write one such as "python agent.py"')
    if any("\0" in argument for argument in command.arguments):
        raise AuthorError("the agent's command has a zero byte")
    for program in dict.fromkeys(command.for_task(task)[0] for task in tasks):
        if shutil.which(program) is None:
            raise AuthorError(f"the agent's command cannot be run: program {program!r} was not found")
    return command


async def run_agent(
    command: AgentCommand,
    started: TaskRunStart,
    *,
    environment: Mapping[str, str],
    log: Path,
    within_s: float,
    answer: Path | None = None,
) -> AgentExit:
    """Run an agent on a started task, and end all its processes when it ends, at its deadline, or on cancellation.

    `log` gets its output; with `answer`, that file gets its standard output, and the log only the rest. Raises
    AuthorError if the program cannot start.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not beside the records: the path would show an agent where they are.
    with (
        tempfile.TemporaryDirectory(prefix="meruit-task-", ignore_cleanup_errors=True) as folder,
        log.open("wb") as log_file,
        (answer or Path(os.devnull)).open("wb") as answer_file,
    ):
        task_file = Path(folder) / "task.json"
        task_file.write_bytes(msgspec.json.format(msgspec.json.encode(briefing(started))))
        arguments = command.for_task(started.run.task)
        began = time.monotonic()
        given = agent_environment(started, task_file, environment)
        process, *outputs = await _start_process(arguments, given, apart=answer is not None)
        copying = [
            asyncio.create_task(_copy_output(output, file))
            for output, file in zip(outputs, (log_file, answer_file), strict=False)
        ]
        try:
            exit_code = await _wait_for_exit(process, within_s)
        finally:
            # Also what an ended agent left running, which would continue to change its environment.
            _signal_all(process, signal.SIGKILL)
            await asyncio.gather(*(_drain_output(process, one) for one in copying))
        return AgentExit(exit_code, round(time.monotonic() - began, 3), str(log))


async def _start_process(
    arguments: list[str], environment: dict[str, str], *, apart: bool
) -> tuple[asyncio.subprocess.Process, int] | tuple[asyncio.subprocess.Process, int, int]:
    """Start the agent's process; returns it and the descriptor of its output, and `apart` of its standard output."""
    # Pipes of our own: with one of asyncio's, an agent seems to run as long as any process that it started.
    output, write_end = os.pipe()
    answer, answer_end = os.pipe() if apart else (output, write_end)
    ends = {output, answer}
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=answer_end,
            stderr=write_end,
            env=environment,
            # A process group of its own, so that everything it starts can be ended with it.
            start_new_session=True,
        )
    except OSError as problem:
        _close(ends)
        raise AuthorError(f"the agent's command cannot be run: {arguments[0]}: {problem.strerror}") from None
    except BaseException:
        _close(ends)
        raise
    finally:
        _close({write_end, answer_end})
    return (process, output, answer) if apart else (process, output)


def _close(descriptors: Iterable[int]) -> None:
    for one in descriptors:
        os.close(one)


# Any: it becomes JSON.
def briefing(started: TaskRunStart) -> dict[str, Any]:
    """Return what an agent may know of its task: nothing of how it is judged."""
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
    """Return an environment without the credentials of systems that only the verifier reads."""
    closed = {name for source in sources for name in (source.token_env, source.key_env)}
    return {name: value for name, value in environment.items() if name not in closed}


def agent_environment(started: TaskRunStart, task_file: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Build the agent's environment: ours without our variables, and with those of its task."""
    brief = briefing(started)
    ends: Mapping[str, str | None] = brief["endpoints"]
    variables = {
        "TASK": str(task_file),
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
        "FAX_URL": ends.get("fax"),
        "INBOX_URL": ends.get("inbox"),
        "CDS_URL": ends.get("cds"),
        "MLLP": ends.get("mllp"),
        "SFTP": ends.get("sftp"),
    }
    inherited = {name: value for name, value in environment.items() if not name.startswith(ENV_PREFIX)}
    return inherited | {f"{ENV_PREFIX}{name}": value for name, value in variables.items() if _fits(value)}


def _fits(value: str | None) -> TypeGuard[str]:
    """Return whether an environment variable can hold it; what does not fit is only in the file."""
    return value is not None and "\0" not in value and len(value.encode()) <= MAX_VARIABLE_BYTES


async def _wait_for_exit(process: asyncio.subprocess.Process, within_s: float) -> int | None:
    """Return the exit code, or None at the deadline."""
    try:
        return await asyncio.wait_for(process.wait(), max(0.0, within_s))
    except TimeoutError:
        _signal_all(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
        return None


def _signal_all(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the agent and everything it started; the group exists as long as one process is in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _drain_output(process: asyncio.subprocess.Process, copying: asyncio.Task[None]) -> None:
    """Wait until a stopped agent is gone and its last output is kept, even if the caller has been cancelled."""
    await asyncio.shield(asyncio.gather(process.wait(), asyncio.wait([copying], timeout=DRAIN_S)))
    if not copying.done():
        # A process that left the group still has the other end open.
        copying.cancel()
        await asyncio.wait([copying])


class _OutputTail:
    """The end of the output, of which only so much is kept."""

    def __init__(self) -> None:
        self.parts: deque[bytes] = deque()
        self._bytes = 0

    def add(self, part: bytes) -> int:
        """Add a part; returns how many bytes were dropped for it."""
        self.parts.append(part)
        self._bytes += len(part)
        lost = 0
        # Counted as they come and go: adding up many small parts each time would take long.
        while self._bytes - len(self.parts[0]) >= LOG_HALF_BYTES:
            gone = len(self.parts.popleft())
            self._bytes -= gone
            lost += gone
        return lost


# Any: a binary file.
async def _copy_output(output: int, log: Any) -> None:
    """Copy the agent's output to its log: the start and the end, with a note of what was dropped between."""
    stream = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", 0)
    )
    size, lost, end = 0, 0, _OutputTail()
    try:
        while part := await stream.read(CHUNK_BYTES):
            head = part[: max(0, LOG_HALF_BYTES - size)]
            size += len(part)
            log.write(head)
            log.flush()
            lost += end.add(part[len(head) :]) if len(head) < len(part) else 0
    finally:
        pipe.close()
        if lost:
            log.write(f"\n… {lost:,} bytes are left out …\n".encode())
        log.write(b"".join(end.parts))
        log.flush()
