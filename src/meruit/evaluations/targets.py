"""What makes the outputs of an evaluation: a Python function, a command, or an HTTP endpoint."""

import asyncio
import importlib
import inspect
import json
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from meruit.errors import MeruitError, TargetFailed
from meruit.evaluations.evaluation import Case

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""The longest output of a target."""
MAX_TARGET_S = 3_600.0
"""The longest that a single try may take; the run has a limit of its own."""
MAX_ERROR_CHARS = 2_000
"""How much of a target's complaint is kept."""


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
        raise TargetFailed(f"a target returns a text or an object, not {type(made).__name__}")
    if "output" not in made or made.keys() - {"output", "metadata", "cost"}:
        return TargetOutput(dict(made))
    inner, metadata, cost = made["output"], made.get("metadata") or {}, made.get("cost")
    if not isinstance(metadata, Mapping):
        raise TargetFailed(f"a target's metadata is an object, not {type(metadata).__name__}")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e9):
        raise TargetFailed(f"a target's cost is an amount of dollars, not {cost!r}")
    output = {"text": inner} if isinstance(inner, str) else inner
    if not isinstance(output, Mapping):
        raise TargetFailed(f"a target's output is a text or an object, not {type(output).__name__}")
    return TargetOutput(dict(output), dict(metadata), None if cost is None else round(cost * 1_000_000))


def public_input(case: Case) -> dict[str, Any]:
    """The input that a target is given: never the references it is compared with."""
    from meruit.model.work import PRIVATE_INPUTS

    return {name: value for name, value in case.input.items() if name not in PRIVATE_INPUTS}


class FunctionTarget:
    """A Python function that takes the input of a case; async functions run at once, others in threads."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    async def make(self, case: Case) -> TargetOutput:
        """Call the function."""
        given = public_input(case)
        try:
            if inspect.iscoroutinefunction(self._function):
                made = await self._function(given)
            else:
                made = await asyncio.to_thread(self._function, given)
                if isinstance(made, Awaitable):
                    made = await made
        except Exception as problem:  # noqa: BLE001 - whatever a user's function raises
            raise TargetFailed(f"{type(problem).__name__}: {problem}"[:MAX_ERROR_CHARS]) from None
        return to_output(made)

    async def close(self) -> None:
        """Nothing is held."""


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
            out, err = await process.communicate(orjson.dumps(public_input(case)))
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    _end_group(process.pid)
                await process.wait()
        if process.returncode:
            tail = err.decode(errors="replace").strip()[-MAX_ERROR_CHARS:]
            raise TargetFailed(f"exit code {process.returncode}{': ' if tail else ''}{tail}")
        return to_output(_parse(out))

    async def close(self) -> None:
        """Nothing is held."""


def _end_group(process_id: int) -> None:
    import os

    os.killpg(process_id, signal.SIGKILL)


def _parse(out: bytes) -> Any:
    """An object of JSON, or else the text as it is."""
    if len(out) > MAX_OUTPUT_BYTES:
        raise TargetFailed(f"more than {MAX_OUTPUT_BYTES // 2**20} MiB of output")
    try:
        found = orjson.loads(out)
    except ValueError:
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
        self._client = httpx.AsyncClient(timeout=MAX_TARGET_S, headers=dict(headers or {}))

    async def make(self, case: Case) -> TargetOutput:
        """POST the input; an answer other than success is an error."""
        import httpx

        given = public_input(case)
        body = given if self._template is None else _fill(self._template, given)
        try:
            async with self._client.stream("POST", self._url, json=body) as reply:
                content = b""
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
        raise MeruitError(f"the body template is not JSON: {problem}") from None


def _fill(template: Any, given: Mapping[str, Any]) -> Any:
    """The template with each `{{name}}` filled in; a text that is one name alone becomes the value itself."""
    if isinstance(template, Mapping):
        return {key: _fill(part, given) for key, part in template.items()}
    if isinstance(template, list):
        return [_fill(part, given) for part in template]
    if not isinstance(template, str) or "{{" not in template:
        return template
    name = template[2:-2].strip()
    if template == "{{input}}" or (template.startswith("{{") and template.endswith("}}") and name in given):
        return given if template == "{{input}}" else given[name]
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        template = template.replace("{{" + name + "}}", text)
    return template


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
