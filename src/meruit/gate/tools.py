"""Tools: functions that an agent's model may call, with what it is told of them taken from their signature."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model

from meruit.documents.sanitize import describe
from meruit.errors import NotJsonSerializable, OutOfTime, ToolError
from meruit.gate.candidate import to_json_value
from meruit.gate.verifier import FunctionParameter, inspect_parameters
from meruit.model.chat import ToolCall, ToolSpec

MAX_REPLY = 100_000
"""Characters of a reply that a model is told."""
MAX_PROBLEMS, MAX_PROBLEM = 10, 300
"""Of arguments that do not fit: how many problems a model is told, and how many characters of each."""
GRACE_S = 2.0
"""How long a coroutine that was cancelled may take to end; then nobody waits for it any more."""
T = TypeVar("T")
_in_author_code: ContextVar[bool] = ContextVar("meruit_authors_code", default=False)


class Deferred(NamedTuple):
    """Returned by a tool whose result others will hand in: the run waits, and no worker with it."""

    note: str = ""
    """What is waited for, for whoever watches."""
    timeout_s: float | None = None
    """How long; then the model is told that nothing came."""


class Pause(NamedTuple):
    """Returned by a tool that wants the run to go on after some time."""

    seconds: float
    reply: str = "done waiting"


class Tool(NamedTuple):
    """A function and what a model is told of it."""

    spec: ToolSpec
    call: Callable[..., Any]
    arguments: TypeAdapter[Any]
    wants: tuple[tuple[str, str], ...]
    """Parameters that the model does not see, each with what it is given."""

    async def run(self, call: ToolCall, supply: Mapping[str, Any]) -> str | Deferred | Pause:
        """What the model is told; a mistake of its own or of the tool's is told as well."""
        try:
            given = self.arguments.validate_json(call.arguments or "{}")
        except ValidationError as problem:
            return f"error: the arguments do not fit: {_describe_problems(problem)}"
        arguments = {name: getattr(given, name) for name in type(given).model_fields}
        arguments |= {name: supply.get(what) for name, what in self.wants}
        try:
            answer = await call_author_function(self.call, **arguments)
            return answer if isinstance(answer, Deferred | Pause) else reply_of(answer)
        except asyncio.CancelledError:
            raise
        except BaseException as crash:  # noqa: BLE001 - whatever a tool raises, its model may know a way around
            return f"error: {describe(crash)}"


def tool(function: Callable[..., Any] | Tool) -> Tool:
    """A function as a tool; raises ToolError for one that no model could call."""
    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolError(f"{function!r} has no name that a model could call it by; write it with def")
    try:
        parameters = inspect_parameters(function)
        kinds = {one.name: one.kind for one in inspect.signature(function).parameters.values()}
    except (TypeError, ValueError) as problem:
        raise ToolError(f"the signature of {name} cannot be read: {problem}") from None
    by_place = [one for one, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
    if by_place:
        raise ToolError(f"{name} takes {by_place[0]!r} by its place only; remove the `/`")
    shown = [one for one in parameters if one.what is None]
    fields = {one.name: _field(name, one) for one in shown}
    try:
        # Any: pydantic's own overloads do not take a mapping of fields.
        made: Any = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        adapter: TypeAdapter[Any] = TypeAdapter(made)
        schema = adapter.json_schema()
    except PydanticUserError as problem:
        why = str(problem).partition("\n")[0]
        raise ToolError(f"the parameters of {name} cannot be told to a model: {why}") from None
    schema.pop("title", None)
    spec = ToolSpec(name, inspect.getdoc(function) or "", schema)
    return Tool(spec, function, adapter, tuple((one.name, one.what) for one in parameters if one.what is not None))


def _field(tool_name: str, parameter: FunctionParameter) -> Any:
    if parameter.variadic:
        raise ToolError(f"{tool_name} takes *{parameter.name}; name each parameter, so that a model knows them")
    annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    required = parameter.default is inspect.Parameter.empty
    return (annotation, Field() if required else Field(default=parameter.default))


async def call_author_function(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call an author's function of either kind; one that may block does it in a thread of its own.

    CancelledError comes only to a caller who is cancelled, whatever the function itself raises.
    """
    if inspect.iscoroutinefunction(function):
        return await await_in_task(function(*positional, **named))
    answer = await run_in_thread(partial(function, *positional, **named))
    return await await_in_task(answer) if inspect.isawaitable(answer) else answer


async def await_in_task(working: Awaitable[T], limit_s: float | None = None) -> T:
    """Await what an author wrote; who is cancelled meanwhile is free soon, also where it does not let itself be.

    Raises OutOfTime after so many seconds.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    task = asyncio.ensure_future(_run_into_future(working, waiting))
    try:
        # Most are done with their first step, and need no alarm.
        await asyncio.sleep(0)
        if limit_s is None or waiting.done():
            return await waiting
        alarm = loop.call_later(limit_s, _fail, waiting, OutOfTime())
        try:
            return await waiting
        finally:
            alarm.cancel()
    except (asyncio.CancelledError, OutOfTime):
        # Nobody waits any more: what still comes is nobody's, and no reason for a line in a log.
        if not waiting.cancel() and not waiting.cancelled():
            waiting.exception()
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            if not task.done():
                _abandon(task)
        raise


async def _run_into_future(working: Awaitable[T], waiting: asyncio.Future[T]) -> None:
    """Not raised from here: a task that raises SystemExit ends the loop, with everybody who is on it."""
    _in_author_code.set(True)
    try:
        _settle(waiting, await working)
    except BaseException as crash:  # noqa: BLE001 - whoever waits is told, whatever it is
        # Where the loop is over, nobody waits.
        with suppress(RuntimeError):
            _fail(waiting, _fit_for_a_future(crash))


def _abandon(task: asyncio.Task[Any]) -> None:
    """Who ends the loop waits for every task that is known to it, and would wait for this one for ever."""
    asyncio._unregister_task(task)  # noqa: SLF001 - documented for whoever extends asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio.gather does
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)


_abandoned: set[asyncio.Task[Any]] = set()
"""So that none is collected in the middle."""


@contextmanager
def contain_exits(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Meanwhile, a task that authors' code starts cannot end the loop by SystemExit or KeyboardInterrupt."""
    before = loop.get_task_factory()

    # Any: whatever asyncio hands to the makers of tasks.
    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Any:
        told = _contain_exit(work) if _in_author_code.get() else work
        return asyncio.Task(told, loop=loop, **named) if before is None else before(loop, told, **named)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)


async def _contain_exit(work: Awaitable[T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as crash:
        raise _wrap_crash(crash, f"it raised {describe(crash)}") from crash


async def run_in_thread(function: Callable[[], T]) -> T:
    """Call what may block; who gives up waiting for it is free at once, and the process may end while it still runs.

    Not `asyncio.to_thread`: the loop's own threads are few, the worker's heartbeat needs them, and who ends the loop
    waits for every one of them.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def run() -> None:
        try:
            settle = partial(_settle, waiting, context.run(function))
        except BaseException as crash:  # noqa: BLE001 - whoever waits is told, whatever it is
            settle = partial(_fail, waiting, _fit_for_a_future(crash))
        # Nobody waits any more where the loop is over.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="meruit-call", daemon=True).start()
    return await waiting


def _settle(waiting: asyncio.Future[T], answer: T) -> None:
    if not waiting.done():
        waiting.set_result(answer)


def _fail(waiting: asyncio.Future[T], crash: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(crash)


def _fit_for_a_future(crash: BaseException) -> BaseException:
    """No future can hold a StopIteration, and an interruption in here is nobody's at the keyboard or of any loop's."""
    if isinstance(crash, StopIteration):
        return _wrap_crash(crash, "StopIteration: next() found nothing")
    if isinstance(crash, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit):
        return _wrap_crash(crash, f"it raised {type(crash).__name__}")
    return crash


def _wrap_crash(crash: BaseException, text: str) -> RuntimeError:
    told = RuntimeError(text)
    told.__cause__ = crash
    return told


def reply_of(answer: Any) -> str:
    """What a tool returned, as a model reads it."""
    if isinstance(answer, str):
        text = answer
    else:
        try:
            text = msgspec.json.encode(to_json_value(answer)).decode()
        except NotJsonSerializable:
            text = str(answer)
    return text if len(text) <= MAX_REPLY else f"{text[:MAX_REPLY]}… ({len(text):,} characters in all)"


def _describe_problems(problem: ValidationError) -> str:
    found = problem.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"[:MAX_PROBLEM] for one in found]
    more = [f"and {len(told) - MAX_PROBLEMS} more"] if len(told) > MAX_PROBLEMS else []
    return "; ".join((*told[:MAX_PROBLEMS], *more))
