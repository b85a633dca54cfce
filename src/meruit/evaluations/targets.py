"""What makes the outputs of an evaluation: a Python function, a command, or an HTTP endpoint."""

import asyncio
import importlib
import inspect
import json
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from meruit.errors import MeruitError, TargetFailed
from meruit.evaluations.evaluation import Case
from meruit.evaluations.target_threads import TargetThreads
from meruit.suggestions import nearest

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""The longest output of a target."""
MAX_TARGET_S = 3_600.0
"""The longest that a single try may take; the run has a limit of its own."""
MAX_ERROR_CHARS = 2_000
"""How much of a target's complaint is kept."""


PIPE_BYTES = 64 * 1024
"""What is read of a command at once."""
_Pipe = TypeVar("_Pipe", asyncio.StreamReader, asyncio.StreamWriter)
_NAME = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
"""A part of the input, in the template of a body."""
WHOLE = "input"
"""The name that means all of the input, where it has no part of this name."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What a target made of one case."""

    output: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cost_micros: int | None = None


@runtime_checkable
class Target(Protocol):
    """Makes the output of a case; raises TargetFailed where it cannot."""

    async def make(self, case: Case) -> TargetOutput:
        """The output for the input of a case."""
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


# Any: what users return.
def to_output(made: Any) -> TargetOutput:
    """What a target returned: a text, an object, or an object with `output` and beside it `metadata` and `cost`."""
    if isinstance(made, TargetOutput):
        return made
    if isinstance(made, str):
        return TargetOutput({"text": made})
    if not isinstance(made, Mapping):
        raise TargetFailed(f"a target returns a text or an object, not {type(made).__name__}", retry=False)
    if "output" not in made or made.keys() - {"output", "metadata", "cost"}:
        return TargetOutput(dict(made))
    inner, metadata, cost = made["output"], made.get("metadata") or {}, made.get("cost")
    if not isinstance(metadata, Mapping):
        raise TargetFailed(f"a target's metadata is an object, not {type(metadata).__name__}", retry=False)
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e9):
        raise TargetFailed(f"a target's cost is an amount of dollars, not {cost!r}", retry=False)
    output = {"text": inner} if isinstance(inner, str) else inner
    if not isinstance(output, Mapping):
        raise TargetFailed(f"a target's output is a text or an object, not {type(output).__name__}", retry=False)
    return TargetOutput(dict(output), dict(metadata), None if cost is None else round(cost * 1_000_000))


def public_input(case: Case) -> dict[str, Any]:
    """The input that a target is given: never the references it is compared with."""
    from meruit.model.work import PRIVATE_INPUTS

    return {name: value for name, value in case.input.items() if name not in PRIVATE_INPUTS}


class FunctionTarget:
    """A Python function that takes the input of a case; async functions run at once, others in threads."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function
        self._threads = TargetThreads()

    async def make(self, case: Case) -> TargetOutput:
        """Call the function."""
        given = public_input(case)
        try:
            if inspect.iscoroutinefunction(self._function):
                made = await self._function(given)
            else:
                made = await self._threads.call(partial(self._call, given))
                if isinstance(made, Awaitable):
                    made = await made
        except TargetFailed:
            raise
        # Whatever a user's function raises; a program that it embeds may want to exit.
        except (Exception, SystemExit) as problem:  # noqa: BLE001
            raise TargetFailed(f"{type(problem).__name__}: {problem}"[:MAX_ERROR_CHARS]) from None
        return to_output(made)

    def _call(self, given: dict[str, Any]) -> Any:
        try:
            return self._function(given)
        except StopIteration as problem:
            # No future can hold it.
            raise RuntimeError("StopIteration") from problem

    async def close(self) -> None:
        """End its threads."""
        self._threads.close()


def load_function(named: str) -> FunctionTarget:
    """The target `module:function`, from the working folder or an installed package; raises MeruitError."""
    module, separator, name = named.partition(":")
    if not separator or not module or not name:
        raise MeruitError(f"--target takes MODULE:FUNCTION, as my_agent:answer, not {named!r}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise MeruitError(f"the target {named!r} cannot be loaded: {problem}") from None
    if not callable(found):
        raise MeruitError(f"the target {named!r} is not a function but {type(found).__name__}")
    return FunctionTarget(found)


class CommandTarget:
    """A command that reads the input of a case as JSON on standard input and prints its output."""

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as problem:
            raise MeruitError(f"the command cannot be read: {problem}") from None
        if not self._words:
            raise MeruitError("the command is empty")

    async def make(self, case: Case) -> TargetOutput:
        """Run the command; another exit code than 0 is an error."""
        try:
            # A session of its own, so that children of the command end with it.
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as problem:
            raise TargetFailed(f"{self._words[0]}: {problem.strerror}") from None
        try:
            out, err, _ = await asyncio.gather(
                _read_output(process), _read_tail(process), _send(process, msgspec.json.encode(public_input(case)))
            )
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    _end_group(process.pid)
                await process.wait()
        if len(out) > MAX_OUTPUT_BYTES:
            raise TargetFailed(f"more than {MAX_OUTPUT_BYTES // 2**20} MiB of output", retry=False)
        if process.returncode:
            tail = err.decode(errors="replace").strip()[-MAX_ERROR_CHARS:]
            raise TargetFailed(f"exit code {process.returncode}{': ' if tail else ''}{tail}")
        return to_output(_parse(out))

    async def close(self) -> None:
        """Nothing is held."""


async def _send(process: asyncio.subprocess.Process, given: bytes) -> None:
    """Write the input; a command need not read it."""
    stdin = _pipe(process.stdin)
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(given)
        await stdin.drain()
    stdin.close()


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    """All that a command prints; it ends where it prints too much, because it may never stop."""
    stdout, found = _pipe(process.stdout), bytearray()
    while part := await stdout.read(PIPE_BYTES):
        # What is left in the pipe is read too, because only an empty pipe closes.
        if len(found) <= MAX_OUTPUT_BYTES:
            found += part
            if len(found) > MAX_OUTPUT_BYTES:
                with suppress(ProcessLookupError, PermissionError):
                    _end_group(process.pid)
    return bytes(found)


async def _read_tail(process: asyncio.subprocess.Process) -> bytes:
    """The end of what a command complains of."""
    stderr, found = _pipe(process.stderr), b""
    while part := await stderr.read(PIPE_BYTES):
        found = (found + part)[-4 * MAX_ERROR_CHARS :]
    return found


def _pipe(pipe: _Pipe | None) -> _Pipe:
    """A pipe that the command was begun with."""
    if pipe is None:
        raise TargetFailed("the command has no pipes", retry=False)
    return pipe


def _end_group(process_id: int) -> None:
    import os

    os.killpg(process_id, signal.SIGKILL)


def _parse(out: bytes | bytearray) -> Any:
    """An object of JSON, or else the text as it is."""
    try:
        found = msgspec.json.decode(out)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, Mapping) else out.decode(errors="replace").rstrip("\n")


class UrlTarget:
    """An HTTP endpoint. The body is a template of JSON in which `{{name}}` stands for a part of the input."""

    def __init__(
        self, url: str, body: str | None = None, headers: Mapping[str, str] | None = None, answer: str | None = None
    ) -> None:
        # A moment to load, which other targets need not pay.
        import httpx

        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as problem:
            raise MeruitError(f"{url!r} is not a URL: {problem}") from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise MeruitError(f"{url!r} is not a URL that begins with http:// or https://")
        self._template = None if body is None else _load_template(body)
        self._answer = answer
        # As many connections as outputs are made at once.
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(timeout=MAX_TARGET_S, headers=dict(headers or {}), limits=unlimited)

    async def make(self, case: Case) -> TargetOutput:
        """POST the input; an answer other than success is an error."""
        import httpx

        given = public_input(case)
        body = given if self._template is None else _fill(self._template, given)
        try:
            async with self._client.stream("POST", self._url, json=body) as reply:
                content = bytearray()
                async for part in reply.aiter_bytes():
                    content += part
                    if len(content) > MAX_OUTPUT_BYTES:
                        raise TargetFailed(f"more than {MAX_OUTPUT_BYTES // 2**20} MiB of answer")
        except httpx.HTTPError as problem:
            raise TargetFailed(f"{type(problem).__name__}: {problem}") from None
        if not reply.is_success:
            tail = content.decode(errors="replace")[:MAX_ERROR_CHARS]
            again = reply.status_code == httpx.codes.TOO_MANY_REQUESTS or reply.is_server_error
            raise TargetFailed(f"HTTP {reply.status_code}: {tail}", retry=again)
        made = _parse(content)
        return to_output(made if self._answer is None else _part(made, self._answer))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _load_template(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as problem:
        hint = '; write "{{name}}" in quotes, a number stays a number' if "{{" in body else ""
        raise MeruitError(f"the body template is not JSON: {problem}{hint}") from None


def _fill(template: Any, given: Mapping[str, Any]) -> Any:
    """The template with each `{{name}}` filled in; a text that is one name alone becomes the value itself."""
    if isinstance(template, Mapping):
        return {key: _fill(part, given) for key, part in template.items()}
    if isinstance(template, list):
        return [_fill(part, given) for part in template]
    if not isinstance(template, str):
        return template
    if alone := _NAME.fullmatch(template):
        return _named(alone[1], given)
    # In one go, because an input may hold braces too.
    return _NAME.sub(lambda found: _as_text(_named(found[1], given)), template)


def _named(name: str, given: Mapping[str, Any]) -> Any:
    if name in given:
        return given[name]
    if name == WHOLE:
        return given
    known = ", ".join(given) or "nothing"
    raise TargetFailed(f"the body names {name!r}{nearest(name, given)}; the input has {known}", retry=False)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _part(made: Any, path: str) -> Any:
    """The part of an answer at a dotted path, as `choices.0.message.content`."""
    for step in path.split("."):
        if isinstance(made, Mapping) and step in made:
            made = made[step]
        elif isinstance(made, list) and step.isdigit() and int(step) < len(made):
            made = made[int(step)]
        else:
            raise TargetFailed(f"the answer has no {path!r}: {json.dumps(made, default=str)[:200]}")
    return made
