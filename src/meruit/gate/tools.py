"""Tools: functions that an agent's model may call, described to the model by their signature and docstring."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

import msgspec
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model

from meruit.documents.sanitize import describe
from meruit.errors import NotJsonSerializable, OutOfTime, ToolError
from meruit.gate.candidate import to_json_value
from meruit.gate.verifier import FunctionParameter, inspect_parameters
from meruit.model.chat import ToolCall, ToolSpec

MAX_REPLY = 100_000
"""Characters of a reply that the model gets."""
MAX_PROBLEMS, MAX_PROBLEM = 10, 300
"""Of wrong arguments: problems that the model gets, and characters of each."""
GRACE_S = 2.0
"""Seconds that a cancelled coroutine may take to end; after that it is abandoned."""
T = TypeVar("T")
_in_author_code: ContextVar[bool] = ContextVar("meruit_authors_code", default=False)


class Deferred(msgspec.Struct, frozen=True):
    """Returned by a tool whose result a client will provide: the run waits, without a worker."""

    note: str = ""
    """What the run waits for, for operators."""
    timeout_s: float | None = None
    """Seconds to wait; after that the model is informed that no value came."""


class Pause(msgspec.Struct, frozen=True):
    """Returned by a tool after which the run pauses."""

    seconds: float
    reply: str = "done waiting"


class Tool(msgspec.Struct, frozen=True):
    """A function with its specification for the model."""

    spec: ToolSpec
    call: Callable[..., Any]
    arguments: TypeAdapter[Any]
    wants: tuple[tuple[str, str], ...]
    """Parameters that the model does not see, each with the value that it gets."""

    async def run(self, call: ToolCall, supply: Mapping[str, Any]) -> str | Deferred | Pause:
        """Call the tool and return its reply to the model; errors are replies too."""
        try:
            given = self.arguments.validate_json(call.arguments or "{}")
        except ValidationError as problem:
            return f"error: the arguments are not valid: {_describe_problems(problem)}"
        arguments = {name: getattr(given, name) for name in type(given).model_fields}
        arguments |= {name: supply.get(what) for name, what in self.wants}
        try:
            answer = await call_author_function(self.call, **arguments)
            return answer if isinstance(answer, Deferred | Pause) else reply_of(answer)
        except asyncio.CancelledError:
            raise
        except BaseException as crash:  # noqa: BLE001 - the model may find a way around any error
            return f"error: {describe(crash)}"


def tool(function: Callable[..., Any] | Tool) -> Tool:
    """Make a tool from a function; raises ToolError where a model could not call it."""
    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolError(f"{function!r} has no valid name for a tool; define it with def")
    try:
        parameters = inspect_parameters(function)
        kinds = {one.name: one.kind for one in inspect.signature(function).parameters.values()}
    except (TypeError, ValueError) as problem:
        raise ToolError(f"the signature of {name} cannot be read: {problem}") from None
    by_place = [one for one, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
    if by_place:
        raise ToolError(f"{name} has the positional-only parameter {by_place[0]!r}; remove the `/`")
    shown = [one for one in parameters if one.what is None]
    fields = {one.name: _field(name, one) for one in shown}
    try:
        # Any: pydantic's own overloads do not take a mapping of fields.
        made: Any = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        adapter: TypeAdapter[Any] = TypeAdapter(made)
        schema = adapter.json_schema()
    except PydanticUserError as problem:
        why = str(problem).partition("\n")[0]
        raise ToolError(f"the parameters of {name} have no JSON schema: {why}") from None
    schema.pop("title", None)
    spec = ToolSpec(name, inspect.getdoc(function) or "", schema)
    return Tool(
        spec=spec,
        call=function,
        arguments=adapter,
        wants=tuple((one.name, one.what) for one in parameters if one.what is not None),
    )


def _field(tool_name: str, parameter: FunctionParameter) -> Any:
    if parameter.variadic:
        raise ToolError(f"{tool_name} takes *{parameter.name}; a model needs each parameter by name")
    annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    required = parameter.default is inspect.Parameter.empty
    return (annotation, Field() if required else Field(default=parameter.default))


async def call_author_function(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call an author's function, sync or async; a sync one runs in a thread of its own.

    Only a caller that is cancelled gets CancelledError; one that the function itself raises is wrapped.
    """
    if inspect.iscoroutinefunction(function):
        return await await_in_task(function(*positional, **named))
    answer = await run_in_thread(partial(function, *positional, **named))
    return await await_in_task(answer) if inspect.isawaitable(answer) else answer


async def await_in_task(working: Awaitable[T], limit_s: float | None = None) -> T:
    """Await an author's coroutine. A caller that is cancelled is free soon, even if the coroutine ignores that.

    Raises OutOfTime after so many seconds.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    task = loop.create_task(_run_into_future(working, waiting))
    try:
        # Most are done after their first step and need no timer.
        await asyncio.sleep(0)
        if limit_s is None or waiting.done():
            return await waiting
        alarm = loop.call_later(limit_s, _fail, waiting, OutOfTime())
        try:
            return await waiting
        finally:
            alarm.cancel()
    except (asyncio.CancelledError, OutOfTime):
        # The result is not wanted any more: retrieve an exception, so that asyncio does not log it.
        if not waiting.cancel() and not waiting.cancelled():
            waiting.exception()
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            if not task.done():
                _abandon(task)
        raise
    finally:
        # The traceback of an exception holds this frame, which held the future, which holds the exception.
        del waiting, task


async def _run_into_future(working: Awaitable[T], waiting: asyncio.Future[T]) -> None:
    """Pass the outcome on as a value: a task that raises SystemExit ends the whole event loop."""
    _in_author_code.set(True)
    try:
        _settle(waiting, await working)
    except BaseException as crash:  # noqa: BLE001 - the waiting caller gets every exception
        # The loop may be closed by now.
        with suppress(RuntimeError):
            _fail(waiting, _fit_for_a_future(crash))
    finally:
        # As above: else each exception would be garbage that only the collector finds.
        del waiting


def _abandon(task: asyncio.Task[Any]) -> None:
    """Unregister a task: the end of the loop waits for every registered one, and would never end."""
    asyncio._unregister_task(task)  # noqa: SLF001 - documented for extensions of asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio.gather does
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)


_abandoned: set[asyncio.Task[Any]] = set()
"""Keeps them from garbage collection."""


@contextmanager
def contain_exits(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep tasks that authors' code starts from ending the loop by SystemExit or KeyboardInterrupt."""
    before = loop.get_task_factory()

    # Any: arguments of a task factory of asyncio.
    def make(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> Any:
        contained = _contain_exit(work) if _in_author_code.get() else work
        return asyncio.Task(contained, loop=loop, **named) if before is None else before(loop, contained, **named)

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
    """Call a function that may block; a cancelled caller is free at once, and the process may end while it runs.

    Not `asyncio.to_thread`: the loop has few threads, the worker's heartbeat needs them, and the end of the loop
    waits for all of them.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def run() -> None:
        try:
            settle = partial(_settle, waiting, context.run(function))
        except BaseException as crash:  # noqa: BLE001 - the waiting caller gets every exception
            settle = partial(_fail, waiting, _fit_for_a_future(crash))
        # The loop may be closed by now.
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
    """Wrap what a future cannot hold, and interruptions that do not come from the keyboard or the loop."""
    if isinstance(crash, StopIteration):
        return _wrap_crash(crash, "StopIteration: next() found nothing")
    if isinstance(crash, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit):
        return _wrap_crash(crash, f"it raised {type(crash).__name__}")
    return crash


def _wrap_crash(crash: BaseException, text: str) -> RuntimeError:
    wrapped = RuntimeError(text)
    wrapped.__cause__ = crash
    return wrapped


def reply_of(answer: Any) -> str:
    """Format the return value of a tool for the model."""
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
    lines = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}"[:MAX_PROBLEM] for one in found]
    more = [f"and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    return "; ".join((*lines[:MAX_PROBLEMS], *more))
