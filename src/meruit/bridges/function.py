"""`gate(fn)`: call a function that makes candidates until one passes, with the feedback of the last rejection."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any, ParamSpec

import msgspec

from meruit.errors import MeruitError
from meruit.gate.gate import Gate
from meruit.gate.verdict import Passed, Rejected

FEEDBACK = "feedback"
P = ParamSpec("P")


# Any: what the verifier returns is the author's own type.
def gate(function: Callable[P, Any], output_type: Any = None, **settings: Any) -> Callable[P, Any]:
    """Wrap a function: call it until its output passes `verify`, and return the final result.

    If the function has a parameter `feedback`, it gets the last rejection there, None at first. The output type is
    its return annotation, unless named. Settings are those of `Gate`, for example `max_attempts`, or `store` for a
    record; every call is a run of its own. An async function stays async. A plain one blocks a running event loop
    until it is done; write it with `async def` to avoid that. Raises VerificationExhausted once the budget is used
    up, CouldNotVerify where the verifier broke, and VerificationWaiting where it waits for an answer.
    """
    if "run_id" in settings:
        raise MeruitError(f"every call of {_name(function)} is a run of its own; to name a run, use Gate")
    loop = _RevisionLoop(function=function, output_type=output_type or _return_type(function), settings=settings)
    # Wrong settings are an error here, not at the first call.
    loop.open()
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*positional: P.args, **named: P.kwargs) -> Any:
            return await loop.run(positional, named)

        return call_async

    @wraps(function)
    def call_sync(*positional: P.args, **named: P.kwargs) -> Any:
        return call_off_event_loop(loop.run_sync, positional, named)

    return call_sync


class _RevisionLoop(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    output_type: Any
    settings: dict[str, Any]

    def open(self, positional: tuple[Any, ...] = (), named: dict[str, Any] | None = None) -> Gate:
        # For the record: what a function was asked is most often its first text.
        texts = [one for one in (*positional, *(named or {}).values()) if isinstance(one, str)]
        about = {"agent": _name(self.function), "query": texts[0] if texts else ""}
        return Gate(self.output_type, **about | self.settings)

    async def run(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        gate, feedback = self.open(positional, named), None
        while True:
            answer = await _submit(gate, self._call_function(positional, named, feedback))
            if isinstance(answer, Passed):
                return answer.result
            feedback = answer.feedback

    def run_sync(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the function in this thread, where it may run an event loop of its own; only the gate runs in ours."""
        gate, feedback = self.open(positional, named), None
        with asyncio.Runner() as runner:
            while True:
                answer = runner.run(_submit(gate, self._call_function(positional, named, feedback)))
                if isinstance(answer, Passed):
                    return answer.result
                feedback = answer.feedback

    def _call_function(self, positional: tuple[Any, ...], named: dict[str, Any], feedback: str | None) -> Any:
        takes_feedback = FEEDBACK in inspect.signature(self.function).parameters
        return self.function(*positional, **({**named, FEEDBACK: feedback} if takes_feedback else named))


async def _submit(gate: Gate, made: Any) -> Passed | Rejected:
    return await gate.submit(await made if inspect.isawaitable(made) else made)


# Any: the parameters and result of the function.
def call_off_event_loop(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call a function that runs an event loop: here, or in a thread where a loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*positional, **named)
    with ThreadPoolExecutor(1, "meruit-gate") as thread:
        return thread.submit(copy_context().run, function, *positional, **named).result()


def _return_type(function: Callable[..., Any]) -> Any:
    try:
        found = inspect.signature(function, eval_str=True).return_annotation
    except NameError as unknown:
        raise MeruitError(
            f"the return annotation of {_name(function)} cannot be resolved ({unknown}); pass output_type=…"
        ) from None
    if found in (inspect.Signature.empty, None):
        raise MeruitError(f"{_name(function)} has no return annotation; add one, or pass output_type=…")
    return found


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)
